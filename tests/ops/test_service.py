"""What an operator installs: the unit, the install script, the container file, the validation of a daemon."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from neuron.actors.settings import Settings
from neuron.api.access import Access, Role
from neuron.api.startup import ServeOptions, gather_settings
from neuron.runtime.config import load_settings
from tests.harness.daemon import DaemonProcess, say

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "ops" / "systemd" / "neuron.service"
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze on this machine")


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, timeout=60, check=False)


def options() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^([A-Z]\w+)=(.*)$", UNIT.read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


# -- the unit ----------------------------------------------------------------------------------


@needs_systemd
def test_the_unit_is_valid(tmp_path: Path) -> None:
    """The program must exist for the check: the unit is checked with this interpreter's."""
    text = UNIT.read_text().replace("/opt/neuron/bin/neuron", sys.executable)
    (tmp_path / "neuron.service").write_text(text)
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(tmp_path / "neuron.service"))
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "neuron.service" in line]
    assert ours == []
    broken = text.replace("KillMode=mixed", "KillMode=sometimes")
    (tmp_path / "neuron.service").write_text(broken)
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(tmp_path / "neuron.service"))
    assert "kill mode" in done.stdout + done.stderr


@needs_systemd
def test_the_unit_is_exposed_to_two_at_most() -> None:
    """The threshold is in tenths; a bar of 1.0 shows that the check can fail."""
    command = ["security", "--offline=true", "--no-pager", str(UNIT)]
    passed, failed = (analyze(*command, f"--threshold={tenths}") for tenths in (20, 10))
    assert passed.returncode == 0, passed.stdout[-500:]
    assert failed.returncode != 0


def test_the_unit_says_what_the_daemon_does() -> None:
    unit, settings = options(), Settings()
    assert unit["Type"] == ["notify"]
    assert unit["KillMode"] == ["mixed"]
    assert int(unit["TimeoutStopSec"][0]) > settings.server.shutdown_seconds + 50 + 4
    assert float(unit["WatchdogSec"][0]) >= 10
    credentials = {value.partition(":")[0] for value in unit["LoadCredential"]}
    assert credentials == {"api-keys", "admin-keys"}
    assert "/etc/neuron/neuron.toml" in unit["ExecStart"][0]
    assert int(unit["LimitNOFILE"][0]) >= 65_536


# -- installing --------------------------------------------------------------------------------


def install(root: Path) -> str:
    command = ["sh", str(ROOT / "ops/install.sh"), "--root", str(root), "--no-packages", "--prefix", "/srv/neuron"]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_installing_twice_keeps_keys_and_configuration(tmp_path: Path) -> None:
    assert install(tmp_path).count("fresh key") == 2
    etc = tmp_path / "etc/neuron"
    before = {path.name: path.read_text() for path in etc.iterdir()}
    assert set(before) == {"neuron.toml", "api-keys", "admin-keys"}
    assert before["api-keys"] != before["admin-keys"]
    assert stat.S_IMODE((etc / "admin-keys").stat().st_mode) == 0o600
    (etc / "neuron.toml").write_text("[server]\nport = 8000\n")
    assert "fresh key" not in install(tmp_path)
    assert (etc / "neuron.toml").read_text() == "[server]\nport = 8000\n"
    assert (etc / "admin-keys").read_text() == before["admin-keys"]
    assert "ExecStart=/srv/neuron/bin/neuron serve" in (tmp_path / "etc/systemd/system/neuron.service").read_text()
    assert (tmp_path / "usr/share/doc/neuron/guide.md").exists()


def test_what_is_installed_starts_a_keyed_daemon(tmp_path: Path) -> None:
    install(tmp_path)
    etc = tmp_path / "etc/neuron"
    assert load_settings(Settings, etc / "neuron.toml", {}, {}) == Settings()
    environment = {"CREDENTIALS_DIRECTORY": str(etc)}
    access = Access(gather_settings(ServeOptions(config=etc / "neuron.toml"), environment).server)
    assert access.keys.role((etc / "admin-keys").read_text().strip()) is Role.ADMIN


def test_the_install_script_explains_itself() -> None:
    done = subprocess.run(["sh", str(ROOT / "ops/install.sh"), "--what"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "--no-packages" in done.stdout


def test_the_container_file_copies_and_exposes_what_exists() -> None:
    text = (ROOT / "ops/container/Containerfile").read_text()
    assert f"EXPOSE {Settings().server.port}" in text
    assert "USER neuron" in text
    assert "constraints.txt" in text
    assert (ROOT / ".containerignore").exists()


# -- validation --------------------------------------------------------------------------------


def validate(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "NEURON_URL": url}
    command = [str(ROOT / "ops/validate"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)


def test_a_sound_daemon_passes() -> None:
    with DaemonProcess({"sound": say('{"n": 1}', {"eos": True})}, models=[]) as daemon:
        done = validate(daemon.url, "--json", "scripted:test/sound")
        verdict = json.loads(done.stdout)
        assert (done.returncode, verdict["ok"]) == (0, True), done.stdout
        assert len(verdict["probes"]) > 15
        assert daemon.get("/models") == []


def test_a_daemon_with_a_broken_model_fails() -> None:
    fault = {"at": 0, "phase": "decode", "kind": "device", "text": "broken", "times": 99}
    with DaemonProcess({"broken": {"turns": [{"emit": ["x"], "fault": fault}]}, "good": say("x")}, models=[]) as daemon:
        done = validate(daemon.url, "scripted:test/broken")
        assert done.returncode == 1
        assert re.search(r"FAIL POST /v1/chat/completions .*device_fault", done.stdout)
        assert "FAILED:" in done.stdout.splitlines()[-1]
    assert validate("http://127.0.0.1:9").returncode == 2


def test_targets_are_read(tmp_path: Path) -> None:
    done = validate("http://127.0.0.1:9", "org/name,colour=red")
    assert done.returncode == 2
    assert "colour=red" in done.stderr
