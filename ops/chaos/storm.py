"""`python -m ops.chaos.storm`: loads, unloads, requests, cancellations and kills at once, in random order.

Where `ops.chaos` strikes one blow at a time, here several things happen to three models on two devices in the same
moment. What must hold is looked at from outside, after each burst and at the end.
"""

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx

from neuron.runtime import shm
from tests.harness.daemon import DaemonProcess
from tests.harness.rows import Holding, alive, turn, until

NAMES = ("a", "b", "c")
DEVICES = ("cpu", "cpu:1")
ANSWER = "".join("abcdefgh")
SCRIPTS = {name: {"turns": [turn(*ANSWER, delay_ms=4, prefill_ms_per_token=0.1)]} for name in NAMES}
LIMITS = (
    'default_source = "scripted"\n[limits]\nstep_seconds = 3.0\nload_stall_seconds = 20.0\nprefill_chunk_tokens = 32\n'
)
MODELS = "".join(
    f'[[models]]\nid = "scripted:test/{name}"\naliases = ["alias-{name}"]\nat_start = false\n' for name in NAMES
)
#: What else a daemon may be told to do by itself meanwhile.
WEATHERS = {
    "manual": "",
    "recovery": '[recovery]\nmode = "auto"\nrestart_budget = 1000\n',
    "residency": "[residency]\nload_on_request = true\nkeep_alive_seconds = 0.3\n",
}
GONE = ("worker_died", "worker_unresponsive", "tp_init_failed", "shutting_down")
#: What a client may see of each action, beside 200.
REFUSALS = {
    # A poisoned pair that is asked for on one device alone is a contradiction.
    "load": {"already_loaded", "model_unloading", "restart_limit", "unsupported_device", *GONE},
    "unload": {"model_not_found"},
    "chat": {
        *("model_not_found", "model_loading", "model_unloading", "model_poisoned", "restart_limit"),
        *("rate_limit_exceeded", *GONE),
    },
}
ACTIONS = ("load", "load", "pair", "unload", "unload", "chat", "chat", "stream", "stream", "leave", "kill", "stop")
SIGNALS = {"kill": (signal.SIGKILL, signal.SIGSEGV), "stop": (signal.SIGSTOP,)}
HEALTH_S = 0.02


class Watch(threading.Thread):
    """Asks /health all the time. `took`: milliseconds of each answer."""

    def __init__(self, daemon: DaemonProcess) -> None:
        super().__init__(daemon=True)
        self._daemon = daemon
        self._over = threading.Event()
        self.took: list[float] = []
        self.broken: list[str] = []

    def run(self) -> None:
        with self._daemon.client(timeout=30.0) as client:
            while not self._over.wait(HEALTH_S):
                began = time.perf_counter()
                try:
                    body = client.get("/health").raise_for_status().json()
                except httpx.HTTPError as error:
                    self.broken.append(f"/health: {type(error).__name__}")
                    continue
                self.took.append((time.perf_counter() - began) * 1e3)
                ids = [entry["id"] for entry in body["models"]]
                if len(set(ids)) != len(ids):
                    self.broken.append(f"/health names a model twice: {ids}")

    def end(self) -> None:
        self._over.set()
        self.join()


