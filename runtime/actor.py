"""The actor base class: one task, one bounded mailbox, four hooks. Subclassed in `actors/`; run by a Supervisor."""

from typing import ClassVar, Generic, TypeVar

import anyio

from neuron.runtime.errors import AskTimeout, InternalError, NeuronError, ShuttingDown
from neuron.runtime.logs import get_logger
from neuron.runtime.mailbox import Envelope, Mailbox, ReplySlot

M = TypeVar("M")

_log = get_logger(__name__)


class Actor(Generic[M]):
    """Handles messages of type M one after another.

    A NeuronError out of `on_message` is an answer: the caller gets it and the actor goes on. Any other exception is a
    failure: the caller gets InternalError, the actor's run ends, and its supervisor runs it again with the mailbox as
    it was. Nobody is ever left waiting: at the end every queued or waiting caller gets a typed error.
    """

    #: Messages that may wait; one more raises MailboxFull at the sender.
    mailbox_size: ClassVar[int] = 256
    #: Seconds that `on_stop` may take, also when the actor is being cancelled.
    stop_seconds: ClassVar[float] = 20.0

    def __init__(self, name: str) -> None:
        self.name = name
        self._mailbox: Mailbox[M] = Mailbox(self.mailbox_size)
        self._current: ReplySlot | None = None
        self._running = False

    # -- hooks ---------------------------------------------------------------------------------

    async def on_start(self) -> None:
        """Runs before the first message of each run, also after a restart: set up all state here."""

    async def on_message(self, message: M) -> object:
        """Handle one message; what is returned answers an `ask`."""
        raise InternalError(f"{type(self).__name__} handles no messages.")

    async def on_failure(self, error: Exception) -> None:
        """Runs after an exception ended the run, in place of `on_stop`: release what `on_start` took."""

    async def on_stop(self) -> None:
        """Runs after an orderly stop or a cancellation, within `stop_seconds`: release what `on_start` took."""

    # -- for callers ---------------------------------------------------------------------------

    def tell(self, message: M) -> None:
        """Queue a message that nobody waits for. Raises MailboxFull, or the error that closed the actor."""
        self._mailbox.put(Envelope(message, None))

    async def ask(self, message: M, timeout_s: float) -> object:
        """Queue a message and wait for its answer.

        Raises AskTimeout after `timeout_s` seconds, MailboxFull, ShuttingDown (or the error that closed the actor),
        and what the actor answered with. A caller that leaves in any way takes a message that is not yet begun with it.
        """
        slot = ReplySlot()
        envelope = Envelope(message, slot)
        self._mailbox.put(envelope)
        try:
            with anyio.fail_after(timeout_s):
                return await slot.wait()
        except TimeoutError as error:
            if slot.is_set:  # the answer itself is a TimeoutError
                raise
            raise AskTimeout("No answer in time.") from error
        finally:
            slot.abandoned = True
            self._mailbox.discard(envelope)

    def stop(self) -> None:
        """Refuse and fail what is queued; the message in work is finished, then `on_stop` runs and the run ends."""
        self._mailbox.close(ShuttingDown("This part of the daemon is stopping."))

    @property
    def queue_depth(self) -> int:
        return len(self._mailbox)

    @property
    def stopped(self) -> bool:
        return self._mailbox.closed_by is not None

    # -- for the supervisor --------------------------------------------------------------------

    async def run(self) -> None:
        """One life of the actor: returns after `stop`, raises on failure. The mailbox outlives it."""
        if self._running:
            raise RuntimeError(f"actor {self.name} is already running")
        self._running = True
        try:
            try:
                await self.on_start()
                while (envelope := await self._mailbox.get()) is not None:
                    await self._handle(envelope)
            except Exception as error:
                await self._finish(failed_by=error)
                raise
            except BaseException:
                await self._finish(failed_by=None)
                raise
            await self._finish(failed_by=None)
        finally:
            self._running = False

    def close(self, error: NeuronError) -> None:
        """The actor will not run again: fail every queued and waiting caller with `error`."""
        self._mailbox.close(error)
        if self._current is not None:
            self._current.fail(error)

    async def run_alone(self) -> None:
        """`run` once, without a supervisor, and close at the end."""
        try:
            await self.run()
        finally:
            self.close(ShuttingDown("This part of the daemon has stopped."))

    async def _handle(self, envelope: Envelope[M]) -> None:
        slot = self._current = envelope.reply
        try:
            value = await self.on_message(envelope.message)
        except NeuronError as error:
            if slot is None:
                _log.warning("message failed", actor=self.name, message=type(envelope.message).__name__, exc_info=error)
            else:
                slot.fail(error)
        except Exception as error:
            if slot is not None:
                answer = InternalError("An internal error occurred.")
                answer.__cause__ = error
                slot.fail(answer)
            raise
        except BaseException:
            if slot is not None:
                slot.fail(ShuttingDown("This part of the daemon is stopping."))
            raise
        else:
            if slot is not None:
                slot.answer(value)
        finally:
            self._current = None

    async def _finish(self, failed_by: Exception | None) -> None:
        hook = "on_stop" if failed_by is None else "on_failure"
        with anyio.move_on_after(self.stop_seconds, shield=True) as limit:
            try:
                await (self.on_stop() if failed_by is None else self.on_failure(failed_by))
            except Exception as error:
                _log.error("actor hook failed", actor=self.name, hook=hook, exc_info=error)
        if limit.cancelled_caught:
            _log.error("actor hook took too long", actor=self.name, hook=hook, limit_s=self.stop_seconds)
