"""The Jinja environment of chat templates: transformers' rules, plus bounds on what an expression may build.

Runs inside the template child only. Known results: range() stops at 100,000 (Jinja's sandbox).
"""

import json
import re
from collections.abc import Callable
from datetime import datetime
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

#: Longest string or list that one expression may build, in characters or items.
MAX_BUILT = 16 << 20
_MAX_WIDTH = 10_000
_MAX_POWER_BITS = 4096
_CODE = (type, FunctionType, BuiltinFunctionType, MethodType, MethodWrapperType, ModuleType)
_WIDE_FORMAT = re.compile(r"\d{5,}|\*|\{[^{}]*\{")


class RefusedByTemplate(jinja2.TemplateError):
    """raise_exception: the message is the template's own sentence."""


class TooLarge(jinja2.TemplateError):
    """An expression would build something too large."""


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text in training templates; it renders its body."""

    tags = {"generation"}  # noqa: RUF012  (declared so by the base class)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class PlainDict:
    """`dict(...)` without the class itself, through which internals could be reached."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class PlainNamespace(jinja2.utils.Namespace):
    """A namespace that stores no underscore names."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            PlainNamespace._check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        PlainNamespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError("underscore name")


class ChatEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Immutable sandbox; unsafe attributes raise at once; `*`, `**`, `%` and padding calls are bounded."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        raise jinja2.exceptions.SecurityError("unsafe attribute")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int) and len(many) * times > MAX_BUILT:
                    raise TooLarge("repeat")
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
        elif operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise TooLarge("format")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            _check_string_call(owner, getattr(function, "__name__", ""), args, kwargs)
        return super().call(context, function, *args, **kwargs)


def _check_bits(bits: int) -> None:
    if bits > _MAX_POWER_BITS:
        raise TooLarge("number")


def _check_string_call(owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        if any(isinstance(value, int) and value > _MAX_WIDTH for value in (*args, *kwargs.values())):
            raise TooLarge(name)
    elif name in ("format", "format_map") and _WIDE_FORMAT.search(owner):
        raise TooLarge(name)
    elif name == "replace" and len(args) >= 2 and all(isinstance(value, str) for value in args[:2]):
        old, new = args[0], args[1]
        count = owner.count(old) if old else len(owner) + 1
        if count * len(new) > MAX_BUILT:
            raise TooLarge(name)


def _bounded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose numeric arguments (widths) are bounded, and whose format string too."""

    def bounded(value: Any, *args: Any, **kwargs: Any) -> Any:
        if name == "format" and isinstance(value, str) and _WIDE_FORMAT.search(value):
            raise TooLarge(name)
        if name != "format":
            for number in (*args, *kwargs.values()):
                if isinstance(number, int) and not isinstance(number, bool) and number > _MAX_WIDTH:
                    raise TooLarge(name)
        return original(value, *args, **kwargs)

    return bounded


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as transformers writes it: non-ASCII kept, nothing escaped for HTML."""
    if (isinstance(indent, int) and indent > 64) or (isinstance(indent, str) and len(indent) > 64):
        raise TooLarge("tojson")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise RefusedByTemplate(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(str(pattern)[:256])


def _shown(value: Any) -> Any:
    """What an output tag prints: data, never a function or a class."""
    if isinstance(value, _CODE):
        raise jinja2.exceptions.SecurityError("code as text")
    return value


def chat_environment() -> ChatEnvironment:
    """A fresh environment with the helpers that chat templates expect."""
    environment = ChatEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationTag, jinja2.ext.loopcontrols],
        finalize=_shown,
        cache_size=0,
    )
    environment.filters["tojson"] = _to_json
    for name in ("center", "format", "wordwrap", "batch", "slice", "round", "truncate"):
        environment.filters[name] = _keep_pass(environment.filters[name], _bounded(name, environment.filters[name]))
    environment.filters["indent"] = _bounded_indent
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        dict=PlainDict(),
        namespace=PlainNamespace,
    )
    return environment


def _keep_pass(original: Callable[..., Any], bounded: Callable[..., Any]) -> Callable[..., Any]:
    """Filters that want the environment say so by an attribute; the wrapper hands it through in front."""
    kind = getattr(original, "jinja_pass_arg", None)
    if kind is None:
        return bounded

    def with_environment(environment: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        for number in (*args, *kwargs.values()):
            if isinstance(number, int) and not isinstance(number, bool) and number > _MAX_WIDTH:
                raise TooLarge("filter")
        return original(environment, value, *args, **kwargs)

    with_environment.jinja_pass_arg = kind  # type: ignore[attr-defined]
    return with_environment


def _bounded_indent(value: str, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    size = len(width) if isinstance(width, str) else width
    if size > _MAX_WIDTH or size * (str(value).count("\n") + 1) > MAX_BUILT:
        raise TooLarge("indent")
    return jinja2.filters.do_indent(value, width, first, blank)
