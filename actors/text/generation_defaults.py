"""Reads generation_config.json and config.json: sampling defaults and every end token they name."""

from pathlib import Path

import msgspec

from neuron.actors.errors import InvalidConfig, SourceUnreadable
from neuron.actors.request import SamplingParams
from neuron.runtime.logs import get_logger

log = get_logger(__name__)
_MAX_BYTES = 4 << 20


class GenerationDefaults(msgspec.Struct, frozen=True):
    sampling: SamplingParams = SamplingParams()
    eos_ids: frozenset[int] = frozenset()


def read_generation_defaults(directory: Path, model_id: str) -> GenerationDefaults:
    """Union of the end tokens of both files; absent or unusable values are left out. Raises SourceUnreadable."""
    generation = read_object(directory / "generation_config.json", model_id)
    config = read_object(directory / "config.json", model_id)
    nested = config.get("text_config")
    ids = set(_ids(generation.get("eos_token_id"))) | set(_ids(config.get("eos_token_id")))
    if isinstance(nested, dict):
        ids |= set(_ids(nested.get("eos_token_id")))
    return GenerationDefaults(sampling=_sampling(generation), eos_ids=frozenset(ids))


def read_object(path: Path, model_id: str, *, strict: bool = False) -> dict[str, object]:
    """The JSON object in `path`; {} when there is no such file, or (logged) it holds something else.

    Raises SourceUnreadable when the disk or its permissions stand in the way: what a model says of itself is not
    passed over because it could not be read. `strict`: something else raises InvalidConfig.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(path.name)
        value = msgspec.json.decode(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError(path.name)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise SourceUnreadable(f"{path.name} cannot be read: {error.strerror}.", model_id=model_id) from error
    except (ValueError, RecursionError) as error:
        if strict:
            raise InvalidConfig(f"{path.name} is not a JSON object.", model_id=model_id) from error
        log.warning("a configuration file of the model cannot be used", file=path.name, reason=type(error).__name__)
        return {}
    return value


def _ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool) and item >= 0]


def _sampling(generation: dict[str, object]) -> SamplingParams:
    if generation.get("do_sample") is False:
        return SamplingParams(temperature=0.0, repetition_penalty=_number(generation, "repetition_penalty", 1e-3, 10))
    top_k = _number(generation, "top_k", 0, 1 << 20)
    return SamplingParams(
        temperature=_number(generation, "temperature", 0, 100),
        top_p=_number(generation, "top_p", 0, 1),
        top_k=None if top_k is None else int(top_k),
        min_p=_number(generation, "min_p", 0, 1),
        repetition_penalty=_number(generation, "repetition_penalty", 1e-3, 10),
        presence_penalty=_number(generation, "presence_penalty", -2, 2),
        frequency_penalty=_number(generation, "frequency_penalty", -2, 2),
    )


def _number(values: dict[str, object], key: str, low: float, high: float) -> float | None:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        return None
    return float(value)
