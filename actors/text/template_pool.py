"""TemplatePool: templates rendered in confined processes, and what their ends mean to a request."""

import signal

import msgspec

from neuron.actors.errors import TemplateError, TemplateTimeout, TemplateTooLarge
from neuron.actors.text.template_wire import Failure, RenderJob, RenderReply
from neuron.runtime.confined_pool import ChildLost, ConfinedPool
from neuron.runtime.errors import InternalError

WALL_SECONDS = 2.0
_MODULE = "neuron.actors.text.template_child"
_SENTENCES = {
    Failure.FORBIDDEN: "The model's chat template uses an operation that is not allowed.",
    Failure.UNDEFINED: "The model's chat template needs a value that this conversation does not have.",
    Failure.FAILED: "The model's chat template failed on this conversation.",
}


class TemplatePool(ConfinedPool):
    """At most `size` children at once. All methods may be called from any task of one event loop."""

    def __init__(self, size: int = 2) -> None:
        super().__init__(_MODULE, size)

    async def render(self, source: str, variables: bytes, *, max_bytes: int) -> str:
        """The rendered text. `variables` is a JSON object.

        Raises TemplateError, TemplateTimeout, TemplateTooLarge, ShuttingDown, InternalError (child lost).
        """
        payload = msgspec.msgpack.encode(RenderJob(source=source, variables=variables, max_bytes=max_bytes))
        try:
            answer = await self.exchange(payload, seconds=WALL_SECONDS, healthy=_healthy)
            reply = msgspec.msgpack.decode(answer, type=RenderReply)
        except TimeoutError as error:
            raise TemplateTimeout("The model's chat template took too long to render.") from error
        except ChildLost as error:
            raise _lost(error.status) from error
        if reply.text is None:
            raise _error(reply)
        return reply.text


def _healthy(answer: bytearray) -> bool:
    """A child that was short of memory may have little left for the next template."""
    return len(answer) > 4096 or msgspec.msgpack.decode(answer, type=RenderReply).failure is not Failure.TOO_LARGE


def _lost(status: int) -> TemplateTimeout | TemplateTooLarge | InternalError:
    """What the end of a child means: the kernel's time limit, memory, or something from outside."""
    if status == -signal.SIGXCPU:
        return TemplateTimeout("The model's chat template took too long to render.")
    if status in (-signal.SIGSEGV, -signal.SIGABRT, 1):
        return TemplateTooLarge("The model's chat template needs too much memory.")
    return InternalError("The template process ended unexpectedly.")


def _error(reply: RenderReply) -> TemplateError | TemplateTooLarge:
    if reply.failure is Failure.TOO_LARGE:
        return TemplateTooLarge("The model's chat template builds a prompt that is too large.")
    if reply.failure is Failure.REFUSED:
        return TemplateError(reply.detail or "The model's chat template refused this conversation.")
    if reply.failure is Failure.SYNTAX:
        return TemplateError(f"The model's chat template has a syntax error in line {reply.detail}.")
    return TemplateError(_SENTENCES[reply.failure or Failure.FAILED])
