"""Which files of a listing are the model: its format, its weights in order, the small files beside them. Pure."""

from collections.abc import Collection, Sequence

import msgspec

from neuron.actors.errors import (
    EmptyRepo,
    InvalidConfig,
    MissingShard,
    PreflightError,
    TpRequiresSafetensors,
    UnsupportedArchitecture,
)
from neuron.actors.sources.artifact import Format
from neuron.actors.sources.quants import GgufGroup, choose, group_gguf, is_projector, matches, normalised, not_found
from neuron.kernels.formats.in_situ import IN_SITU, in_situ_name, is_mixture
from neuron.kernels.formats.mapped_file import PICKLE_SUFFIXES
from neuron.kernels.formats.shard_index import INDEX_NAME, SINGLE_NAME

CONFIG = "config.json"
#: Fetched beside safetensors when they are there.
DENSE_EXTRAS = (
    CONFIG,
    INDEX_NAME,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
)
#: Beside GGUF: its tokenizer and template are inside the file.
GGUF_EXTRAS = ("generation_config.json",)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """`weights` is empty for safetensors with an index: its shards are read from the index file."""

    format: Format
    weights: tuple[str, ...]
    extras: tuple[str, ...]
    indexed: bool = False
    quant: str | None = None
    stored_quant: str | None = None
    projector: str | None = None
    notes: tuple[str, ...] = ()


def select(
    names: Collection[str], model_id: str, *, quant: str | None = None, tensor_parallel: int | None = None
) -> Selection:
    """The model among `names`. Where GGUF and safetensors lie side by side, GGUF is taken when `quant` names one of
    its files and nothing is sharded.

    Raises TpRequiresSafetensors, QuantNotFound, MissingShard, EmptyRepo, UnsupportedArchitecture, InvalidConfig.
    """
    groups = group_gguf(names)
    dense = _dense_weights(names)
    sharded = tensor_parallel is not None and tensor_parallel > 1
    if "model_index.json" in names:
        raise UnsupportedArchitecture("Diffusion pipelines are not supported.", model_id=model_id)
    if not groups and not dense:
        raise _nothing(names, model_id)
    if sharded and not dense:
        raise TpRequiresSafetensors(
            "Tensor parallelism needs safetensors; this repository holds GGUF files only.",
            model_id=model_id,
            suggestion="Use the safetensors repository of this model, or load it without tensor_parallel.",
            tp_size=tensor_parallel,
            gguf_quants=sorted({group.label for group in groups})[:64],
        )
    wants_gguf = quant is not None and bool(matches(groups, quant))
    if groups and not sharded and (not dense or wants_gguf):
        return _gguf(names, groups, quant, model_id)
    return _dense(names, dense, groups, quant, model_id)


def _gguf(names: Collection[str], groups: Sequence[GgufGroup], quant: str | None, model_id: str) -> Selection:
    group = choose(groups, quant, model_id)
    projectors = sorted((name for name in names if is_projector(name)), key=_projector_rank)
    notes = () if quant is not None or len(groups) == 1 else (f"No quant was asked for; {group.label} is taken.",)
    return Selection(
        format=Format.GGUF,
        weights=group.parts,
        extras=tuple(name for name in GGUF_EXTRAS if name in names),
        stored_quant=group.quant,
        projector=projectors[0] if projectors else None,
        notes=notes,
    )


def _projector_rank(name: str) -> tuple[bool, str]:
    return ("f16" not in normalised(name), name)


def _dense(
    names: Collection[str], weights: tuple[str, ...], groups: Sequence[GgufGroup], quant: str | None, model_id: str
) -> Selection:
    in_situ = None
    if quant is not None:
        in_situ = in_situ_name(quant)
        if in_situ is None:
            offered = sorted({group.label for group in groups})
            raise not_found(quant, [*offered, *IN_SITU], model_id)
    if CONFIG not in names:
        raise InvalidConfig("config.json is missing from the repository.", model_id=model_id)
    indexed = INDEX_NAME in names
    notes = () if indexed or len(weights) == 1 else ("The shards come without an index.",)
    if quant is not None and is_mixture(quant):
        notes = (*notes, f"{quant} is a mixture of types; here every quantised matrix becomes {in_situ}.")
    return Selection(
        format=Format.SAFETENSORS,
        weights=() if indexed else weights,
        extras=tuple(name for name in DENSE_EXTRAS if name in names),
        indexed=indexed,
        quant=in_situ,
        notes=notes,
    )


def _dense_weights(names: Collection[str]) -> tuple[str, ...]:
    """Weight files of the top folder; adapters and consolidated copies left out. Checked for gaps by their numbers."""
    if INDEX_NAME in names:
        return (INDEX_NAME,)
    if SINGLE_NAME in names:
        return (SINGLE_NAME,)
    return tuple(
        sorted(
            name
            for name in names
            if name.endswith(".safetensors")
            and "/" not in name
            and not name.startswith(("adapter_", "consolidated", "training_"))
        )
    )


def check_numbering(weights: Sequence[str], model_id: str) -> None:
    """Shards named -0000i-of-0000n without an index: all n must be there. Raises MissingShard naming the first gap."""
    for name in weights:
        stem, _, tail = name.removesuffix(".safetensors").rpartition("-of-")
        if not stem or not tail.isdigit() or not stem[-5:].isdigit():
            continue
        for number in range(1, min(int(tail), 1000) + 1):
            expected = f"{stem[:-5]}{number:05}-of-{tail}.safetensors"
            if expected not in weights:
                raise MissingShard(
                    f"{expected} is missing; the upload or download may be incomplete.", model_id=model_id
                )


def _nothing(names: Collection[str], model_id: str) -> PreflightError:
    pickled = sorted(name for name in names if name.lower().endswith(PICKLE_SUFFIXES))
    if pickled:
        return PreflightError(
            f"The weights are pickled ({pickled[0].rpartition('/')[2]}), which can run code; they are not read.",
            model_id=model_id,
            suggestion="Use a repository with safetensors or GGUF files.",
        )
    return EmptyRepo("The repository holds neither safetensors nor GGUF files.", model_id=model_id)
