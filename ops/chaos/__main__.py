"""`python -m ops.chaos [--count N] [--seed S] [--report FILE]`: random injections; exits 1 when an invariant broke."""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import msgspec

from ops.chaos.runner import Outcome, chaos, summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.chaos", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--report", type=Path, default=Path("chaos-report.jsonl"), help="one JSON object a line")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    say(f"seed {seed}: {options.count} injections")
    outcomes: list[Outcome] = []
    began = time.perf_counter()
    with options.report.open("w", encoding="utf-8") as report, chaos(seed) as (running, neighbour):
        for number in range(1, options.count + 1):
            outcome = running.strike()
            outcomes.append(outcome)
            report.write(json.dumps(said(outcome)) + "\n")
            report.flush()
            if outcome.broken:
                say(f"{number}: row {outcome.row} {outcome.fault}, {outcome.phase} {outcome.moment}: {outcome.broken}")
            elif number % 50 == 0:
                say(f"{number} of {options.count}, {time.perf_counter() - began:.0f} s")
        total = summary(outcomes, seed, neighbour.answers, time.perf_counter() - began)
        report.write(json.dumps({"summary": total}) + "\n")
    say(json.dumps(total, indent=2))
    return 1 if total["invariants_broken"] else 0


def said(outcome: Outcome) -> dict[str, object]:
    """What there is to say of one injection: keys without a value are left out."""
    built: dict[str, object] = msgspec.to_builtins(outcome)
    return {key: value for key, value in built.items() if value not in (None, "", [])}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
