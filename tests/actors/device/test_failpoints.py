"""The failpoint seam: inert in production, counted when armed."""

import json
from pathlib import Path

import pytest

from neuron.actors.device.actor import failpoints_flag
from neuron.actors.device.worker.failpoints import Action, Failpoints, failpoints, inert


def _write(path: Path, *entries: dict[str, object]) -> Path:
    path.write_text(json.dumps(entries))
    return path


def test_inert_without_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control file that lies about changes nothing, and the worker reads no environment of its own."""
    control = _write(tmp_path / "control.json", {"point": "worker.decode.step", "action": "raise"})
    monkeypatch.setenv("NEURON_FAILPOINTS", str(control))
    hit = failpoints(None)
    assert hit is inert
    assert hit("worker.decode.step") is None


def test_inert_without_the_file(tmp_path: Path) -> None:
    assert failpoints(str(tmp_path / "absent.json")) is inert


def test_the_flag_is_the_environments_path() -> None:
    assert failpoints_flag({}) is None
    assert failpoints_flag({"NEURON_FAILPOINTS": ""}) is None
    assert failpoints_flag({"NEURON_FAILPOINTS": "/x"}) == Path("/x")


def test_both_present_is_the_negative_control(tmp_path: Path) -> None:
    control = _write(tmp_path / "control.json", {"point": "worker.decode.step", "action": "raise", "text": "zz"})
    with pytest.raises(RuntimeError, match="zz"):
        failpoints(str(control))("worker.decode.step")


def test_start_and_count(tmp_path: Path) -> None:
    control = _write(tmp_path / "c.json", {"point": "worker.reply", "action": "drop_reply", "start": 2, "count": 2})
    hit = Failpoints(control).hit
    assert [hit("worker.reply") for _ in range(4)] == [None, Action.DROP_REPLY, Action.DROP_REPLY, None]
    assert hit("worker.probe") is None


def test_a_changed_file_counts_anew_and_a_broken_one_disarms(tmp_path: Path) -> None:
    control = _write(tmp_path / "c.json", {"point": "worker.reply", "action": "nan"})
    hit = Failpoints(control).hit
    assert hit("worker.reply") is Action.NAN
    _write(control, {"point": "worker.reply", "action": "garbage", "count": 1})
    assert hit("worker.reply") is Action.GARBAGE
    control.write_text("{")
    assert hit("worker.reply") is None
    control.unlink()
    assert hit("worker.reply") is None


def test_points_are_named_in_code(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        Failpoints(_write(tmp_path / "c.json")).hit("worker.decode.stepp")
