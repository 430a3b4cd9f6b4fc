"""Helper processes: what they import, and what is left of them."""

from pathlib import Path

import pytest

from neuron.runtime.confined_pool import ConfinedChild


def test_a_helper_imports_nothing_from_where_the_daemon_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    child = ConfinedChild("neuron.actors.images.decoder_child")
    assert child.alive()
    child.kill()
