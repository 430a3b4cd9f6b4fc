"""Every limit of the table at its value, one beyond and a hundred times beyond: here, or in a test named here."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from neuron.actors import limits
from neuron.actors.errors import InvalidJson, RateLimited
from neuron.api.body_budget import FREE_BYTES, BodyBudget
from neuron.api.json_body import decode_json
from tests.api.fake_daemon import FakeServer
from tests.api.test_raw_http import GET, exchange
from tests.api.test_validate_chat import call, refused

#: Walked elsewhere: names of the table -> the test.
ELSEWHERE = {
    "test_validate_chat.test_limits_at_the_limit_beyond_and_far_beyond": (
        "MESSAGES", "CONTENT_PARTS", "TOOLS", "TOOL_CALLS", "TOOL_NAME_CHARS", "MODEL_ID_CHARS", "IMAGES",
        "STOP_STRINGS", "STOP_BYTES", "LOGIT_BIAS_ENTRIES", "TOP_LOGPROBS", "CHOICES",
    ),
    "test_validate_chat.test_schema_size_is_limited": ("SCHEMA_BYTES",),
    "test_raw_http, seconds and connections": (
        "HEADER_SECONDS", "BODY_SECONDS", "KEEP_ALIVE_SECONDS", "CONNECTIONS", "CONNECTIONS_PER_PEER",
    ),
    "tests/actors/images": ("IMAGE_BYTES", "IMAGE_PIXELS", "IMAGE_PIXELS_TOTAL"),
}  # fmt: skip
HEADERS_OF_GET = 2
"""Host, and the Connection that ends each exchange."""


@pytest.fixture(name="server", scope="module")
def _server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


def status(server: FakeServer, *headers: bytes) -> int:
    answer = exchange(server, GET + b"".join(headers) + b"Connection: close\r\n\r\n")
    return int(answer.split()[1]) if answer else 0


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def kwargs_depth(depth: int) -> dict[str, Any]:
    """The mapping is the first level, the innermost value the last."""
    value: Any = 1
    for _ in range(depth - 2):
        value = [value]
    return {"chat_template_kwargs": {"a": value}}


def test_every_limit_is_walked() -> None:
    here = {name.removeprefix("walk_") for name in globals() if name.startswith("walk_")}
    walked = here | {name for names in ELSEWHERE.values() for name in names}
    table = {name for name, value in vars(limits).items() if isinstance(value, limits.Limit)}
    assert table - walked == set()
    assert walked - table == set()


def walk_HEADER_BYTES(server: FakeServer, times: Callable[[int], int]) -> bool:
    size = times(limits.HEADER_BYTES.value)
    return status(server, b"X: " + b"a" * (size - len("X: \r\n")) + b"\r\n") == 200


def walk_HEADER_COUNT(server: FakeServer, times: Callable[[int], int]) -> bool:
    count = times(limits.HEADER_COUNT.value) - HEADERS_OF_GET
    return status(server, *(b"X%d: a\r\n" % number for number in range(count))) == 200


def walk_HEADER_TOTAL_BYTES(server: FakeServer, times: Callable[[int], int]) -> bool:
    """What counts around the values is the parser's own matter: a tenth of room below the limit."""
    size = times(limits.HEADER_TOTAL_BYTES.value)
    size = size * 9 // 10 if size == limits.HEADER_TOTAL_BYTES.value else size
    line = b"X%03d: " + b"a" * 993 + b"\r\n"
    return status(server, *(line % number for number in range(-(-size // 1000)))) == 200


def walk_REQUEST_ID_CHARS(server: FakeServer, times: Callable[[int], int]) -> bool:
    """One that is too long is replaced, not refused."""
    sent = b"r" * min(times(limits.REQUEST_ID_CHARS.value), limits.HEADER_BYTES.value - 100)
    answer = exchange(server, GET + b"X-Request-Id: " + sent + b"\r\nConnection: close\r\n\r\n")
    assert b"x-request-id: " in answer
    return b"x-request-id: " + sent + b"\r\n" in answer


def walk_BODIES_BYTES(_server: FakeServer, times: Callable[[int], int]) -> bool:
    """Over HTTP with a smaller budget: test_body_budget."""
    budget = BodyBudget()
    with budget.share() as one, budget.share() as other:
        half = times(limits.BODIES_BYTES.value) // 2
        try:
            one.hold(half + FREE_BYTES)
            other.hold(times(limits.BODIES_BYTES.value) - half + FREE_BYTES)
        except RateLimited:
            return False
    return budget.held == 0


def walk_JSON_DEPTH(_server: FakeServer, times: Callable[[int], int]) -> bool:
    return _decodes(nested(times(limits.JSON_DEPTH.value)))


def walk_JSON_VALUES(_server: FakeServer, times: Callable[[int], int]) -> bool:
    return _decodes(b"[" + b",".join([b"1"] * times(limits.JSON_VALUES.value)) + b"]")


def walk_CONTROL_BODY_BYTES(server: FakeServer, times: Callable[[int], int]) -> bool:
    body = b'{"model_id": "org/name"}'.ljust(times(limits.CONTROL_BODY_BYTES.value))
    with server.client() as client:
        answer = client.post("/models/load", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 413)
    return answer.status_code == 200


def walk_JSON_INT_DIGITS(_server: FakeServer, times: Callable[[int], int]) -> bool:
    return _decodes(b"1" * times(limits.JSON_INT_DIGITS.value))


def walk_TEMPLATE_KWARGS_DEPTH(_server: FakeServer, times: Callable[[int], int]) -> bool:
    return _accepted(kwargs_depth(min(times(limits.TEMPLATE_KWARGS_DEPTH.value), 60)))


def walk_TEMPLATE_KWARGS_NODES(_server: FakeServer, times: Callable[[int], int]) -> bool:
    count = times(limits.TEMPLATE_KWARGS_NODES.value)
    return _accepted({"chat_template_kwargs": {f"k{number}": 1 for number in range(count)}})


def walk_TEMPLATE_KWARGS_BYTES(_server: FakeServer, times: Callable[[int], int]) -> bool:
    size = times(limits.TEMPLATE_KWARGS_BYTES.value) - len('{"a":""}')
    return _accepted({"chat_template_kwargs": {"a": "x" * size}})


def _decodes(body: bytes) -> bool:
    try:
        decode_json(body)
    except InvalidJson:
        return False
    return True


def _accepted(fields: dict[str, Any]) -> bool:
    try:
        call(**fields)
    except Exception:
        assert refused(**fields).status == 400
        return False
    return True


@pytest.mark.parametrize("walk", [value for name, value in sorted(globals().items()) if name.startswith("walk_")])
def test_at_the_limit_one_beyond_and_a_hundred_times(walk: Callable[..., bool], server: FakeServer) -> None:
    assert walk(server, lambda limit: limit)
    assert not walk(server, lambda limit: limit + 1)
    assert not walk(server, lambda limit: limit * 100)
