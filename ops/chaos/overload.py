"""`python -m ops.chaos.overload`: many more clients than the queue holds; answers and 429 only, /health all along."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.harness.daemon import DaemonProcess
from tests.harness.rows import TARGET, rows, turn

QUEUE = 32
PIECES = ("a", "b", "c", "d")


async def overload(daemon: DaemonProcess, clients: int, seconds: float) -> dict[str, Any]:
    """Each client asks again as soon as it is answered; a refused one waits a second at most."""
    statuses: Counter[int] = Counter()
    wrong: list[str] = []
    health: list[float] = []
    refusals: list[float] = []
    end = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=clients + 1)
    async with httpx.AsyncClient(base_url=daemon.url, timeout=120.0, trust_env=False, limits=limits) as http:

        async def client(number: int) -> None:
            body, headers = daemon.chat_body(TARGET, f"client {number}"), {"x-helexa-account-id": f"c{number}"}
            while time.monotonic() < end:
                before = time.perf_counter()
                response = await http.post("/v1/chat/completions", json=body, headers=headers)
                statuses[response.status_code] += 1
                if response.status_code == 429:
                    refusals.append(time.perf_counter() - before)
                    await asyncio.sleep(min(1.0, float(response.headers["retry-after"])))
                elif response.status_code == 200 and '"abcd"' not in response.text:
                    wrong.append(response.text[:200])

        async def watch() -> None:
            while time.monotonic() < end:
                before = time.perf_counter()
                (await http.get("/health")).raise_for_status()
                health.append(time.perf_counter() - before)
                await asyncio.sleep(0.05)

        await asyncio.gather(watch(), *(client(number) for number in range(clients)))
        models = (await http.get("/health")).json()["models"]
    figures = next(model for model in models if TARGET in model["id"])
    return {
        "clients": clients,
        "queue": QUEUE,
        "seconds": seconds,
        "statuses": dict(statuses),
        "wrong": wrong,
        "health_ms": _spread(health),
        "refusal_ms": _spread(refusals),
        "permits_held": figures["in_flight"] + figures["queue_depth"],
        "counted_refusals": figures["rejected_queue_full"],
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    ranked = sorted(round(value * 1000, 1) for value in seconds) or [0.0]
    return {
        name: ranked[min(len(ranked) - 1, int(share * len(ranked)))] for name, share in (("p50", 0.5), ("p99", 0.99))
    }


def run(clients: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="neuron-overload-") as directory:
        script = [turn(*PIECES, when="client", delay_ms=2)]
        with rows(Path(directory), script, limits=f"queue_per_model = {QUEUE}\nqueue_seconds = 120.0") as held:
            return asyncio.run(overload(held.daemon, clients, seconds))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.chaos.overload", description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(arguments)
    figures = run(options.clients, options.seconds)
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if set(figures["statuses"]) <= {200, 429} and not figures["wrong"] and not figures["permits_held"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
