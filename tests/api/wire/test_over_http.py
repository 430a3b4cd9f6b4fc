"""Field cases of sections A, C, D and E over HTTP: the real daemon with a scripted model, streamed and not."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.daemon import DaemonProcess

EOS = {"eos": True}
NAME = "cases"
OPENED = "opened"
CALL = '{"name":"rm","arguments":{}}'


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("rm"),
    tool("glob", pattern={"type": "string"}),
    tool("edit", old={"type": "string"}, n={"type": "integer"}),
]
BLOCK: list[Any] = ["<tool_call>", CALL, "</tool_call>"]
FOX: list[Any] = ["The quick br", "own", " fo", "x jumps"]
XML: list[Any] = [
    "<tool_call>",
    "\n<function=edit>\n<parameter=n>\n7",
    "\n</parameter>\n<parameter=old>\n  a\n\n</para",
]
#: name -> (emitted pieces, request fields, content, reasoning, calls, finish reason)
CASES: dict[str, tuple[list[Any], dict[str, Any], str, str, list[tuple[str, Any]], str]] = {
    "stop": (FOX, {"stop": ["own fox"]}, "The quick br", "", [], "stop"),
    "stop list": (FOX, {"stop": ["zzz", "own fox"]}, "The quick br", "", [], "stop"),
    "no stop": (FOX, {"stop": "fox!"}, "The quick brown fox jumps", "", [], "stop"),
    "held tail": (["hello <"], {"stop": ["<|x|>"]}, "hello <", "", [], "stop"),
    "reasoning with stop": (["<think>", "plan", "</think>", "ok"], {"stop": ["ZZZZZZZZ"]}, "ok", "plan", [], "stop"),
    "two byte stop": (["caf", {"bytes": "c3"}, {"bytes": "a9"}, " noir"], {"stop": ["é"]}, "caf", "", [], "stop"),
    "two byte start": (["caf", {"bytes": "c3"}, {"bytes": "a9"}, " noir"], {"stop": ["é n"]}, "caf", "", [], "stop"),
    "emoji stop": (
        ["a", {"bytes": "f09f"}, {"bytes": "a6"}, {"bytes": "8a"}, "b"],
        {"stop": ["\U0001f98a"]},
        "a",
        "",
        [],
        "stop",
    ),
    "cut": (["a", "b", "c", "d"], {"max_tokens": 2}, "ab", "", [], "length"),
    "spelled marker": (["```", "<", "th", "ink", ">", "```"], {}, "```<think>```", "", [], "stop"),
    "second block": (["<think>", "a", "</think>", "b", "<think>", "c", "</think>", "d"], {}, "bd", "ac", [], "stop"),
    "call in reasoning": (
        ["<think>", "maybe ", "<tool_call>", CALL, "</tool_call>", "</think>", "No need."],
        {"tools": TOOLS},
        "No need.",
        "maybe <tool_call>" + CALL + "</tool_call>",
        [],
        "stop",
    ),
    "json call": (
        ["<tool_call>", "\n" + CALL[:9], CALL[9:] + "\n", "</tool_call>"],
        {"tools": TOOLS},
        "",
        "",
        [("rm", {})],
        "tool_calls",
    ),
    "xml call": (
        [*XML, "meter>\n</function>\n", "</tool_call>"],
        {"tools": TOOLS},
        "",
        "",
        [("edit", {"n": 7, "old": "  a\n"})],
        "tool_calls",
    ),
    "text around": (
        ["One.", "<tool_call>", CALL, "</tool_call>", "Two.", "<tool_call>", CALL, "</tool_call>", "\n"],
        {"tools": TOOLS},
        "One.Two.",
        "",
        [("rm", {}), ("rm", {})],
        "tool_calls",
    ),
    "one call only": (
        ["<tool_call>", CALL, "</tool_call>", "<tool_call>", CALL, "</tool_call>"],
        {"tools": TOOLS, "parallel_tool_calls": False},
        "",
        "",
        [("rm", {})],
        "tool_calls",
    ),
    "no opening tag": (
        ["Look. ", "<function=glob>\n<parameter=pattern>\n*.md\n</parameter>\n</function>\n", "</tool_call>"],
        {"tools": TOOLS},
        "Look. ",
        "",
        [("glob", {"pattern": "*.md"})],
        "tool_calls",
    ),
    "undeclared": (["<function=frob>\n</function>"], {"tools": TOOLS}, "<function=frob>\n</function>", "", [], "stop"),
    "no tools": (["Say ", *BLOCK], {}, f"Say <tool_call>{CALL}</tool_call>", "", [], "stop"),
    "choice none": (
        ["Say ", "<tool_call>", CALL, "</tool_call>"],
        {"tools": TOOLS, "tool_choice": "none"},
        f"Say <tool_call>{CALL}</tool_call>",
        "",
        [],
        "stop",
    ),
    "surplus brace": (
        ["<tool_call>", CALL + "}", "</tool_call>"],
        {"tools": TOOLS},
        f"<tool_call>{CALL}}}</tool_call>",
        "",
        [],
        "stop",
    ),
    "cut call": (BLOCK, {"tools": TOOLS, "max_tokens": 2}, "<tool_call>" + CALL, "", [], "length"),
    "forced call": (
        ["<tool_call>", '\n{"name": "rm", "arguments": {}}\n', "</tool_call>"],
        {"tools": TOOLS, "tool_choice": "required"},
        "",
        "",
        [("rm", {})],
        "tool_calls",
    ),
    "schema": (
        ["<think>", "hm", "</think>", "\n\n", '{"x": 1}'],
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
        '{"x": 1}',
        "hm",
        [],
        "stop",
    ),
}
OPENED_CASES: dict[str, tuple[list[Any], dict[str, Any], str, str, str]] = {
    "cut thinking": (["step ", "one ", "two"], {"max_tokens": 2}, "", "step one ", "length"),
    "closed": (["step", "</think>", "answer"], {}, "answer", "step", "stop"),
    "off": (["42"], {"chat_template_kwargs": {"enable_thinking": False}}, "42", "", "stop"),
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)


def script(cases: dict[str, Any], template: str | None) -> dict[str, Any]:
    turns = [{"when": f"case {name}!", "emit": [*case[0], EOS]} for name, case in cases.items()]
    added = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    return {"turns": turns, "added_tokens": added, "special_tokens": ["<|im_end|>"], "chat_template": template}


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    scripts = {NAME: script(CASES, None), OPENED: script(OPENED_CASES, TEMPLATE)}
    with DaemonProcess(scripts) as process:
        yield process


@pytest.fixture(scope="module")
def http(daemon: DaemonProcess) -> Iterator[httpx.Client]:
    with daemon.client(timeout=60.0) as client:
        yield client


Answer = tuple[str, str, list[tuple[str, Any]], str, dict[str, Any]]


def usage_of(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body["usage"].items() if key != "helexa_timing"}


def whole(http: httpx.Client, body: dict[str, Any], **headers: str) -> Answer:
    answer = http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    message = choice["message"]
    calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", [])]
    reasoning = message.get("reasoning_content", "")
    return message["content"] or "", reasoning, calls, choice["finish_reason"], usage_of(answer.json())


def streamed(http: httpx.Client, body: dict[str, Any], **headers: str) -> Answer:
    content, reasoning, finish = "", "", ""
    calls: list[tuple[str, str]] = []
    usage: dict[str, Any] = {}
    with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}, headers=headers) as answer:
        raw = "".join(answer.iter_text())
    blocks = [block for block in raw.split("\n\n") if block.startswith("data: ")]
    assert blocks.pop() == "data: [DONE]"
    for block in blocks:
        chunk = json.loads(block.removeprefix("data: "))
        usage = usage_of(chunk) if chunk.get("usage") else usage
        for choice in chunk["choices"]:
            delta = choice["delta"]
            content += delta.get("content", "")
            reasoning += delta.get("reasoning_content", "")
            finish = choice["finish_reason"] or finish
            for entry in delta.get("tool_calls", []):
                if "name" in entry["function"]:
                    calls.append((entry["function"]["name"], ""))
                name, arguments = calls[entry["index"]]
                calls[entry["index"]] = (name, arguments + entry["function"]["arguments"])
    return content, reasoning, [(name, json.loads(text)) for name, text in calls], finish, usage


def body_of(daemon: DaemonProcess, model: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"case {name}!"}]
    return {"model": daemon.model_id(model), "messages": messages, "temperature": 0, **fields}


@pytest.mark.parametrize("name", CASES)
def test_case(daemon: DaemonProcess, http: httpx.Client, name: str) -> None:
    _, fields, content, reasoning, calls, finish = CASES[name]
    body = body_of(daemon, NAME, name, fields)
    first, second = whole(http, body), streamed(http, body)
    assert first[:4] == (content, reasoning, calls, finish)
    assert second == first


@pytest.mark.parametrize("name", OPENED_CASES)
def test_prompt_that_opens_thinking(daemon: DaemonProcess, http: httpx.Client, name: str) -> None:
    _, fields, content, reasoning, finish = OPENED_CASES[name]
    body = body_of(daemon, OPENED, name, fields)
    first = whole(http, body)
    assert first[:4] == (content, reasoning, [], finish)
    assert streamed(http, body) == first
    shown = whole(http, body, **{"x-include-thinking": "true"})
    assert shown == streamed(http, body, **{"x-include-thinking": "true"})
    closing = "</think>" if content and reasoning else ""
    assert shown[0] == (f"<think>{reasoning}{closing}{content}" if reasoning else content)
    assert shown[1] == ""


def test_responses_say_the_same(daemon: DaemonProcess) -> None:
    with daemon.openai() as client:
        for name in ("stop", "second block", "cut"):
            fields = {"max_output_tokens": 2} if name == "cut" else {}
            model = daemon.model_id(NAME)
            answer = client.responses.create(model=model, input=f"case {name}!", **fields)  # type: ignore[call-overload]
            events = list(
                client.responses.create(model=model, input=f"case {name}!", stream=True, **fields)  # type: ignore[call-overload]
            )
            last = events[-1].response
            assert last.output_text == answer.output_text
            assert last.status == answer.status == ("incomplete" if name == "cut" else "completed")
            assert [item.type for item in last.output] == [item.type for item in answer.output]
