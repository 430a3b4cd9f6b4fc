"""The reference daemon's neuron.toml, translated into ours. Used by `neuron config convert`."""

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from neuron.runtime.errors import ConfigError

_SERVER = {"port": "port", "host": "host", "bind": "host"}
_MODEL = {"model_id": "id", "quant": "quant", "tensor_parallel": "tensor_parallel"}
_SOURCE = ("endpoint", "auth_env", "cache_dir")
#: Reference key of [harness.candle.admission] -> ours in [limits], with how to convert the value.
_ADMISSION = {
    "max_queue_depth": "queue_per_model",
    "max_wait_secs": "queue_seconds",
    "max_per_principal": "per_principal",
}


class Converted(msgspec.Struct, frozen=True):
    """`notes` name what has no counterpart."""

    toml: str
    notes: tuple[str, ...]


def convert_file(path: Path) -> Converted:
    """Raises ConfigError when the file is no TOML."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML.") from error
    return convert(tree)


def convert(tree: dict[str, Any]) -> Converted:
    writer = _Writer()
    candle = _table(_table(tree, "harness"), "candle")
    if "default_source" in candle:
        writer.pair("default_source", candle["default_source"])
    writer.table("server", {ours: tree[theirs] for theirs, ours in _SERVER.items() if theirs in tree})
    writer.table("limits", _limits(candle))
    for name, source in _table(candle, "sources").items():
        kept = {key: source[key] for key in _SOURCE if key in source}
        writer.table(f"sources.{_key(name)}", {"kind": "hub", **kept})
        writer.unknown(f"harness.candle.sources.{name}", source, _SOURCE)
    if "hf_cache" in candle and "huggingface" not in _table(candle, "sources"):
        writer.table("sources.huggingface", {"kind": "hub", "auth_env": "HF_TOKEN", "cache_dir": candle["hf_cache"]})
    for model in tree.get("default_models", []):
        entry = {ours: model[theirs] for theirs, ours in _MODEL.items() if model.get(theirs) is not None}
        if model.get("devices"):
            entry["devices"] = [f"cuda:{index}" for index in model["devices"]]
        writer.array("models", entry)
        writer.unknown("default_models", model, (*_MODEL, "devices", "harness"))
    writer.unknown("", tree, (*_SERVER, "harness", "harnesses", "default_models"))
    writer.unknown("harness.candle", candle, ("hf_cache", "default_source", "sources", "admission"))
    writer.unknown("harness.candle.admission", _table(candle, "admission"), tuple(_ADMISSION))
    return Converted("\n".join(writer.lines).strip() + "\n", tuple(writer.notes))


def _limits(candle: dict[str, Any]) -> dict[str, Any]:
    admission = _table(candle, "admission")
    limits = {ours: admission[theirs] for theirs, ours in _ADMISSION.items() if theirs in admission}
    if "queue_seconds" in limits:
        limits["queue_seconds"] = float(limits["queue_seconds"])
    return limits


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.notes: list[str] = []

    def pair(self, key: str, value: Any) -> None:
        # JSON's strings, numbers, booleans and flat lists are TOML's as well.
        self.lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")

    def table(self, name: str, pairs: dict[str, Any], brackets: str = "[{}]") -> None:
        if not pairs:
            return
        self.lines += ["", brackets.format(name)]
        for key, value in pairs.items():
            self.pair(key, value)

    def array(self, name: str, pairs: dict[str, Any]) -> None:
        self.table(name, pairs, "[[{}]]")

    def unknown(self, where: str, table: dict[str, Any], known: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                note = f"{where}.{key} has no counterpart and was left out" if where else f"{key} was left out"
                if note not in self.notes:
                    self.notes.append(note)


def _table(tree: dict[str, Any], key: str) -> dict[str, Any]:
    value = tree.get(key, {})
    return value if isinstance(value, dict) else {}


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() else json.dumps(name)
