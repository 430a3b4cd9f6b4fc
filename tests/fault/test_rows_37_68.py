"""Rows 37-68 of the fault matrix that concern the whole daemon: resources, hostile files, races, manager, helpers.

Rows about readers of files, HTTP, bodies and templates are walked beside that code (ops/docs/faults.md lists where).
"""

import json
import os
import random
import resource
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.clients import RawClient, Stream, check_error, content
from tests.harness.daemon import ROOT, DaemonProcess, say
from tests.harness.rows import Rows, command_line, rows, turn, until

TURNS = [turn("t", when="slow", repeat=True, delay_ms=10)]
TEMPLATES = {
    "loop": "{% for a in range(100000) %}{% for b in range(100000) %}{{ b }}{% endfor %}{% endfor %}",
    "big": "{{ 'a' * 100000000 }}",
    "syntax": "{% if %}",
    "raises": "{{ raise_exception('no') }}",
    "reaches": "{{ messages.__class__.__mro__ }}{{ cycler.__init__.__globals__ }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
}


@pytest.fixture(name="held", scope="module")
def _held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    with rows(tmp_path_factory.mktemp("rows"), TURNS, limits="queue_per_model = 4") as held:
        yield held


def write_script(held: Rows, name: str, script: object) -> Path:
    path: Path = held.daemon.directory / "scripts" / "test" / f"{name}.json"
    path.write_text(json.dumps(script))
    return path


# -- resources of the daemon -----------------------------------------------------------------------


def test_row_41_no_descriptors_left(held: Rows) -> None:
    """Idle connections take every descriptor: nobody spins, and all works again when they are gone."""
    with held.row(neighbour=False):
        limits = resource.prlimit(held.daemon.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{held.daemon.pid}/fd"))
        resource.prlimit(held.daemon.pid, resource.RLIMIT_NOFILE, (used + 10, limits[1]))
        idle = []
        try:
            for _ in range(40):
                sock = socket.socket()
                sock.settimeout(10.0)
                sock.connect(("127.0.0.1", held.daemon.port))
                idle.append(sock)
            until(lambda: len(os.listdir(f"/proc/{held.daemon.pid}/fd")) >= used + 8)
            lines = len(held.daemon.raw_log())
            switches = _voluntary_switches(held.daemon.pid)
            until(lambda: _voluntary_switches(held.daemon.pid) > switches)
            assert len(held.daemon.raw_log()) - lines < 50
        finally:
            for sock in idle:
                sock.close()
            resource.prlimit(held.daemon.pid, resource.RLIMIT_NOFILE, limits)
        until(lambda: held.daemon.process.poll() is None and held.code() == "ok", within_s=20.0)


def _voluntary_switches(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))


def test_row_65_a_prompt_of_megabytes_is_refused_while_health_answers(held: Rows) -> None:
    with held.row(neighbour=False), held.daemon.client() as client:
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(held.code("y " * 2_000_000)))
        thread.start()
        asked = 0
        while thread.is_alive():
            assert client.get("/health").status_code == 200
            asked += 1
        thread.join()
        assert answers == ["context_length_exceeded"]
        assert asked >= 1


def test_conc_05_control_routes_answer_through_everything(held: Rows) -> None:
    with held.row(), Stream(held.daemon, "slow", max_tokens=4000) as running, held.daemon.client() as client:
        running.read(deltas=1)
        for path in ("/health", "/models", "/v1/models", "/version", "/discovery", "/metrics", "/health/live") * 5:
            assert client.get(path).status_code == 200


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "empty", "garbage", "link out", "binary"])
def test_rows_42_to_45_what_lies_where_a_model_should(held: Rows, kind: str) -> None:
    """Typed, at once, and the daemon opens nothing that could hold it."""
    path = held.daemon.directory / "scripts" / "test" / "odd.json"
    path.unlink(missing_ok=True)
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "empty":
            path.write_bytes(b"")
        case "garbage":
            path.write_text("{]")
        case "link out":
            path.symlink_to("/etc/passwd")
        case "binary":
            path.write_bytes(os.urandom(4096))
    try:
        with held.row(neighbour=False):
            response = held.daemon.load("odd")
            assert 400 <= response.status_code < 500, response.text
            check_error(response)
            assert "root:" not in "\n".join(held.daemon.raw_log())
    finally:
        if kind == "directory":
            path.rmdir()
        else:
            path.unlink()


