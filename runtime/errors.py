"""The root of the error tree. Every error knows its public code, HTTP status and whether a retry helps."""

from typing import ClassVar

INVALID_REQUEST = "invalid_request_error"
API_ERROR = "api_error"

Extra = str | int | float | bool | None | list[str]


class NeuronError(Exception):
    """An error with a public face.

    `message` is shown to clients: it never holds a path, a class name or a traceback. What only an
    operator may see travels as the exception's `__cause__` and is logged, not sent.
    """

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    type: ClassVar[str] = API_ERROR
    #: Seconds for a Retry-After header; None sends none.
    retry_after: int | None = None
    #: False adds `x-should-retry: false`, so that clients give up at once.
    should_retry: ClassVar[bool | None] = None

    def __init__(
        self, message: str, *, param: str | None = None, retry_after: int | None = None, **extra: Extra
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.extra = extra
        if retry_after is not None:
            self.retry_after = retry_after


class InternalError(NeuronError):
    """A defect of ours; details are in the log under the request id."""


class ConfigError(NeuronError):
    """The configuration cannot be used; ends `serve` before anything is loaded."""

    code = "invalid_config"


class ShuttingDown(NeuronError):
    """The daemon (or one actor of it) stops; every waiting caller gets this."""

    code = "shutting_down"
    status = 503
    retry_after = 15


class WorkerDied(NeuronError):
    """The device process ended while a caller waited. `signal` names the signal when there was one."""

    code = "worker_died"
    status = 503
    should_retry = False


class WorkerUnresponsive(NeuronError):
    """A job ran past its deadline; the device process is killed and its link never used again."""

    code = "worker_unresponsive"
    status = 503
    should_retry = False


class ProtocolError(NeuronError):
    """A frame or stamp on a link that cannot be trusted; the process at the other end is killed."""

    code = "protocol_error"
    status = 500


class InsufficientShm(NeuronError):
    """Shared memory could not be reserved; carries `needed_bytes` and `free_bytes`."""

    code = "insufficient_shm"
    status = 503
    retry_after = 5


class RestartLimit(NeuronError):
    """A process died too often in a short time; starting it again is refused for a while."""

    code = "restart_limit"
    status = 503
    retry_after = 60


class LinkClosed(NeuronError):
    """The other end of a link is gone, or this end was closed."""

    code = "worker_died"
    status = 503
    should_retry = False


class MailboxFull(NeuronError):
    """An actor's bounded mailbox is full; the message was not taken."""

    code = "overloaded"
    status = 503
    retry_after = 2


class AskTimeout(NeuronError):
    """No answer within the caller's time limit; a later answer is dropped."""

    code = "timeout"
    status = 503
