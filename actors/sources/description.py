"""Description: what a model is, told by its config and its weight files' headers alone. Pure; raises FormatError."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from neuron.kernels.formats.errors import FormatError, FormatKind
from neuron.kernels.formats.expected import GGUF, SAFETENSORS, check_tensors
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.gguf import check_split, merge_parts
from neuron.kernels.formats.gguf_config import config_from_gguf
from neuron.kernels.formats.gguf_header import GgufHeader, GgufTensor, Metadata
from neuron.kernels.formats.hf_config import parse_config
from neuron.kernels.formats.in_situ import IN_SITU, effective_quant, resident_type
from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.formats.projector import read_projector, seeing
from neuron.kernels.formats.safetensors import FP8, merge_headers
from neuron.kernels.formats.safetensors_header import SafetensorsTensor
from neuron.kernels.formats.shard_index import ShardIndex, check_index
from neuron.kernels.formats.vision_tensors import check_vision

_FLOAT_BYTES = 4
_EMBEDDINGS = ("embed_tokens.weight", "token_embd.weight")


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """`matrix_bytes` and `vector_bytes`: resident memory of the weights on one device, before any sharding.

    `embedding_bytes`: of the matrices, what is never shared out; a head that is tied to it is a part of it.
    """

    config: ModelConfig
    matrix_bytes: int
    vector_bytes: int
    embedding_bytes: int
    stored_quant: str
    notes: tuple[str, ...] = ()


class _Headers(msgspec.Struct, frozen=True):
    metadata: Metadata
    tensors: Mapping[str, GgufTensor]


def describe_gguf(
    headers: Sequence[GgufHeader],
    names: Sequence[str],
    projector: GgufHeader | None = None,
    quant: str | None = None,
) -> Description:
    """The model in GGUF files `names` (all parts in order), with the vision tower of an mmproj file.

    A projector that is not supported is noted and left out: `config.vision` tells. Raises FormatError for anything that
    would not load.
    """
    check_split([header.metadata for header in headers], [len(header.tensors) for header in headers], names)
    tensors = merge_parts([header.tensors for header in headers], names)
    config = config_from_gguf(_Headers(headers[0].metadata, tensors))
    check = check_tensors(config, tensors, GGUF)
    exact = effective_quant(config, quant) == "f32"
    matrices = vectors = embedding = 0
    types: Counter[str] = Counter()
    for name, tensor in tensors.items():
        if name in check.ignored:
            continue
        if len(tensor.shape) > 1:
            size = math.prod(tensor.shape) * _FLOAT_BYTES if exact else tensor.nbytes
            matrices += size
            embedding += size if name.endswith(_EMBEDDINGS) else 0
            types[tensor.ggml_type.name] += tensor.nbytes
        else:
            vectors += tensor.shape[0] * _FLOAT_BYTES
    notes = _notes(check.ignored)
    if projector is not None:
        try:
            config = seeing(config, headers[0].metadata, read_projector(projector))
            width = _FLOAT_BYTES if set(types) == {GgmlType.F32.name} else 2
            vectors += sum(math.prod(tensor.shape) * width for tensor in projector.tensors.values())
        except FormatError as error:
            if error.kind is not FormatKind.UNSUPPORTED_MODEL:
                raise
            notes = (*notes, f"Images are not taken: {error.message}")
    return Description(
        config=config,
        matrix_bytes=matrices,
        vector_bytes=vectors,
        embedding_bytes=embedding,
        stored_quant=types.most_common(1)[0][0],
        notes=notes,
    )


def describe_dense(
    config_json: bytes,
    headers: Sequence[Mapping[str, SafetensorsTensor]],
    index: ShardIndex | None,
    quant: str | None,
) -> Description:
    """The model in safetensors files, as it will be resident after the in-situ quantisation `quant`."""
    config = parse_config(config_json)
    if not headers:
        raise FormatError(FormatKind.CORRUPT_WEIGHTS, "There is no weight file.")
    tensors = merge_headers(headers)
    notes = check_index(index, tensors) if index is not None else ()
    check = check_tensors(config, tensors, SAFETENSORS)
    tower = check_vision(config, tensors)
    quant = effective_quant(config, quant)
    matrices = vectors = embedding = 0
    types: Counter[str] = Counter()
    used = set()
    for name, tensor in tensors.items():
        elements = 1
        for size in tensor.shape:
            elements *= size
        if tower is not None and name.startswith(tower):
            # Whole on every rank; in 16 bits, unless all is wanted in 32.
            vectors += elements * (_FLOAT_BYTES if quant == "f32" or tensor.dtype == "F32" else 2)
            used.add(name)
            continue
        if name in check.ignored or name.endswith("_scale_inv"):
            continue
        if len(tensor.shape) == 2:
            matrices += (resident := _resident(name, tensor, elements, quant))
            embedding += resident if name.endswith(_EMBEDDINGS) else 0
            types[tensor.dtype] += tensor.nbytes
        else:
            vectors += elements * _FLOAT_BYTES
    if b'"auto_map"' in config_json:
        notes = (*notes, "auto_map is ignored: no code of a repository is ever run.")
    stored = types.most_common(1)[0][0]
    return Description(
        # A model whose tower is not in its files sees nothing.
        config=config if tower is not None else msgspec.structs.replace(config, vision=None),
        matrix_bytes=matrices,
        vector_bytes=vectors,
        embedding_bytes=embedding,
        stored_quant="fp8" if stored == FP8 else stored.lower(),
        notes=(*notes, *_notes(tuple(name for name in check.ignored if name not in used))),
    )


def _resident(name: str, tensor: SafetensorsTensor, elements: int, quant: str | None) -> int:
    if quant is not None:
        kind = resident_type(IN_SITU[quant], name, tensor.shape[-1])
        if kind is not None:
            return kind.nbytes(elements)
    # FP8 is expanded to bfloat16.
    return elements * 2 if tensor.dtype == FP8 else tensor.nbytes


def _notes(ignored: tuple[str, ...]) -> tuple[str, ...]:
    return (f"{len(ignored)} tensors are not used (first: {ignored[0]}).",) if ignored else ()
