"""Workers: a fixed number of threads for work that blocks or computes, kept off the event loop."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple, Unpack

from neuron.runtime.errors import ShuttingDown

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Workers:
    """At most `count` pieces of work at once, whoever leaves meanwhile; further ones wait in order.

    A limiter around threads is not enough: a handler is cancelled when its client goes, its token is given back while
    its thread works on, and clients that come and go make any number of threads.
    """

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._closed = False

    async def run(self, work: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """What `work` returns or raises. Of a caller that is cancelled, work that waits is dropped, and work that has
        begun goes on for nobody. Raises ShuttingDown after `close`."""
        if self._closed:
            raise ShuttingDown("The daemon is shutting down.")
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, work, *args)

    def close(self) -> None:
        """The threads end with the work that they have been given; nobody waits for them here."""
        self._closed = True
        self._threads.shutdown(wait=False)
