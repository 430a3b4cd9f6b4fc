"""Scripts for the scripted backend, written to files; shared by all levels of the harness."""

import json
from pathlib import Path
from typing import Any

from neuron.actors.scripted import Script, parse_script

EOS: dict[str, Any] = {"eos": True}


def turn(*emit: str | dict[str, Any], **keys: Any) -> dict[str, Any]:
    """One entry of `turns`; `emit` as in the file."""
    return {"emit": list(emit), **keys}


def fault(kind: str, at: int = 0, phase: str = "decode", text: str = "", times: int = 1) -> dict[str, Any]:
    return {"kind": kind, "at": at, "phase": phase, "text": text, "times": times}


def script_json(*turns: dict[str, Any], **keys: Any) -> bytes:
    return json.dumps({"turns": list(turns), **keys}).encode()


def script(*turns: dict[str, Any], **keys: Any) -> Script:
    return parse_script(script_json(*turns, **keys))


def write_script(directory: Path, name: str, *turns: dict[str, Any], **keys: Any) -> Path:
    path = directory / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(script_json(*turns, **keys))
    return path