class Storm:
    def __init__(self, daemon: DaemonProcess, seed: int) -> None:
        self._daemon = daemon
        self._rng = random.Random(seed)
        self._asked = 0
        self._sent: list[str] = []
        self.seen: Counter[str] = Counter()
        self.broken: list[str] = []

    def burst(self, number: int) -> None:
        """Some actions, begun within a moment of each other, until the last of them is over."""
        chosen = [self._rng.choice(ACTIONS) for _ in range(self._rng.randint(3, 8))]
        with ThreadPoolExecutor(len(chosen)) as pool:
            for future in [pool.submit(self._act, *self._draw(action)) for action in chosen]:
                try:
                    future.result(timeout=60.0)
                except Exception as error:
                    self.broken.append(f"burst {number}: {type(error).__name__}: {error}")

    def _draw(self, action: str) -> tuple[str, str, str, str, float]:
        name = self._rng.choice(NAMES)
        spelling = self._rng.choice((f"test/{name}", f"scripted:test/{name}", f"alias-{name}"))
        self._asked += 1
        return action, spelling, self._rng.choice(DEVICES), f"storm-{self._asked}", self._rng.random() * 0.25

    def _act(self, action: str, model: str, device: str, req_id: str, delay_s: float) -> None:
        time.sleep(delay_s)
        if action in SIGNALS:
            pid = self._daemon.device_pids.get(device)
            if pid is not None and alive(pid):
                os.kill(pid, random.choice(SIGNALS[action]))
            return
        headers = {"x-request-id": req_id, "x-helexa-account-id": req_id}
        with self._daemon.client(timeout=45.0, headers=headers) as client:
            if action in ("load", "pair", "unload"):
                where: dict[str, dict[str, Any]] = {
                    "load": {"devices": [device]},
                    "pair": {"devices": DEVICES, "tensor_parallel": 2},
                }
                route = "unload" if action == "unload" else "load"
                response = client.post(f"/models/{route}", json={"model_id": model, **where.get(action, {})})
                self._judge(route, response.status_code, response.json())
                return
            self._sent.append(req_id)
            chat = self._daemon.chat_body("a", "word " * 30, stream=action != "chat") | {"model": model}
            if action == "chat":
                response = client.post("/v1/chat/completions", json=chat)
                self._judge("chat", response.status_code, response.json())
            else:
                self._stream(client, chat, leave_after=self._asked % 5 if action == "leave" else None)

    def _stream(self, client: httpx.Client, chat: dict[str, Any], leave_after: int | None) -> None:
        with client.stream("POST", "/v1/chat/completions", json=chat) as response:
            if response.status_code != 200:
                self._judge("chat", response.status_code, json.loads(response.read()))
                return
            frames: list[str] = []
            for line in response.iter_lines():
                if line.startswith("data: "):
                    frames.append(line[6:])
                if leave_after is not None and len(frames) > leave_after:
                    self.seen["left"] += 1
                    return
        errors = [json.loads(frame)["error"]["code"] for frame in frames if '"error"' in frame]
        done = frames.count("[DONE]")
        if len(errors) + done != 1 or (frames[-1] != "[DONE]") is not bool(errors):
            self.broken.append(f"a stream that ends in {frames[-2:]}")
        self._judge("chat", 503 if errors else 200, {"error": {"code": errors[0]}} if errors else {})

    def _judge(self, action: str, status: int, body: dict[str, Any]) -> None:
        code = "ok" if status == 200 else str(body["error"]["code"])
        self.seen[f"{action} {code}"] += 1
        if status != 200 and code not in REFUSALS[action]:
            self.broken.append(f"{action}: {status} {code}")
        text = body["choices"][0]["message"]["content"] if "choices" in body else ANSWER
        if text != ANSWER:
            self.broken.append(f"an answer: {text!r}")

    def crowd(self) -> None:
        """As many requests at once as bring every helper process to life."""
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self._daemon.chat, NAMES))

    # -- what must hold ------------------------------------------------------------------------

    def quiet(self) -> list[str]:
        """Once nothing is asked any more: what the routes say of the models, and what is left of the requests."""
        found = []
        try:
            until(lambda: not self._disagreement(), 15.0)
        except AssertionError:
            found.append(f"the routes disagree: {self._disagreement()}")
        ends = Counter(
            line["req_id"]
            for line in self._daemon.log_lines()
            if line["event"] in ("done", "failed") and "req_id" in line
        )
        odd = {req_id: ends[req_id] for req_id in self._sent if ends[req_id] != 1}
        if odd:
            found.append(f"terminal lines: {odd}")
        segments = [name for name in os.listdir(shm.DIRECTORY) if name.startswith(f"{shm.PREFIX}-{self._daemon.pid}-")]
        return found + segments

    def _disagreement(self) -> str:
        resident = {entry["id"]: entry["state"] for entry in self._daemon.get("/models")}
        health = self._daemon.get("/health")
        figures = {entry["id"]: entry["state"] for entry in health["models"]}
        # Models that would load on request are listed as well.
        listed = {entry["id"] for entry in self._daemon.get("/v1/models")["data"] if entry["status"] != "unloaded"}
        waiting = [entry["id"] for entry in health["models"] if entry["in_flight"] or entry["queue_depth"]]
        moving = [state for state in resident.values() if state in ("loading", "recovering", "unloading")]
        if waiting or moving or resident != figures or set(resident) != listed:
            return f"/models {resident}, /health {figures}, /v1/models {sorted(listed)}, waiting {waiting}"
        return ""

    def recover(self) -> list[str]:
        """Everything is unloaded, and loads and answers again."""
        found = []
        for name in NAMES:
            self._daemon.unload(name)
        for name in NAMES:
            deadline = time.monotonic() + 90.0
            while True:
                response = self._daemon.load(name)
                if response.status_code == 200 or time.monotonic() > deadline:
                    break
                time.sleep(1.0)  # The limit of restarts passes.
            answer = self._daemon.chat(name)
            if answer.status_code != 200 or answer.json()["choices"][0]["message"]["content"] != ANSWER:
                found.append(f"{name} after the storm: {response.text[:200]} {answer.text[:200]}")
        return found


