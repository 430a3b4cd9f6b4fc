"""How `neuron serve` begins and ends: settings, access and port are checked before anything heavy is imported."""

import resource
from collections.abc import Mapping

from neuron.actors.settings import Settings
from neuron.api.access import Access
from neuron.api.server.listener import bind
from neuron.runtime.lifecycle import exit_now
from neuron.runtime.logs import configure_logging, get_logger

_log = get_logger("neuron.serve")
#: Descriptors for all connections, links and files; shells often allow 1024 until asked for more.
_FILES = 65_536


def serve(settings: Settings, environment: Mapping[str, str]) -> None:
    """Runs until a stop signal, then leaves the process with status 0. Raises ConfigError before anything is loaded."""
    access = Access(settings.server)
    sock = bind(settings.server.host, settings.server.port)
    configure_logging(settings.logging.level, settings.logging.format)
    _raise_file_limit()
    try:
        # The registry brings numpy and tokenizers along: a second of work that a taken port need not wait for.
        from neuron.api.composition import run

        run(settings, access, sock, environment)
    except BaseException as error:
        _log.critical("the daemon failed", exc_info=error)
        exit_now(1)
    # Not sys.exit: a thread stuck in native code would keep the process alive.
    exit_now(0)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
