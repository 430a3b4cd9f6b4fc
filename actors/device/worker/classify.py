"""From an exception to a verdict: numeric code first, then text, then the Python type; unknown is fatal. Pure."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from neuron.actors.device.worker.fault_table import CODE_RULES, TEXT_RULES, CodeRule, Verdict
from neuron.kernels.errors import LoadError
from neuron.kernels.formats.errors import FormatError
from neuron.runtime.errors import NeuronError

_BY_CODE: dict[int, CodeRule] = {rule.code: rule for rule in CODE_RULES}
_MAX_CHAIN = 16
_MAX_TEXT = 2000
_DRIVER_NAME = re.compile(r"\bCUDA_ERROR_[A-Z0-9_]+")

#: Python errors: raised by our own code, before or beside the device, never by it.
_HOST_TYPES: tuple[type[BaseException], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Classified:
    """`rule` is the name of the table's line, or "unclassified"; `code` 0 when there was no numeric one."""

    verdict: Verdict
    rule: str
    code: int = 0


class NanLogitsError(ArithmeticError):
    """A logits row with a NaN, or without a finite maximum."""


class RequestFault(Exception):
    """A job that cannot be done, for a reason that has a public code of its own."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


#: Errors of our own whose type says all. Their text is never looked at: it may hold a name out of an untrusted file.
_OWN_TYPES: tuple[type[BaseException], ...] = (FormatError, LoadError, NeuronError, RequestFault)


def classify(error: BaseException) -> Classified:
    """Decide what `error` means. The whole chain of causes is looked at: a wrapped device error is one."""
    chain = list(_chain(error))
    for link in chain:
        code = numeric_code(link)
        if code:
            rule = _BY_CODE.get(code)
            return (
                Classified(Verdict.FATAL, "unknown_code", code)
                if rule is None
                else Classified(rule.verdict, rule.name, code)
            )
    for link in chain:
        if _is_out_of_memory(link):
            return Classified(Verdict.OOM, "out_of_memory")
    for link in chain:
        found = None if isinstance(link, (*_HOST_TYPES, *_OWN_TYPES)) else _by_text(str(link))
        if found is not None:
            return found
    if isinstance(error, (*_HOST_TYPES, RequestFault)):
        return Classified(Verdict.HOST, "host_error")
    return Classified(Verdict.FATAL, "unclassified")


def numeric_code(error: BaseException) -> int:
    """`error_code` of torch.AcceleratorError, `code` of numba's CudaAPIError, or what the text of a CUDAError names
    (numba launches and loads code through cuda.core, whose error has no number); 0 when there is none."""
    for kind in type(error).__mro__:
        if kind.__name__ == "AcceleratorError":
            code = getattr(error, "error_code", 0)
            return code if isinstance(code, int) else 0
        if kind.__name__ == "CudaAPIError":
            code = getattr(error, "code", 0)
            return int(code) if isinstance(code, int) else 0
        if kind.__name__ == "CUDAError":
            return _named_code(str(error))
    return 0


def _named_code(text: str) -> int:
    """The driver's number for the name in `text`, from the bindings that the error came through."""
    name = _DRIVER_NAME.search(text)
    bindings = sys.modules.get("cuda.bindings.driver")
    return 0 if name is None or bindings is None else int(getattr(bindings.CUresult, name[0], 0))


def describe(error: BaseException) -> str:
    """Class and text of the error and its causes, for the log."""
    return " <- ".join(f"{type(link).__name__}: {link}" for link in _chain(error))[:_MAX_TEXT]


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if current is None:
            return
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)


def _by_text(text: str) -> Classified | None:
    lowered = text.lower()
    generic = [rule for rule in TEXT_RULES if rule.name.startswith("generic_")]
    for rule in TEXT_RULES:
        if rule not in generic and rule.text.lower() in lowered:
            return Classified(rule.verdict, rule.name)
    for coded in CODE_RULES:
        if coded.text.lower() in lowered:
            return Classified(coded.verdict, coded.name, coded.code)
    for rule in generic:
        if rule.text.lower() in lowered:
            return Classified(rule.verdict, rule.name)
    return None
