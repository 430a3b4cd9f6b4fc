"""The stages by name, with the time each may take. Modules are imported by the child that runs them, never here."""

import importlib
from typing import NamedTuple, Protocol

from ops.gpu_check.report import StageResult, Status


class Stage(NamedTuple):
    """`function` of `module` takes a Context and a StageResult. `most`: seconds; `least`: below it, not begun."""

    name: str
    module: str
    function: str
    most: float
    least: float


#: In the order of their worth, should time run short; together they keep within the default budget.
STAGES = (
    Stage("environment", "environment", "run", 40, 5),
    Stage("rates", "rates", "run", 40, 10),
    Stage("tests", "hardware_tests", "run", 120, 20),
    Stage("faults", "faults", "run", 60, 15),
    Stage("model-0.8B", "models", "small", 90, 30),
    Stage("model-27B", "models", "large", 150, 45),
    Stage("gdn", "gdn", "run", 60, 20),
    Stage("kernels", "kernels", "run", 90, 20),
)
BY_NAME = {stage.name: stage for stage in STAGES}


class Noting(Protocol):
    """A Context, which to import takes torch."""

    @property
    def notes(self) -> list[str]: ...


def run(name: str, context: Noting) -> StageResult:
    """Run a stage in this process; what it raises becomes its result."""
    stage, result = BY_NAME[name], StageResult(name)
    try:
        function = getattr(importlib.import_module(f"ops.gpu_check.{stage.module}"), stage.function)
        function(context, result)
    except ImportError as error:
        result.missing(f"{error.name or error} is not installed")
    except Exception as error:
        result.failed(f"{type(error).__name__}: {error}")
    for note in dict.fromkeys(context.notes):
        result.missing(note) if result.status is Status.OK else result.lines.append(note)
    return result
