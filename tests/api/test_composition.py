"""The daemon's composition, where it does not end as it should."""

import gc

import anyio.abc
import pytest

from neuron.actors.registry import Registry
from neuron.actors.settings import Settings
from neuron.api.access import Access
from neuron.api.composition import _Server
from neuron.api.server.bind import bind
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
