"""The report of a check: a result for each stage, and what they come to together."""

from enum import StrEnum

import msgspec

Figure = float | int | str | bool | None
Figures = dict[str, Figure]


class Status(StrEnum):
    OK = "ok"
    MISSING = "missing"
    """Something it needs is not there; the rest of it was done."""
    SKIPPED = "skipped"
    """No time was left."""
    FAILED = "failed"
    TIMEOUT = "timeout"


class Verdict(StrEnum):
    """With the exit code that tells it."""

    COMPLETE = "complete"
    DEGRADED = "degraded"
    FAILED = "failed"

    @property
    def exit_code(self) -> int:
        return {Verdict.COMPLETE: 0, Verdict.DEGRADED: 1, Verdict.FAILED: 2}[self]


class StageResult(msgspec.Struct):
    """`lines`: for a reader; `figures`: by name, with the unit at its end."""

    name: str
    status: Status = Status.OK
    seconds: float = 0.0
    lines: list[str] = msgspec.field(default_factory=list)
    figures: Figures = msgspec.field(default_factory=dict)

    def missing(self, line: str) -> None:
        """Note what is not there. The stage goes on with what is."""
        self.status = Status.MISSING
        self.lines.append(line)

    def failed(self, line: str) -> None:
        self.status = Status.FAILED
        self.lines.append(line)


class Ceilings(msgspec.Struct, frozen=True):
    """What the machine can do, from the stage `rates`; 0 where unknown. Bytes and operations a second."""

    bandwidth: float = 0.0
    matrix_rate: float = 0.0


class Report(msgspec.Struct):
    verdict: Verdict
    device: str
    seconds: float
    stages: list[StageResult]


def verdict(stages: list[StageResult]) -> Verdict:
    """Complete: every stage is ok. Failed: there is no device to speak of (the first stage), or nothing was done."""
    statuses = [stage.status for stage in stages]
    if statuses and all(status is Status.OK for status in statuses):
        return Verdict.COMPLETE
    if not statuses or statuses[0] in (Status.FAILED, Status.TIMEOUT) or Status.OK not in statuses:
        return Verdict.FAILED
    return Verdict.DEGRADED