def storm(weather: str, bursts: int, seed: int) -> dict[str, Any]:
    """One daemon under one weather; the figures and every broken invariant."""
    with DaemonProcess(SCRIPTS, LIMITS + WEATHERS[weather] + MODELS, models=[]) as daemon:
        running, watch = Storm(daemon, seed), Watch(daemon)
        running.recover()
        running.crowd()
        before = Holding.of(daemon)
        watch.start()
        for number in range(bursts):
            running.burst(number)
            if daemon.process.poll() is not None:
                break
        watch.end()
        if daemon.process.poll() is not None:
            raise SystemExit(
                f"the daemon ended with {daemon.process.returncode}:\n" + "\n".join(daemon.raw_log()[-40:])
            )
        broken = [*running.broken, *watch.broken, *running.quiet(), *running.recover()]
        took = sorted(watch.took)
        try:
            until(lambda: not _beyond(daemon, before), 10.0)
        except AssertionError:
            broken += _beyond(daemon, before)
        pids = daemon.descendants()
        status = daemon.terminate()
        left = [pid for pid in pids if alive(pid)]
        if left or status != 0:
            broken.append(f"after SIGTERM: status {status}, {len(left)} processes left")
    return {
        "weather": weather,
        "seed": seed,
        "bursts": bursts,
        "seen": dict(sorted(running.seen.items())),
        "health_p50_ms": round(took[len(took) // 2], 1),
        "health_p99_ms": round(took[len(took) * 99 // 100], 1),
        "health_max_ms": round(took[-1], 1),
        "broken": broken[:20],
        "broken_count": len(broken),
    }


def _beyond(daemon: DaemonProcess, before: Holding) -> list[str]:
    """Beyond what the daemon held when the same models were resident. One helper process more is its pool at work."""
    now = Holding.of(daemon)
    more = now.children - before.children
    if now.zombies or more not in (-1, 0, 1):
        return now.beyond(before)
    return replace(now, children=before.children, fds=now.fds - more).beyond(before)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.chaos.storm", description=__doc__)
    parser.add_argument("--bursts", type=int, default=70, help="for each weather")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--weather", choices=sorted(WEATHERS), action="append")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    worst = 0
    for weather in options.weather or list(WEATHERS):
        outcome = storm(weather, options.bursts, seed)
        worst += outcome["broken_count"]
        sys.stdout.write(json.dumps(outcome, indent=2) + "\n")
        sys.stdout.flush()
    return 1 if worst else 0


if __name__ == "__main__":
    raise SystemExit(main())
