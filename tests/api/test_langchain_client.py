"""langchain-openai against the real daemon: chat, streams, tools and their round trip, structured output, Responses."""

from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tests.harness.daemon import DaemonProcess, say

ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
CALL = '\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n'
SCRIPTS: dict[str, Any] = {
    "words": say("Hello", " there", "."),
    "tools": {
        "turns": [
            {"when": "<tool_response>\n3", "emit": ["It is 3."]},
            {"emit": ["Let me add. ", "<tool_call>", CALL, "</tool_call>", "<tool_call>", CALL, "</tool_call>"]},
        ],
        "added_tokens": ADDED,
        "chat_template": "{% for m in messages %}<{{ m.role }}>{% if m.role == 'tool' %}<tool_response>\n{% endif %}"
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
    },
    "forced": {**say("<tool_call>", CALL, "</tool_call>"), "added_tokens": ADDED},
    "json": say('{"city": "Paris", "days": 3}'),
}


class Trip(pydantic.BaseModel):
    """A journey."""

    city: str
    days: int


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess(SCRIPTS) as daemon:
        yield daemon


def chat(daemon: DaemonProcess, name: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=f"test/{name}", base_url=f"{daemon.url}/v1", api_key=pydantic.SecretStr("none"), max_retries=0, **options
    )


def test_plain_chat(daemon: DaemonProcess) -> None:
    model = chat(daemon, "words", temperature=0)
    answer = model.invoke([SystemMessage("Be kind."), HumanMessage("hi")])
    assert answer.content == "Hello there."
    assert answer.response_metadata["finish_reason"] == "stop"
    assert isinstance(answer, AIMessage)
    assert answer.usage_metadata is not None
    chunks = list(model.stream("hi", stream_usage=True))
    assert "".join(str(chunk.content) for chunk in chunks) == "Hello there."
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert isinstance(whole, AIMessageChunk)
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"]
    assert [reply.content for reply in model.batch(["a", "b"])] == ["Hello there."] * 2


def test_tools_and_their_round_trip(daemon: DaemonProcess) -> None:
    model = chat(daemon, "tools").bind_tools([add])
    answer = model.invoke("1 + 2?")
    assert isinstance(answer, AIMessage)
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("add", {"a": 1, "b": 2})] * 2
    assert not answer.invalid_tool_calls
    whole: Any = None
    for chunk in model.stream("1 + 2?"):
        whole = chunk if whole is None else whole + chunk
    assert [call["args"] for call in whole.tool_calls] == [{"a": 1, "b": 2}] * 2
    assert len({call["id"] for call in [*answer.tool_calls, *whole.tool_calls]}) == 4
    results = [ToolMessage("3", tool_call_id=call["id"]) for call in answer.tool_calls]
    last = model.invoke([HumanMessage("1 + 2?"), answer, *results])
    assert last.content == "It is 3."


@pytest.mark.parametrize("choice", ["any", "add", "required"])
def test_forced_tools(daemon: DaemonProcess, choice: str) -> None:
    answer = chat(daemon, "forced").bind_tools([add], tool_choice=choice).invoke("1 + 2?")
    assert isinstance(answer, AIMessage)
    assert [call["name"] for call in answer.tool_calls] == ["add"]


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_structured_output(daemon: DaemonProcess, method: Any) -> None:
    model = chat(daemon, "json").with_structured_output(Trip, method=method)
    assert model.invoke("a trip") == Trip(city="Paris", days=3)


def test_responses(daemon: DaemonProcess) -> None:
    model = chat(daemon, "tools", use_responses_api=True).bind_tools([add])
    answer = model.invoke("1 + 2?")
    assert isinstance(answer, AIMessage)
    assert [call["args"] for call in answer.tool_calls] == [{"a": 1, "b": 2}] * 2
    whole: Any = None
    for chunk in model.stream("1 + 2?"):
        whole = chunk if whole is None else whole + chunk
    assert [call["args"] for call in whole.tool_calls] == [{"a": 1, "b": 2}] * 2
    results = [ToolMessage("3", tool_call_id=call["id"]) for call in answer.tool_calls]
    assert model.invoke([HumanMessage("1 + 2?"), answer, *results]).text == "It is 3."


def test_errors_are_the_clients(daemon: DaemonProcess) -> None:
    with pytest.raises(openai.NotFoundError):
        chat(daemon, "none").invoke("hi")
    with pytest.raises(openai.BadRequestError):
        chat(daemon, "words", temperature=7).invoke("hi")
