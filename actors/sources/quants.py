"""GGUF files of a listing: their parts, their quantisation, and the one that a request means. Pure; no I/O."""

import difflib
import re
from collections.abc import Iterable, Sequence

import msgspec

from neuron.actors.errors import MissingShard, QuantNotFound

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(
    r"(?<![a-z0-9])(?:ud[-_])?(?:[it]?q\d(?:_[a-z0-9]{1,4})*|bf16|f16|fp16|f32|fp32|mxfp4(?:_moe)?|nvfp4)(?![a-z0-9])",
    re.IGNORECASE,
)
#: Files that are GGUF and no language model.
_NOT_MODELS = ("mmproj", "imatrix")
#: What is taken when nobody asks for one of several: the usual trade of size and quality, then what is larger.
_PREFERRED = ("q4km", "q4k", "q4ks", "q5km", "q41", "q40", "q6k", "q80", "q3km", "bf16", "f16", "f32")
MAX_PARTS = 1000


class GgufGroup(msgspec.Struct, frozen=True):
    """One GGUF model: `parts` in order, `missing` the names of absent parts, `quant` as the file name spells it."""

    quant: str | None
    parts: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return self.quant or self.parts[0]


def normalised(quant: str) -> str:
    """Case, underscores, dashes and dots do not count: Q4_K_M, q4_k_m and q4km are the same."""
    return re.sub(r"[^a-z0-9]", "", quant.lower())


def is_projector(name: str) -> bool:
    return _base(name).lower().endswith(".gguf") and "mmproj" in _base(name).lower()


def group_gguf(names: Iterable[str]) -> tuple[GgufGroup, ...]:
    """The models among the `.gguf` files of a listing, in order of name; projectors and importance data left out."""
    single: list[GgufGroup] = []
    split: dict[tuple[str, int], dict[int, str]] = {}
    for name in sorted(names):
        base = _base(name).lower()
        if not base.endswith(".gguf") or any(word in base for word in _NOT_MODELS):
            continue
        match = _PART.fullmatch(name)
        total = int(match["total"]) if match else 0
        if match and 1 <= int(match["number"]) <= total <= MAX_PARTS:
            split.setdefault((match["stem"], total), {})[int(match["number"])] = name
        else:
            single.append(GgufGroup(quant_of(name), (name,)))
    for (stem, total), parts in split.items():
        missing = tuple(f"{_base(stem)}-{i:05}-of-{total:05}.gguf" for i in range(1, total + 1) if i not in parts)
        ordered = tuple(parts[number] for number in sorted(parts))
        single.append(GgufGroup(quant_of(ordered[0]), ordered, missing))
    return tuple(sorted(single, key=lambda group: group.parts))


def quant_of(name: str) -> str | None:
    """The quantisation in a file's name (else in its folder's), as spelled there."""
    match = _PART.fullmatch(name)
    stem = match["stem"] if match else name.removesuffix(".gguf")
    folder, _, base = stem.rpartition("/")
    for text in (base, folder):
        found = _QUANT.findall(text)
        if found:
            return str(found[-1])
    return None


def choose(groups: Sequence[GgufGroup], quant: str | None, model_id: str) -> GgufGroup:
    """The group that `quant` (a quantisation, or the name of a file or of any part) means; all its parts are there.

    Raises QuantNotFound (requested, available, nearest) or MissingShard naming the absent part.
    """
    group = _match(groups, quant, model_id) if quant is not None else _preferred(groups)
    if group.missing:
        raise MissingShard(
            f"{group.missing[0]} is missing from the repository; the upload or download may be incomplete.",
            model_id=model_id,
            missing=list(group.missing[:16]),
        )
    return group


def matches(groups: Sequence[GgufGroup], quant: str) -> tuple[GgufGroup, ...]:
    """Groups that `quant` names; an exact label wins over one that only adds Unsloth's UD- prefix."""
    wanted = normalised(quant)
    named = [group for group in groups if any(_base(part).lower() == _base(quant).lower() for part in group.parts)]
    exact = [group for group in groups if group.quant is not None and normalised(group.quant) == wanted]
    prefixed = [group for group in groups if group.quant is not None and normalised(group.quant) == "ud" + wanted]
    return tuple(named or exact or prefixed)


def _match(groups: Sequence[GgufGroup], quant: str, model_id: str) -> GgufGroup:
    found = matches(groups, quant)
    if len(found) == 1:
        return found[0]
    available = sorted({group.label for group in groups})
    if found:
        available = [group.parts[0] for group in found]
        raise QuantNotFound(
            f"'{quant[:64]}' names {len(found)} files; name one of them.",
            model_id=model_id,
            requested=quant[:64],
            available=available[:64],
            nearest=available[0],
            suggestion=f"quant: {available[0]}",
        )
    raise not_found(quant, available, model_id)


def not_found(quant: str, available: Sequence[str], model_id: str) -> QuantNotFound:
    """The typed error for a quantisation that is not offered, with the nearest that is."""
    close = nearest(quant, available)
    return QuantNotFound(
        f"No '{quant[:64]}' here; the nearest is '{close}'." if close else f"No '{quant[:64]}' here.",
        model_id=model_id,
        requested=quant[:64],
        available=list(available[:64]),
        nearest=close,
        suggestion=f"quant: {close}" if close else None,
    )


def nearest(quant: str, available: Sequence[str]) -> str | None:
    """The label most like `quant`: one that it begins (q6k -> Q6_K_P), else the one with the most letters in common."""
    wanted = normalised(quant)
    labels = {normalised(label): label for label in available}
    begun = sorted((key for key in labels if key.startswith(wanted) or wanted.startswith(key)), key=len)
    if begun:
        return labels[begun[0]]
    close = difflib.get_close_matches(wanted, labels, n=1, cutoff=0.0)
    return labels[close[0]] if close else None


def _preferred(groups: Sequence[GgufGroup]) -> GgufGroup:
    complete = [group for group in groups if not group.missing] or list(groups)
    for quant in _PREFERRED:
        for group in complete:
            if group.quant is not None and normalised(group.quant).removeprefix("ud") == quant:
                return group
    return complete[0]


def _base(name: str) -> str:
    return name.rpartition("/")[2]
