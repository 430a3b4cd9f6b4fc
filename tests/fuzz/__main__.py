"""`python -m tests.fuzz TARGET --count N [--seed S] [--engine own|atheris]`: a long run by hand, with its figures."""

import argparse
import json
import resource
import sys
import time
import types
from pathlib import Path

from tests.fuzz.mutate import Mutator
from tests.fuzz.targets import TARGETS, Target

READERS = (
    "neuron.kernels.formats.",
    "neuron.runtime.frames",
    "neuron.api.json_body",
    "neuron.api.validate.",
    "neuron.actors.text.parser",
    "neuron.actors.text.tool_calls",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("own", "atheris"), default="own")
    options = parser.parse_args()
    target = TARGETS[options.target]
    if options.engine == "atheris":
        guided(target, options.count, options.seed)
    else:
        figures = own(target, options.count, options.seed, Path(f"crash-{target.name}"))
        sys.stdout.write(json.dumps(figures) + "\n")
    return 0


def own(target: Target, count: int, seed: int, keep: Path | None = None) -> dict[str, object]:
    """Figures of a run; the error of an input that breaks the target is raised, the input written to `keep`."""
    mutator = Mutator(target.corpus, target.tokens, seed)
    accepted, slowest_s, began = 0, 0.0, time.perf_counter()
    for _ in range(count):
        data = mutator.make()
        before = time.perf_counter()
        try:
            accepted += target.run(data)
        except BaseException:
            if keep is not None:
                keep.write_bytes(data)
            raise
        slowest_s = max(slowest_s, time.perf_counter() - before)
    return {
        "target": target.name,
        "engine": "own",
        "seed": seed,
        "executions": count,
        "accepted": accepted,
        "seconds": round(time.perf_counter() - began, 1),
        "slowest_ms": round(slowest_s * 1000, 1),
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def readers() -> list[types.FunctionType]:
    """The functions and methods of the modules under test; all that is imported would take minutes to instrument."""
    found: list[types.FunctionType] = []
    for name, module in sorted(sys.modules.items()):
        if name.startswith(READERS):
            classes = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name]
            members = [member for holder in (module, *classes) for member in vars(holder).values()]
            found += [m for m in members if isinstance(m, types.FunctionType) and m.__module__ == name]
    return found


def guided(target: Target, count: int, seed: int) -> None:
    """libFuzzer under atheris (an optional extra): coverage-guided, its own report on stderr. Does not return."""
    import atheris

    for function in readers():
        atheris.instrument_func(function)
    corpus = str(Path(__file__).parent / "corpus" / target.name)
    new = Path(f"fuzz-{target.name}")
    new.mkdir(exist_ok=True)
    arguments = [
        sys.argv[0],
        f"-runs={count}",
        f"-seed={seed or 1}",
        "-rss_limit_mb=512",
        "-timeout=1",
        str(new),
        corpus,
    ]

    def one(data: bytes) -> None:
        target.run(data)

    atheris.Setup(arguments, one)
    atheris.Fuzz()


if __name__ == "__main__":
    raise SystemExit(main())
