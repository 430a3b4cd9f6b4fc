"""Levels of the log and their names. Apart from the log itself, which is slow to import."""

from enum import IntEnum

from neuron.runtime.errors import ConfigError


class Level(IntEnum):
    """`trace` is ours, below debug: one line per decode step."""

    TRACE = 5
    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


def parse_level(text: str) -> Level:
    """Raises ConfigError."""
    try:
        return Level["WARNING" if text.lower() == "warn" else text.upper()]
    except KeyError:
        names = ", ".join(level.name.lower() for level in Level)
        raise ConfigError(f"unknown log level '{text[:40]}' (one of {names}).") from None
