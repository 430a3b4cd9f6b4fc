"""Part: a coroutine function as a child of a Supervisor, for work that nobody sends messages to."""

from collections.abc import Awaitable, Callable

from neuron.runtime.errors import NeuronError


class Part:
    """Supervised. Each life of it is one call of `work`."""

    def __init__(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        self.name = name
        self._work = work

    async def run(self) -> None:
        await self._work()

    def close(self, error: NeuronError) -> None:
        """Nobody waits for an answer of it."""
