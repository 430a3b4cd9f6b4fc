"""Plan: a model chosen and described from its listing and headers, before any weight is fetched. Blocking."""

import msgspec

from neuron.actors.sources.artifact import Format
from neuron.actors.sources.description import Description, describe_dense, describe_gguf
from neuron.actors.sources.failures import typed_failures
from neuron.actors.sources.heads import check_sharding
from neuron.actors.sources.ids import ModelId
from neuron.actors.sources.repository import Repository, read_header
from neuron.actors.sources.selection import CONFIG, Selection, check_numbering, select
from neuron.kernels.formats.gguf_header import parse_gguf_header
from neuron.kernels.formats.hf_config import MAX_CONFIG_BYTES
from neuron.kernels.formats.projector import image_token
from neuron.kernels.formats.safetensors_header import parse_safetensors_header
from neuron.kernels.formats.shard_index import INDEX_NAME, MAX_INDEX_BYTES, ShardIndex, missing_shards, parse_index


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`weights` and `extras` are names in the repository."""

    model_id: ModelId
    selection: Selection
    weights: tuple[str, ...]
    description: Description

    @property
    def projector(self) -> str | None:
        """The mmproj file, where it is one that the model can use."""
        return self.selection.projector if self.description.config.vision is not None else None

    @property
    def extras(self) -> tuple[str, ...]:
        return self.selection.extras

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.selection.notes, *self.description.notes)


def make_plan(repository: Repository, *, quant: str | None, tensor_parallel: int | None) -> Plan:
    """Choose the files, read their headers and check them. Raises the PreflightError of whatever is wrong."""
    model_id = repository.model_id.bare
    sizes = repository.files()
    selection = select(sizes.keys(), model_id, quant=quant, tensor_parallel=tensor_parallel)
    with typed_failures(model_id):
        if selection.format is Format.GGUF:
            weights, description = _gguf(repository, selection)
        else:
            weights, description, extra = _dense(repository, selection)
            if extra:
                selection = msgspec.structs.replace(selection, notes=(*selection.notes, *extra))
    check_sharding(description.config, tensor_parallel, model_id)
    return Plan(model_id=repository.model_id, selection=selection, weights=weights, description=description)


def _gguf(repository: Repository, selection: Selection) -> tuple[tuple[str, ...], Description]:
    sizes = repository.files()
    names = [name.rpartition("/")[2] for name in selection.weights]
    headers = [read_header(repository, name, sizes[name], parse_gguf_header) for name in selection.weights]
    description, name = describe_gguf(headers, names), selection.projector
    if name is not None and image_token(description.config, headers[0].metadata) is None:
        notes = (*description.notes, f"Images are not taken: the model has no place for what {name} makes of them.")
        description = msgspec.structs.replace(description, notes=notes)
    elif name is not None:
        projector = read_header(repository, name, sizes[name], parse_gguf_header)
        description = describe_gguf(headers, names, projector)
    return selection.weights, description


def _dense(repository: Repository, selection: Selection) -> tuple[tuple[str, ...], Description, tuple[str, ...]]:
    sizes = repository.files()
    index: ShardIndex | None = None
    weights = selection.weights
    notes: tuple[str, ...] = ()
    # The config first: an architecture that is not served needs no header.
    config_json = repository.read(CONFIG, MAX_CONFIG_BYTES)
    if selection.indexed:
        index = parse_index(repository.read(INDEX_NAME, MAX_INDEX_BYTES))
        missing_shards(index, sizes)
        weights = index.shards
        others = [n for n in sizes if n.endswith(".safetensors") and "/" not in n and n not in weights]
        notes = tuple(f"{name} is not in the index; it is ignored." for name in others[:8])
    else:
        check_numbering(weights, repository.model_id.bare)
    headers = [read_header(repository, name, sizes[name], parse_safetensors_header) for name in weights]
    return weights, describe_dense(config_json, headers, index, selection.quant), notes
