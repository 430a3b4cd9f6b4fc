"""How `neuron serve` begins and ends: settings, port and access are checked before anything heavy is imported."""

import contextlib
import gc
import resource
import socket
from collections.abc import Mapping

from neuron.actors.device.devices import known_devices, parse_device
from neuron.actors.device.spare import Spare
from neuron.actors.settings import Settings, SourceKind
from neuron.actors.sources.configured import configured_sources
from neuron.actors.sources.ids import parse_model_id
from neuron.api.server.bind import bind
from neuron.runtime.errors import NeuronError

#: Descriptors for all connections, links and files; shells often allow 1024 until asked for more.
_FILES = 65_536


def serve(settings: Settings, environment: Mapping[str, str]) -> None:
    """Runs until a stop signal, then leaves the process with status 0. Raises ConfigError before anything is loaded."""
    # Imports make no garbage to speak of; the daemon switches it on when they are over.
    gc.disable()
    sock = bind(settings.server.host, settings.server.port)
    _raise_file_limit()
    spare = start_spare(settings)
    try:
        _serve(settings, environment, sock, spare)
    finally:
        if spare is not None:
            spare.discard()


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def start_spare(settings: Settings) -> Spare | None:
    """A device process for the first start-up model that has weights: it imports its libraries while we import ours."""
    with contextlib.suppress(NeuronError, OSError):
        for model in settings.models:
            kind = configured_sources(settings)[parse_model_id(model.id, settings).scheme].kind
            if model.at_start and kind is not SourceKind.SCRIPTED:
                device = parse_device(model.devices[0]) if model.devices else known_devices()[0]
                return Spare(device, settings.logging.level)
    return None


def _serve(settings: Settings, environment: Mapping[str, str], sock: socket.socket, spare: Spare | None) -> None:
    from neuron.api.access import Access
    from neuron.runtime.lifecycle import exit_now
    from neuron.runtime.logs import configure_logging, get_logger

    access = Access(settings.server)
    configure_logging(settings.logging.level, settings.logging.format)
    try:
        # The registry brings numpy and tokenizers along: a second of work that a taken port need not wait for.
        from neuron.api.composition import run

        run(settings, access, sock, environment, spare)
    except BaseException as error:
        get_logger("neuron.serve").critical("the daemon failed", exc_info=error)
        exit_now(1)
