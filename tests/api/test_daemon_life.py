"""The daemon's life from outside: long streams, clients that leave, logs, signals, ports, configuration mistakes."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.daemon import ROOT, DaemonProcess, say

ENDLESS = say("tick ", repeat=True, delay_ms=20)


OWN = {"turns": [{"when": f"client {n}!", "emit": [f"for {n}"], "delay_ms": 50} for n in range(6)]}
SHARED: dict[str, Any] = {
    "endless": ENDLESS,
    "own": OWN,
    "slow": say("x", prefill_ms_per_token=20),
    "plain": say("x"),
}


@pytest.fixture(name="shared", scope="module")
def _shared() -> Iterator[DaemonProcess]:
    """For the tests that leave the daemon as they found it."""
    with DaemonProcess(SHARED, "[server]\nshutdown_seconds = 0.5\n") as daemon:
        yield daemon


def stream_in_thread(daemon: DaemonProcess, name: str, **fields: Any) -> tuple[threading.Thread, list[str]]:
    lines: list[str] = []

    def read() -> None:
        try:
            with daemon.client(timeout=60.0) as client:
                payload = daemon.chat_body(name, stream=True, **fields)
                with client.stream("POST", "/v1/chat/completions", json=payload) as response:
                    lines.extend(response.iter_lines())
        except httpx.HTTPError as error:
            lines.append(f"broken: {type(error).__name__}")

    thread = threading.Thread(target=read)
    thread.start()
    return thread, lines


@pytest.mark.slow
def test_sse_04_streams_longer_than_a_minute() -> None:
    """One piece a second for 75 s, and a first token that takes 65 s, side by side on two devices."""
    scripts = {
        "long": say(*[f"p{n} " for n in range(75)], delay_ms=1000),
        "late": say("x", prefill_ms_per_token=65_000 / 60),
    }
    config = '[[models]]\nid = "scripted:test/late"\ndevices = ["cpu:1"]\n[limits]\nstep_seconds = 120.0\n'
    with DaemonProcess(scripts, config, models=["long"]) as daemon:
        threads = [stream_in_thread(daemon, name) for name in ("long", "late")]
        for thread, _ in threads:
            thread.join(110)
        for (_, lines), pieces in zip(threads, (75, 1), strict=True):
            chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            contents = [
                choice["delta"]["content"]
                for chunk in chunks
                for choice in chunk["choices"]
                if choice["delta"].get("content")
            ]
            assert len(contents) == pieces
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
            assert [line for line in lines if line][-1] == "data: [DONE]"


def _in_flight(daemon: DaemonProcess, name: str) -> int:
    loads = {load["id"]: load["in_flight"] for load in daemon.get("/health")["models"]}
    return int(loads[f"test/{name}"])


def test_sse_07_a_client_that_leaves_frees_the_model(shared: DaemonProcess) -> None:
    with shared.client() as client:
        payload = shared.chat_body("endless", stream=True, max_tokens=4000)
        with client.stream("POST", "/v1/chat/completions", json=payload, headers={"x-request-id": "gone"}) as response:
            for number, line in enumerate(line for line in response.iter_lines() if line.startswith("data: {")):
                assert line
                if number == 5:
                    break
    answer = shared.chat("endless", max_tokens=1)
    assert answer.status_code == 200
    terminal = [line for line in shared.log_lines(req_id="gone") if line["event"] in ("done", "failed")]
    assert [(line["event"], line["error_code"]) for line in terminal] == [("failed", "client_disconnected")]
    deadline = time.monotonic() + 5.0
    while _in_flight(shared, "endless"):
        assert time.monotonic() < deadline


def test_conc_03_a_buffered_request_whose_client_is_gone(shared: DaemonProcess) -> None:
    body = json.dumps(shared.chat_body("endless", max_tokens=4000)).encode()
    with socket.create_connection(("127.0.0.1", shared.port)) as sock:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}X-Request-Id: gone-buffered\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        shared.wait_for_log("prefill complete", req_id="gone-buffered")
    assert shared.wait_for_log("failed", req_id="gone-buffered")["error_code"] == "client_disconnected"
    assert shared.chat("endless", max_tokens=1).status_code == 200


def test_two_clients_get_their_own_answers(shared: DaemonProcess) -> None:
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        with shared.client(headers={"x-helexa-account-id": str(number)}) as client:
            answer = client.post("/v1/chat/completions", json=shared.chat_body("own", f"client {number}!"))
        answers[number] = answer.json()["choices"][0]["message"]["content"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == {number: f"for {number}" for number in range(6)}


def test_per_principal_share_is_a_429() -> None:
    with DaemonProcess({"endless": ENDLESS}, "[server]\nshutdown_seconds = 0.5\n") as daemon:
        running = [stream_in_thread(daemon, "endless", max_tokens=4000) for _ in range(2)]
        daemon.wait_for_log("starting")
        while sum(load["in_flight"] + load["queue_depth"] for load in daemon.get("/health")["models"]) < 2:
            time.sleep(0.01)
        refused = daemon.chat("endless")
        assert (refused.status_code, refused.json()["error"]["kind"]) == (429, "per_principal")
        assert int(refused.headers["retry-after"]) >= 1
        with daemon.client() as client:
            other = {"x-helexa-account-id": "other", "x-helexa-key-id": "k"}
            payload = daemon.chat_body("endless", stream=True, max_tokens=1)
            with client.stream("POST", "/v1/chat/completions", json=payload, headers=other) as response:
                assert response.status_code == 200
        assert daemon.terminate() == 0
        for thread, _ in running:
            thread.join(30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_life_01_stop_while_generating(number: signal.Signals) -> None:
    with DaemonProcess({"endless": ENDLESS}, "[server]\nshutdown_seconds = 1.0\n") as daemon:
        pids = daemon.descendants()
        thread, lines = stream_in_thread(daemon, "endless", max_tokens=4000)
        daemon.wait_for_log("prefill complete")
        daemon.send_signal(number)
        daemon.wait_for_log("stopping")
        refused = _status_while_stopping(daemon)
        assert refused in (503, None)
        assert daemon.process.wait(20) == 0
        thread.join(10)
        errors = [json.loads(line[6:])["error"]["code"] for line in lines if '"error"' in line]
        assert errors == ["shutting_down"]
        assert "data: [DONE]" not in lines
        assert all(not _alive(pid) for pid in pids)
        assert len(daemon.log_lines("stopped")) == 1


def _status_while_stopping(daemon: DaemonProcess) -> int | None:
    try:
        response = daemon.chat("endless")
    except httpx.HTTPError:
        return None
    assert response.json()["error"]["code"] == "shutting_down"
    assert response.headers["retry-after"] == "15"
    return response.status_code


def _alive(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_life_01_a_second_signal_exits_at_once() -> None:
    with DaemonProcess({"endless": ENDLESS}) as daemon:
        thread, _ = stream_in_thread(daemon, "endless", max_tokens=4000)
        daemon.wait_for_log("prefill complete")
        daemon.send_signal(signal.SIGTERM)
        daemon.wait_for_log("stopping")
        daemon.send_signal(signal.SIGTERM)
        assert daemon.process.wait(5) == 128 + signal.SIGTERM
        thread.join(10)


def test_life_01_idle_stop_is_orderly() -> None:
    with DaemonProcess({"plain": say("x")}) as daemon:
        pids = daemon.descendants()
        assert daemon.terminate() == 0
        assert all(not _alive(pid) for pid in pids)


def test_a_thread_that_never_comes_back_does_not_keep_the_daemon() -> None:
    with DaemonProcess({"plain": say("x")}, unkind=["stuck-thread"]) as daemon:
        assert daemon.terminate() == 0
        assert daemon.log_lines("stopped") != []


def test_ready_and_health_while_draining() -> None:
    with DaemonProcess({"endless": ENDLESS}, "[server]\nshutdown_seconds = 2.0\n") as daemon:
        thread, _ = stream_in_thread(daemon, "endless", max_tokens=4000)
        daemon.wait_for_log("prefill complete")
        daemon.send_signal(signal.SIGTERM)
        daemon.wait_for_log("stopping")
        with daemon.client() as client:
            assert client.get("/health/ready").status_code == 503
            assert client.get("/health/live").status_code == 200
            assert client.get("/health").json()["status"] == "draining"
        daemon.process.wait(20)
        thread.join(10)


def test_life_07_a_taken_port_ends_the_second_before_it_loads(shared: DaemonProcess) -> None:
    done = serve("--port", str(shared.port), "--model", "demo:huggingfacetb/smollm2-135m-instruct")
    assert done.returncode != 0
    assert [line for line in done.stderr.splitlines() if line] == [
        f"neuron: port {shared.port} on 127.0.0.1 is taken by another program."
    ]
    assert shared.chat("plain").status_code == 200


def serve(
    *arguments: str, environment: dict[str, str] | None = None, bare: bool = False
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "neuron", *([] if bare else ["serve"]), *arguments]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NEURON_")}
    return subprocess.run(
        command, cwd=ROOT, env={**kept, **(environment or {})}, capture_output=True, text=True, timeout=5, check=False
    )


@pytest.mark.parametrize("bare", [True, False])
def test_a_mistake_ends_serve_with_one_clear_line(tmp_path: Path, bare: bool) -> None:
    path = tmp_path / "neuron.toml"
    path.write_text("[server]\nprot = 1\n")
    done = serve("--config", str(path), bare=bare)
    assert done.returncode != 0
    assert done.stderr.splitlines() == [f"neuron: {path}: unknown key 'server.prot' (did you mean 'port'?)."]


def test_every_line_of_every_process_is_a_json_object() -> None:
    scripts = {"plain": say("x"), "fault": say("a", fault={"at": 1, "phase": "decode", "kind": "kill"})}
    with DaemonProcess(scripts, arguments=["--log-level", "trace"]) as daemon:
        daemon.chat("plain")
        daemon.chat("plain", temperature=9)
        daemon.chat("none")
        daemon.chat("fault", stream=True)
        daemon.wait_state("fault", "poisoned")
        daemon.unload("fault")
        daemon.load("fault")
        daemon.terminate()
        lines = daemon.log_lines()
        assert len(lines) > 20
        assert all({"timestamp", "level", "event", "logger", "pid"} <= set(line) for line in lines), [
            line for line in lines if not {"timestamp", "level", "event", "logger", "pid"} <= set(line)
        ]


def test_log_02_callers_cannot_forge_records(shared: DaemonProcess) -> None:
    headers = {
        b"content-type": b"application/json",
        b"x-request-id": b'x","level":"critical',
        b"user-agent": b"\x1b[31mred",
    }
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}
    with shared.client() as client:
        for model in (
            'x","level":"critical',
            "x\n{}",
            "org/name\nfoo",
            "../../etc/x",
            "huggingface:../x",
            "o/n\u0000",
        ):
            payload = {**shared.chat_body("plain"), "model": model}
            response = client.post("/v1/chat/completions", content=json.dumps(payload).encode(), headers=headers)
            assert 400 <= response.status_code < 500
            assert response.headers["x-request-id"].startswith("req_")
        client.post(
            "/v1/chat/completions", json=shared.chat_body("plain", messages=[{"role": "user", "content": [image]}])
        )
    assert shared.log_lines(level="critical") == []
    assert max(len(line) for line in shared.raw_log()) < 4000


def test_sec_04_neither_prompts_nor_keys_nor_paths_are_shown(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-test-123\n")
    marker = "marker-7f3a"
    config = f"[server]\napi_keys_file = {json.dumps(str(keys))}\nadmin_keys_file = {json.dumps(str(keys))}\n"
    scripts = {
        "plain": say(marker),
        "host": say("a", fault={"at": 1, "phase": "decode", "kind": "host", "text": f"/secret {marker} 0xdeadbeef"}),
    }
    with DaemonProcess(scripts, config, wait=False) as daemon:
        headers = {"authorization": "Bearer sk-test-123"}
        daemon.wait_for_log("activation complete", 30)
        with daemon.client(headers=headers) as client:
            bodies = [
                client.post("/v1/chat/completions", json=daemon.chat_body(name, marker)).text
                for name in ("plain", "host", "none")
            ]
            bodies.append(client.post("/models/load", json={"model_id": "demo:no/such"}).text)
            bodies.append(client.post("/models/load", json={"model_id": "scripted:test/absent"}).text)
        for body in bodies[1:]:
            assert "error" in body
            assert not any(
                word in body for word in ("Traceback", "0x", "psm_", "/secret", str(daemon.directory), "sk-test")
            )
        log = "\n".join(line for line in daemon.raw_log() if '"level":"info"' in line)
        assert marker not in log
        assert "sk-test" not in "\n".join(daemon.raw_log())


def test_control_routes_answer_while_a_device_is_stuck(shared: DaemonProcess) -> None:
    thread, _ = stream_in_thread(shared, "slow")
    shared.wait_for_log("starting")
    with shared.client(timeout=5.0) as client:
        for _ in range(10):
            for path in (
                "/health",
                "/models",
                "/v1/models",
                "/discovery",
                "/models/test%2Fslow/endpoint",
                "/metrics",
            ):
                assert client.get(path).status_code == 200
        assert _in_flight(shared, "slow") == 1
    thread.join(30)


def test_a_port_of_the_command_line_beats_the_environment_and_the_file() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    with DaemonProcess(config="[server]\nport = 1\n", environment={"NEURON_PORT": "2"}, port=free) as daemon:
        assert daemon.get("/health/live") == {"status": "ok"}


def test_overload_is_200_or_429_and_leaves_no_permits_behind() -> None:
    config = "[limits]\nqueue_per_model = 3\nper_principal = 100\n"
    with DaemonProcess({"busy": say("a", "b", delay_ms=5)}, config) as daemon:
        statuses: list[int] = []

        def ask() -> None:
            with daemon.client() as client:
                body = daemon.chat_body("busy")
                statuses.extend(client.post("/v1/chat/completions", json=body).status_code for _ in range(4))

        threads = [threading.Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert set(statuses) == {200, 429}
        assert len(statuses) == 64
        load = daemon.get("/health")["models"][0]
        assert load["rejected_queue_full"] == statuses.count(429)
        while (load := daemon.get("/health")["models"][0])["in_flight"] + load["queue_depth"]:
            time.sleep(0.01)
        assert daemon.chat("busy").status_code == 200
