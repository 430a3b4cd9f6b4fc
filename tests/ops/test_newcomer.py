"""From the installed files to a clean stop: key, loaded model, curl, page, metrics, as the guide tells it.

systemd's part is played by the test: it hands over the credentials and listens on the notify socket.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.harness.browser import Browser, find_chromium
from tests.harness.daemon import say

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "ops" / "docs" / "guide.md").read_text(encoding="utf-8")


class Service:
    """The installed daemon, started with the unit's command line."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.etc = root / "etc/neuron"
        self.notifications: list[str] = []

    def start(self) -> None:
        address = str(self.root / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(60.0)
        unit = (self.root / "etc/systemd/system/neuron.service").read_text()
        started = re.search(r"^ExecStart=(.+)$", unit, re.MULTILINE)
        assert started is not None
        _program, *arguments = started[1].replace("/etc/neuron", str(self.etc)).split()
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("NEURON_", "HF_"))}
        environment |= {
            "HOME": str(self.root),
            "NOTIFY_SOCKET": address,
            "CREDENTIALS_DIRECTORY": str(self.etc),
            "NEURON_PORT": "0",
        }
        command = [sys.executable, "-m", "neuron", *arguments, "--enable-scripted"]
        self._log = (self.root / "journal").open("wb")
        self.process = subprocess.Popen(command, env=environment, stderr=self._log, cwd=ROOT)
        self.wait_for("READY=1")
        found = re.search(r"STATUS=listening on .* port (\d+)", "\n".join(self.notifications))
        assert found is not None, self.notifications
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def wait_for(self, line: str) -> None:
        while not any(line in message for message in self.notifications):
            self.notifications.append(self._socket.recv(4096).decode())

    def journal(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.root / "journal").read_text().splitlines()]

    def key(self, name: str) -> str:
        return (self.etc / name).read_text().strip()

    def cli(self, *arguments: str, key: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "NEURON_URL": self.url, "NEURON_API_KEY": key}
        command = [sys.executable, "-m", "neuron", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()
        self._socket.close()


@pytest.fixture(name="service", scope="module")
def _service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("root")
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["sh", str(ROOT / "ops/install.sh"), "--root", str(root), "--no-packages"]
    subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True)
    scripts = root / "models" / "org"
    scripts.mkdir(parents=True)
    (scripts / "name.json").write_text(json.dumps(say("Hello to you.", {"eos": True})))
    with (root / "etc/neuron/neuron.toml").open("a") as config:
        config.write(f'[sources.scripted]\nkind = "scripted"\npath = "{root / "models"}"\n')
        config.write('[[models]]\nid = "scripted:org/name"\nat_start = false\naliases = ["small"]\n')
    service = Service(root)
    service.start()
    yield service
    service.close()


def test_1_it_asks_for_a_key(service: Service) -> None:
    done = service.cli("models", key="wrong")
    assert done.returncode == 1
    assert "API key" in done.stderr
    assert service.cli("models", key=service.key("api-keys")).stdout == "No model is loaded.\n"


def test_2_a_model_is_loaded_with_the_admin_key_only(service: Service) -> None:
    refused = service.cli("load", "small", key=service.key("api-keys"))
    assert refused.returncode == 1
    assert "admin key" in refused.stderr
    loaded = service.cli("load", "small", key=service.key("admin-keys"))
    assert loaded.stdout == "small is loaded.\n", loaded.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_3_the_curl_of_the_guide_is_answered(service: Service) -> None:
    found = re.search(r"^\$ (curl -s http.+?)\n\$ NEURON", GUIDE, re.DOTALL | re.MULTILINE)
    assert found is not None
    command = found[1].replace("http://127.0.0.1:13131", service.url).replace("KEY", service.key("api-keys"))
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "Hello to you."


@pytest.mark.skipif(find_chromium() is None, reason="no chromium on this machine")
def test_4_the_page_shows_the_model(service: Service) -> None:
    program = find_chromium()
    assert program is not None
    with Browser(program) as browser:
        browser.open(service.url + "/")
        browser.wait("document.querySelector('#key-dialog').open")
        browser.tab_to("#key")
        browser.type(service.key("admin-keys"))
        browser.press("Enter")
        browser.wait("document.querySelector('[data-model=\"org/name\"] .badge')?.textContent === 'ready'")


def test_5_metrics_are_scraped_with_a_key(service: Service) -> None:
    headers = {"authorization": f"Bearer {service.key('api-keys')}"}
    with httpx.Client(base_url=service.url, trust_env=False) as client:
        assert client.get("/metrics").status_code == 401
        text = client.get("/metrics", headers=headers).text
    assert 'neuron_requests_total{model="org/name",outcome="stop"} 1.0' in text
    for name in re.findall(r"neuron_[a-z_]+(?=\{|\[| )", GUIDE):
        assert name in text, name


def test_6_it_stops_cleanly(service: Service) -> None:
    started = time.monotonic()
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(60) == 0
    assert time.monotonic() - started < 60
    service.wait_for("STOPPING=1")
    events = [line["event"] for line in service.journal()]
    assert events[-1] == "stopped"
    assert "model unloaded" in events
    assert not [line for line in service.journal() if line["level"] in ("error", "critical")]
    text = (service.root / "journal").read_text()
    assert service.key("api-keys") not in text
    assert service.key("admin-keys") not in text
