"""The daemon's composition, where it does not end as it should."""

import gc
import subprocess
import sys

import anyio.abc
import pytest

from neuron.actors.registry import Registry
from neuron.actors.settings import Settings
from neuron.api.access import Access
from neuron.api.composition import _Server
from neuron.api.server.bind import bind
from neuron.runtime.lifecycle import EXIT_DEADMAN
from neuron.runtime.notify import Notifier

pytestmark = pytest.mark.anyio


async def test_an_end_without_a_stop_signal_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever cancelled everything: a status of 0 would keep the service manager from starting it again."""

    async def start(_self: Registry, tasks: anyio.abc.TaskGroup) -> None:
        tasks.cancel_scope.cancel()

    monkeypatch.setattr(Registry, "start", start)
    monkeypatch.setattr(gc, "freeze", lambda: None)  # It would hold for all tests that follow.
    settings = Settings()
    sock = bind("127.0.0.1", 0)
    with pytest.raises(RuntimeError, match="stop signal"):
        await _Server(settings, Access(settings.server), sock, Notifier(None), None).run()
    sock.close()


BROKEN = """
import anyio
from neuron.actors.registry import Registry
from neuron.actors.settings import Settings
from neuron.api import composition
from neuron.api.access import Access
from neuron.api.server.bind import bind
from neuron.runtime.notify import Notifier

async def hangs():
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()

async def breaks():
    raise ValueError("a defect")

async def start(self, tasks):
    tasks.start_soon(hangs)
    tasks.start_soon(breaks)

Registry.start = start
composition._ABORT_S = 0.2
settings = Settings()
server = composition._Server(settings, Access(settings.server), bind("127.0.0.1", 0), Notifier(None), None)
anyio.run(server.run)
"""


def test_a_daemon_that_broke_ends_although_a_part_hangs() -> None:
    """Else it would sit there without a listener, and no service manager would start it again."""
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == EXIT_DEADMAN, done.stderr[-2000:]
    assert "the orderly end hangs" in done.stderr
