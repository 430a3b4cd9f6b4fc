"""model.safetensors.index.json: which shard holds which tensor. Names are confined to the index's own folder."""

from collections.abc import Collection, Mapping

import msgspec

from neuron.kernels.formats.errors import FormatError, FormatKind, shown
from neuron.kernels.formats.fields import JsonFault, decode_object
from neuron.kernels.formats.safetensors_header import MAX_TENSORS, SafetensorsTensor

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_INDEX_BYTES = 64 << 20


class ShardIndex(msgspec.Struct, frozen=True):
    """`shards` in order of name; `total_size` is the index's own claim, None when it makes none."""

    weight_map: Mapping[str, str]
    shards: tuple[str, ...]
    total_size: int | None = None


def corrupt_index(message: str) -> FormatError:
    return FormatError(FormatKind.CORRUPT_WEIGHTS, f"{INDEX_NAME}: {message}")


def parse_index(text: bytes) -> ShardIndex:
    """Raises FormatError(corrupt_weights): not an index, or a shard that is no plain file name."""
    try:
        document = decode_object(text, MAX_INDEX_BYTES)
    except JsonFault as error:
        raise FormatError(FormatKind.CORRUPT_WEIGHTS, f"{INDEX_NAME} {error}.") from error
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or len(weight_map) > MAX_TENSORS:
        raise corrupt_index("weight_map is missing, empty or too large.")
    for shard in weight_map.values():
        if not isinstance(shard, str) or not is_plain_name(shard) or not shard.endswith(".safetensors"):
            raise corrupt_index(f"{shown(str(shard))} is not the name of a safetensors file in this folder.")
    metadata = document.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if total is not None and (type(total) is not int or total < 0):
        raise corrupt_index("metadata.total_size is not a number of bytes.")
    return ShardIndex(weight_map, tuple(sorted(set(weight_map.values()))), total)


def is_plain_name(name: str) -> bool:
    """A file name without folders, that no file system reads as anything else."""
    return 0 < len(name) <= 255 and name not in (".", "..") and not any(c in "/\\\0" or ord(c) < 32 for c in name)


def missing_shards(index: ShardIndex, present: Collection[str]) -> None:
    """Raise FormatError(missing_shard) naming the first shard of `index` that is not among `present`."""
    for shard in index.shards:
        if shard not in present:
            raise FormatError(FormatKind.MISSING_SHARD, f"{shard} is missing; the download may be incomplete.")


def check_index(index: ShardIndex, tensors: Mapping[str, SafetensorsTensor]) -> tuple[str, ...]:
    """The shards hold exactly what the index says; returns notes for the log.

    Raises FormatError(corrupt_weights) naming the tensor. A wrong total alone is a note: every tensor is accounted
    for by name and by its shard's own header, and published indexes count tied or converted weights differently.
    """
    for name, shard in index.weight_map.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise corrupt_index(f"tensor {shown(name)} is not in {shard}; the download may be incomplete.")
        if tensor.file != shard:
            raise corrupt_index(f"tensor {shown(name)} is in {tensor.file}, not in {shard}.")
    if len(tensors) != len(index.weight_map):
        name = next(name for name in tensors if name not in index.weight_map)
        raise corrupt_index(f"tensor {shown(name)} of {tensors[name].file} is not listed.")
    total = sum(tensor.nbytes for tensor in tensors.values())
    if index.total_size in (None, total):
        return ()
    return (f"{INDEX_NAME} counts {index.total_size} bytes of tensors; its shards hold {total}.",)
