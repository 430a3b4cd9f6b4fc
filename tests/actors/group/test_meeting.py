"""The directory in which ranks meet: private, gone afterwards, and swept when a daemon could not."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from neuron.actors.errors import TpInitFailed
from neuron.actors.group.meeting import FORGOTTEN_SECONDS, PREFIX, meeting_place, sweep


def test_it_is_private_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with meeting_place() as place:
        assert place.parent == tmp_path
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        (place / "store").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_it_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(TpInitFailed), meeting_place():
        pass


def test_what_dead_daemons_left_is_swept(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {
        "old": f"{PREFIX}-{ended.pid}-aaaa",
        "fresh": f"{PREFIX}-{ended.pid}-bbbb",
        "alive": f"{PREFIX}-{os.getpid()}-cccc",
        "other": f"{PREFIX}-notes-dddd",
    }
    for key, name in names.items():
        (tmp_path / name).mkdir()
        if key != "fresh":
            past = (tmp_path / name).stat().st_mtime - FORGOTTEN_SECONDS - 1
            os.utime(tmp_path / name, (past, past))
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {names["fresh"], names["alive"], names["other"]}
