"""The official client's typed forms against the real daemon: parsed answers and calls, events, exception classes."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from tests.harness.daemon import DaemonProcess, say

ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
TRIP = '{"city": "Paris", "days": 3, "with_friends": true}'
CALL = '\n{"name": "Book", "arguments": {"city": "Paris", "nights": 2}}\n'
CONFIG = '[server]\napi_keys_file = "{keys}"\n'
SCRIPTS: dict[str, Any] = {
    "trip": say(TRIP[:20], TRIP[20:]),
    "thinks": {**say("<think>", "a city", "</think>", "\n\n", TRIP), "added_tokens": ADDED},
    "book": {**say("<tool_call>", CALL, "</tool_call>"), "added_tokens": ADDED},
    "all": {
        **say("<think>", "hm", "</think>", "Sure. ", "<tool_call>", CALL, "</tool_call>"),
        "added_tokens": ADDED,
    },
    "slow": say("x", repeat=True, delay_ms=20),
    "fault": say("a", fault={"at": 0, "phase": "decode", "kind": "device", "text": "CUDA error: unspecified"}),
}
HI: Any = [{"role": "user", "content": "hi"}]


class Trip(pydantic.BaseModel):
    city: str
    days: int
    with_friends: bool


class Book(pydantic.BaseModel):
    """Book a room."""

    city: str
    nights: int


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    alone = '[limits]\nqueue_per_model = 1\n[[models]]\nid = "scripted:test/fault"\ndevices = ["cpu:1"]\n'
    with DaemonProcess(SCRIPTS, alone, models=[name for name in SCRIPTS if name != "fault"]) as daemon:
        yield daemon


@pytest.fixture(name="client", scope="module")
def _client(daemon: DaemonProcess) -> Iterator[openai.OpenAI]:
    with daemon.openai() as client:
        yield client


@pytest.mark.parametrize("name", ["trip", "thinks"])
def test_parsed_answers(client: openai.OpenAI, name: str) -> None:
    model = f"test/{name}"
    parsed = client.chat.completions.parse(model=model, messages=HI, response_format=Trip)
    assert parsed.choices[0].message.parsed == Trip(city="Paris", days=3, with_friends=True)
    with client.chat.completions.stream(model=model, messages=HI, response_format=Trip) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == parsed.choices[0].message.parsed
    assert {"chunk", "content.delta", "content.done"} <= kinds
    answer = client.responses.parse(model=model, input="hi", text_format=Trip)
    assert answer.output_parsed == parsed.choices[0].message.parsed
    with client.responses.stream(model=model, input="hi", text_format=Trip) as events:
        for _ in events:
            pass
        assert events.get_final_response().output_parsed == parsed.choices[0].message.parsed


def test_parsed_calls(client: openai.OpenAI) -> None:
    tool: Any = openai.pydantic_function_tool(Book)
    parsed = client.chat.completions.parse(model="test/book", messages=HI, tools=[tool])
    calls = parsed.choices[0].message.tool_calls or []
    assert [call.function.parsed_arguments for call in calls] == [Book(city="Paris", nights=2)]
    forced = client.chat.completions.parse(model="test/book", messages=HI, tools=[tool], tool_choice="required")
    assert (forced.choices[0].message.tool_calls or [])[0].function.parsed_arguments == Book(city="Paris", nights=2)


def test_every_typed_event_of_responses(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "Book", "parameters": Book.model_json_schema(), "strict": False}
    events = list(client.responses.create(model="test/all", input="hi", tools=[tool], stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert {
        "response.output_item.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    } <= set(kinds)
    # Each event is the class that its type names, with nothing but what that class declares or permits.
    assert all(type(event).__name__ != "BaseModel" for event in events)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert [item.type for item in last.response.output] == ["reasoning", "message", "function_call"]


def test_the_async_client(daemon: DaemonProcess) -> None:
    async def talk() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client:
            whole = await client.chat.completions.create(model="test/trip", messages=HI)
            stream = await client.chat.completions.create(model="test/trip", messages=HI, stream=True)
            pieces = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
            return whole.choices[0].message.content or "", "".join(pieces)

    assert asyncio.run(talk()) == (TRIP, TRIP)


def test_raw_bodies_and_headers(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="test/trip", messages=HI)
    assert raw.headers["x-request-id"]
    assert raw.parse().choices[0].message.content == TRIP
    assert json.loads(raw.text)["usage"]["total_tokens"] > 0
    assert "test/trip" in {model.id for model in client.models.list()}
    assert client.models.retrieve("test/trip").id == "test/trip"


def test_exception_classes(daemon: DaemonProcess, client: openai.OpenAI) -> None:
    def ask(model: str, **fields: Any) -> Any:
        return client.chat.completions.create(model=model, messages=HI, **fields)

    with pytest.raises(openai.NotFoundError) as missing:
        ask("test/none")
    assert (missing.value.status_code, missing.value.code) == (404, "model_not_found")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("test/none")
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as bad:
            ask("test/trip", top_p=3, stream=stream)
        assert (bad.value.param, bad.value.type) == ("top_p", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="test/trip", messages=[{"role": "user", "content": "x" * 9000}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError):
        ask("test/fault")
    daemon.wait_state("fault", "poisoned")
    with pytest.raises(openai.InternalServerError) as poisoned:
        ask("test/fault")
    assert (poisoned.value.status_code, poisoned.value.code) == (503, "model_poisoned")


def test_a_full_queue_is_a_rate_limit(client: openai.OpenAI) -> None:
    """One runs, one waits (the limit of this daemon, and of one principal); the third is refused."""
    running = [client.chat.completions.create(model="test/slow", messages=HI, stream=True, max_tokens=4000)]
    running.append(client.chat.completions.create(model="test/slow", messages=HI, stream=True, max_tokens=4000))
    try:
        with pytest.raises(openai.RateLimitError) as full:
            client.chat.completions.create(model="test/slow", messages=HI)
        assert full.value.code == "rate_limit_exceeded"
        assert int(full.value.response.headers["retry-after"]) >= 1
    finally:
        for stream in running:
            stream.close()


def test_a_wrong_key_is_an_authentication_error(tmp_path: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-right\n")
    keys.chmod(0o600)
    with DaemonProcess({"trip": SCRIPTS["trip"]}, CONFIG.format(keys=keys)) as daemon:
        with daemon.openai(api_key="sk-wrong") as client, pytest.raises(openai.AuthenticationError) as refused:
            client.chat.completions.create(model="test/trip", messages=HI)
        assert refused.value.code == "invalid_api_key"
        with daemon.openai(api_key="sk-right") as client:
            assert client.chat.completions.create(model="test/trip", messages=HI).choices