@pytest.mark.parametrize(
    "model_id",
    ["../../etc/x", "scripted:../x", "a/../../b", "org/..", "org/name/../../x", "/etc/passwd", "file:/etc/passwd",
     "org/na%2e%2e", "org/n\u0000", "o/" + "x" * 10_000, "org/name\nfoo", "scripted:/etc/passwd", "nope:org/name"],
)  # fmt: skip
def test_sec_01_model_ids_are_not_paths(held: Rows, model_id: str) -> None:
    with held.daemon.client() as client:
        for path, body in (
            ("/models/load", {"model_id": model_id}),
            ("/models/unload", {"model_id": model_id}),
            ("/v1/chat/completions", {**held.daemon.chat_body("target"), "model": model_id}),
        ):
            response = client.post(path, json=body)
            assert 400 <= response.status_code < 500, (path, response.text)
            assert {"message", "type", "code", "param"} <= set(response.json()["error"])


@pytest.mark.parametrize("name", TEMPLATES)
def test_row_47_hostile_templates(held: Rows, name: str) -> None:
    write_script(held, f"template-{name}", {"chat_template": TEMPLATES[name], **say("x")})
    with held.row():
        assert held.daemon.load(f"template-{name}").status_code in (200, 422)
        response = held.ask(name=f"template-{name}")
        if name == "reaches":
            assert response.status_code in (200, 400)
        else:
            assert 400 <= response.status_code <= 503
            assert response.json()["error"]["code"] in (
                "template_error", "template_timeout", "template_too_large", "context_length_exceeded",
                "model_not_found",
            )  # fmt: skip
        held.daemon.unload(f"template-{name}")


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "add_generation_prompt", "__class__"])
def test_row_48_and_sec_05_template_kwargs_replace_nothing(held: Rows, name: str) -> None:
    with held.row(neighbour=False):
        response = held.ask("plain", chat_template_kwargs={name: "x" * 20})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_value")
        assert response.json()["error"]["param"] == f"chat_template_kwargs.{name}"


# -- helpers ---------------------------------------------------------------------------------------


def test_row_68_a_template_helper_that_is_killed_is_replaced(held: Rows) -> None:
    with held.row():
        helpers = [pid for pid in held.daemon.descendants() if "template_child" in command_line(pid)]
        for pid in helpers:
            os.kill(pid, 9)
        codes = {held.code() for _ in range(4)}
        assert codes <= {"ok", "internal_error"}
        assert held.code() == "ok"


