"""Field cases of section D over HTTP, streamed and not, with and without x-include-thinking. Named after the case."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.contract.asking import Answer, ask, body_of, function, read_stream, read_whole, script
from tests.harness.daemon import DaemonProcess

OPENING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)
CALL = ["<tool_call>", '{"name":"rm","arguments":{}}', "</tool_call>"]
RAW = "".join(CALL)
TOOLS = [function("rm")]
#: Answers to a prompt that ends inside an open block.
OPENED: dict[str, list[Any]] = {
    "cut": ["step ", "one ", "step ", "two ", "step ", "three"],
    "closed": ["step", "</think>", "answer"],
    "number": ["42"],
    "call": ["hm", "</think>", *CALL],
}
#: Answers to a prompt that opens nothing.
PLAIN: dict[str, list[Any]] = {
    "spelled": ["```", "<", "th", "ink", ">", "x", "</", "think>", "```", " done"],
    "spelled close": ["<think>", "a ", "</", "think>", " b", "</think>", "c"],
    "second": ["<think>", "a", "</think>", "b", "<think>", "c", "</think>", "d"],
    "stray close": ["a", "</think>", "b"],
    "call in thought": ["<think>", "maybe ", *CALL, "</think>", "No need."],
    "call never closed": ["<think>", "maybe ", *CALL, " or not"],
    "only thought": ["<think>", "hm"],
    "empty": ["<think>", "\n\n", "</think>", "\n\n", "hi"],
}
INCLUDE = {"x-include-thinking": "true"}


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess({"opened": script(OPENED, OPENING), "plain": script(PLAIN)}) as daemon:
        yield daemon


@pytest.fixture(name="client", scope="module")
def _client(daemon: DaemonProcess) -> Iterator[httpx.Client]:
    with daemon.client(headers=INCLUDE) as client:
        yield client


def shown(client: httpx.Client, model: str, name: str, **fields: Any) -> Answer:
    """With thinking included."""
    body = body_of(model, name, **fields)
    whole = read_whole(client.post("/v1/chat/completions", json=body))
    stream = read_stream(client.post("/v1/chat/completions", json={**body, "stream": True}))
    assert stream.shown() == whole.shown()
    assert whole.reasoning == ""
    return whole


def test_reas_01_cut_before_the_block_closes(daemon: DaemonProcess, client: httpx.Client) -> None:
    answer = ask(daemon, "opened", "cut", max_tokens=4)
    assert (answer.content, answer.finish) == ("", "length")
    assert answer.reasoning == "step one step two "
    # The limit left the block open; no close marker is made up.
    assert shown(client, "opened", "cut", max_tokens=4).content == "<think>step one step two "
    closed = ask(daemon, "opened", "closed")
    assert (closed.content, closed.reasoning, closed.finish) == ("answer", "step", "stop")
    assert shown(client, "opened", "closed").content == "<think>step</think>answer"


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"thinking": {"type": "disabled"}},
    ],
)
def test_reas_02_switched_off(daemon: DaemonProcess, client: httpx.Client, fields: dict[str, Any]) -> None:
    answer = ask(daemon, "opened", "number", **fields)
    assert (answer.content, answer.reasoning) == ("42", "")
    assert shown(client, "opened", "number", **fields).content == "42"


def test_reas_04_quoted_markers(daemon: DaemonProcess) -> None:
    spelled = ask(daemon, "plain", "spelled")
    assert (spelled.content, spelled.reasoning) == ("```<think>x</think>``` done", "")
    close = ask(daemon, "plain", "spelled close")
    assert (close.content, close.reasoning) == ("c", "a </think> b")
    second = ask(daemon, "plain", "second")
    assert (second.content, second.reasoning) == ("bd", "ac")
    stray = ask(daemon, "plain", "stray close")
    assert (stray.content, stray.reasoning) == ("ab", "")


@pytest.mark.parametrize("said", ["What is <think>?", "<think>", "</think> <think>\n"])
def test_reas_04_markers_in_the_question_change_nothing(daemon: DaemonProcess, said: str) -> None:
    messages = [{"role": "user", "content": f"{said} case second!"}]
    answer = ask(daemon, "plain", messages)
    assert (answer.content, answer.reasoning) == ("bd", "ac")


def test_reas_05_calls_inside_thought(daemon: DaemonProcess) -> None:
    closed = ask(daemon, "plain", "call in thought", tools=TOOLS)
    assert (closed.content, closed.calls, closed.finish) == ("No need.", [], "stop")
    assert closed.reasoning == "maybe " + RAW
    never = ask(daemon, "plain", "call never closed", tools=TOOLS)
    assert (never.content, never.calls) == ("", [])
    after = ask(daemon, "opened", "call", tools=TOOLS)
    assert (after.reasoning, after.calls, after.finish) == ("hm", [("rm", {})], "tool_calls")


def test_blank_thought_and_thought_alone(daemon: DaemonProcess) -> None:
    empty = ask(daemon, "plain", "empty")
    assert empty.content == "hi"
    alone = ask(daemon, "plain", "only thought")
    assert (alone.content, alone.reasoning, alone.finish) == ("", "hm", "stop")
    details = alone.usage["completion_tokens_details"]
    assert 2 <= details["reasoning_tokens"] <= alone.usage["completion_tokens"]
