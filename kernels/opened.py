"""OpenedModel: the files of a load, checked and mapped, before any weight is read. For kernels.load and its engines."""

from typing import NamedTuple

from neuron.kernels.engine import LoadSpec
from neuron.kernels.errors import UnsupportedLoad
from neuron.kernels.formats.errors import FormatKind
from neuron.kernels.formats.expected import GGUF, ROPE_FREQUENCIES, SAFETENSORS, check_tensors
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.gguf import GgufFile, open_gguf
from neuron.kernels.formats.gguf_config import config_from_gguf
from neuron.kernels.formats.hf_config import MAX_CONFIG_BYTES, parse_config
from neuron.kernels.formats.in_situ import FLOATS, effective_quant
from neuron.kernels.formats.mapped_file import read_small
from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.formats.projector import PREFIX, read_projector, seeing
from neuron.kernels.formats.safetensors import SafetensorsSet
from neuron.kernels.formats.vision_tensors import check_vision
from neuron.kernels.threads import Team
from neuron.kernels.weights.convert import quant_type
from neuron.kernels.weights.matrix import Floats
from neuron.kernels.weights.names import Names
from neuron.kernels.weights.projector import SeeingReader
from neuron.kernels.weights.reader import GgufReader, SafetensorsReader, WeightReader


class OpenedModel(NamedTuple):
    config: ModelConfig
    reader: WeightReader
    #: The head is the embedding.
    tied: bool
    names: Names
    #: Prefix of a vision tower's tensors, if there is one.
    vision: str | None
    #: What matrices become; None keeps them as they are stored.
    quant: GgmlType | None
    #: GGUF's rope_freqs.
    rope_factors: Floats | None


def open_model(spec: LoadSpec, team: Team) -> OpenedModel:
    """Raises FormatError (damaged or unknown files) and LoadError (what cannot be run here)."""
    quant = quant_type(spec.quant)
    if spec.format == GGUF:
        if quant is not None and quant not in FLOATS:
            raise UnsupportedLoad("unsupported_quant", "GGUF weights are not quantised anew.")
        opened = open_gguf(spec.files)
        config = config_from_gguf(opened)
        found = check_tensors(config, opened.tensors, GGUF)
        reader = GgufReader(opened, team)
        vision: str | None = None
        if spec.projector is not None:
            tower = GgufFile.open(spec.projector)
            config = seeing(config, opened.metadata, read_projector(tower))
            reader, vision = SeeingReader(opened, tower, team), PREFIX
        factors = reader.vector(ROPE_FREQUENCIES) if config.rope.has_frequency_factors else None
        quant = quant_type(effective_quant(config, spec.quant))
        return OpenedModel(config, reader, found.tied, Names(config, GGUF, found.prefix), vision, quant, factors)
    if spec.format != SAFETENSORS:
        raise UnsupportedLoad("unsupported_format", f"Files of format {spec.format} cannot be loaded.")
    if spec.config is None:
        raise UnsupportedLoad("invalid_model_config", "A safetensors model needs its config.json.")
    config = parse_config(read_small(spec.config, MAX_CONFIG_BYTES, FormatKind.INVALID_CONFIG))
    dense = SafetensorsSet.open(spec.files)
    found = check_tensors(config, dense.tensors, SAFETENSORS)
    vision, names = check_vision(config, dense.tensors), Names(config, SAFETENSORS, found.prefix)
    quant = quant_type(effective_quant(config, spec.quant))
    return OpenedModel(config, SafetensorsReader(dense, team), found.tied, names, vision, quant, None)