# -- races -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_row_58_loads_unloads_and_requests_race(held: Rows, seed: int) -> None:
    rng = random.Random(seed)
    seen: Counter[int] = Counter()

    def act(what: float) -> None:
        if what < 0.5:
            seen[held.ask().status_code] += 1
        elif what < 0.75:
            seen[held.daemon.load("target", devices=["cpu"]).status_code] += 1
        else:
            seen[held.daemon.unload("target").status_code] += 1

    with held.row():
        for _ in range(8):
            threads = [threading.Thread(target=act, args=(rng.random(),)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert set(seen) <= {200, 404, 409, 429, 503}, seen
        held.resident()
        workers = [pid for pid in held.daemon.descendants() if "device.worker" in command_line(pid)]
        assert len(workers) == 2


def test_row_64_one_start_up_model_of_three_fails() -> None:
    scripts = {"a": say("a"), "broken": {"turns": 3}, "b": say("b")}
    with DaemonProcess(scripts) as daemon:
        activation = daemon.get("/health")["activation"]
        assert (activation["state"], activation["in_progress"], activation["pending"]) == ("ready", None, [])
        assert [failed["model_id"] for failed in activation["failed"]] == ["scripted:test/broken"]
        assert [content(daemon.chat(name)) for name in ("a", "b")] == ["a", "b"]


@pytest.mark.parametrize("device", ["cuda:0", "cuda:7", "cpu:x", "npu", "", "cuda:-1"])
def test_row_63_devices_that_are_not_there(held: Rows, device: str) -> None:
    write_script(held, "elsewhere", say("x"))
    with held.row(neighbour=False):
        response = held.daemon.load("elsewhere", devices=[device])
        assert (response.status_code, check_error(response)["code"]) == (422, "unsupported_device"), response.text
        assert held.daemon.get("/health/live") == {"status": "ok"}


@pytest.mark.parametrize("code", [46, 802, 803, 804])
def test_row_63_a_driver_that_does_not_fit(held: Rows, code: int) -> None:
    """The device library refuses when a fresh process binds its device: the load fails, and the daemon serves on."""
    with held.row():
        assert held.daemon.unload("target").status_code == 200
        for pid in (pid for device, pid in held.daemon.device_pids.items() if device == "cpu"):
            os.kill(pid, signal.SIGKILL)
        until(lambda: "cpu" not in held.daemon.device_pids)
        held.arm({"point": "worker.start", "action": "raise", "error": "accelerator", "code": code})
        response = held.daemon.load("target", devices=["cpu"])
        assert (response.status_code, check_error(response)["code"]) == (503, "device_unavailable"), response.text
        assert held.state() == "failed"


# -- the daemon's manager and its log --------------------------------------------------------------


def test_rows_61_and_62_the_service_manager(tmp_path: Path) -> None:
    """READY once it listens, WATCHDOG while the loop turns (when it stands: row 61), STOPPING with more time."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20.0)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        with DaemonProcess({"m": say("x")}, environment=environment) as daemon:
            heard = ""
            while "READY=1" not in heard or heard.count("WATCHDOG=1") < 3:
                heard += manager.recv(4096).decode() + "\n"
            assert daemon.terminate() == 0
            heard = ""
            while "STOPPING=1" not in heard or "EXTEND_TIMEOUT_USEC=" not in heard:
                heard += manager.recv(4096).decode() + "\n"


def test_row_62_a_manager_that_is_gone() -> None:
    with DaemonProcess({"m": say("x")}, environment={"NOTIFY_SOCKET": "/nonexistent/socket"}) as daemon:
        assert content(daemon.chat("m")) == "x"


def test_row_59_a_log_that_nobody_reads(tmp_path: Path) -> None:
    """The pipe is full and its reader stalled: answers go on, nothing blocks."""
    config = '[logging]\nlevel = "trace"\n'
    with DaemonProcess({"m": say(*"abcdefgh" * 10)}, config) as daemon:
        daemon.pause_reading()
        for _ in range(60):
            assert len(content(daemon.chat("m"))) == 80
        daemon.resume_reading()
        # More than the pipe holds, and no line cut in two: log_lines reads each as an object.
        until(lambda: sum(map(len, daemon.raw_log())) > 1 << 16)
        assert daemon.wait_for_log("done")
        assert daemon.terminate() == 0


def test_one_port_and_no_calls_out(held: Rows) -> None:
    """SECURITY: exactly one listening socket in the whole tree, and no connection to anywhere but its clients."""
    tree = [held.daemon.pid, *held.daemon.descendants()]
    inodes = {os.readlink(link) for pid in tree for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    listening: list[tuple[str, int]] = []
    established: list[tuple[str, int]] = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" not in inodes:
                continue
            port = int(fields[1].rpartition(":")[2], 16)
            (listening if fields[3] == "0A" else established).append((table, port))
    assert listening == [("tcp", held.daemon.port)]
    assert all(port == held.daemon.port for _, port in established)


def test_sec_04_no_error_shows_what_is_inside(held: Rows) -> None:
    """Every kind of refusal that a client can provoke here, searched for paths, addresses and class names."""
    with held.row(neighbour=False), held.daemon.client() as client:
        url = "/v1/chat/completions"
        body = held.daemon.chat_body("target")
        responses = [
            client.get("/nope"),
            client.put(url, json=body),
            client.post(url, content=b"{", headers={"content-type": "application/json"}),
            client.post(url, json=[1]),
            client.post(url, json={**body, "temperature": "hot"}),
            client.post(url, json={**body, "messages": []}),
            client.post(url, json={**body, "model": "no/such"}),
            client.post(url, json={**body, "logit_bias": {"99999999": 1}}),
            client.post(url, content=b"x", headers={"content-type": "text/plain"}),
            client.post("/v1/responses", json={"model": "no/such", "input": 3}),
            client.post("/models/load", json={"model_id": "scripted:test/absent"}),
            client.post("/models/unload", json={"model_id": "scripted:test/never"}),
            client.get("/models/no%2Fsuch/endpoint"),
        ]
        held.arm(
            {"point": "worker.decode.step", "action": "raise", "error": "value", "text": "/secret/x at 0xdeadbeef"}
        )
        responses.append(client.post(url, json=body))
        for response in responses:
            assert 400 <= response.status_code < 600, (response.request.url, response.request.content)
            error = response.json()["error"]
            shown = str(error["message"])
            for mark in (
                "0x",
                "Traceback",
                "/secret",
                "psm_",
                "Error(",
                "neuron.",
                str(held.daemon.directory),
                str(ROOT),
            ):
                assert mark not in shown, response.text


def test_a_raw_client_that_sends_rubbish_costs_nothing(held: Rows) -> None:
    rng = random.Random(3)
    with held.row():
        for _ in range(60):
            with RawClient(held.daemon) as client:
                head = rng.choice(
                    [b"", b"GET / HTTP/1.1\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"]
                )
                client.socket.sendall(head + rng.randbytes(rng.randrange(1, 400)))
