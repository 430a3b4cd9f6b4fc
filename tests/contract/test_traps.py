"""Traps that the reference daemon fell into, each as a test named after its number in our notes.

4, 15, 21 and 33 are also held by the cases of reasoning and tools; 16 is in tests/fault, 12 in test_gateway.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.asking import EOS, MARKS, ask, ask_status, body_of, function, read_stream, script
from tests.contract.gateway import Gateway, strict_chunks
from tests.harness.daemon import DaemonProcess

OPENING = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant><think>\n"
STRICT = (
    "{% if messages[0].role != 'system' and messages[0].role != 'user' %}{{ raise_exception('odd start') }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}"
    "{% for k, v in c.function.arguments|items %} {{ k }}={{ v }}{% endfor %}]{% endfor %}{% endfor %}"
    "{% if tools %}<tools>{% for t in tools %}{{ t.function.name }}{% endfor %}{% endif %}<assistant>"
)
XML = ["<tool_call>", "\n<function=look>\n<parameter=n>\n3\n</parameter>\n</function>\n", "</tool_call>"]
LOOK = function("look", n={"type": "integer"})
TOOL_PROMPT = "<system>a\n\nb<user>go<assistant>[look n=3]<tool>done<user>case seen!<tools>look<assistant>"
SCRIPTS: dict[str, Any] = {
    "opened": script({"split": ["secret", "</think>", "answer"], "cut": ["secret", " more"] * 8}, OPENING),
    "strict": {
        "turns": [
            {"when": TOOL_PROMPT, "emit": ["saw all", EOS]},
            {"when": "case call!", "emit": [*XML, EOS]},
            {"emit": ["saw less", EOS]},
        ],
        "added_tokens": MARKS,
        "chat_template": STRICT,
        "context_length": 600,
    },
    "silent": {
        "turns": [{"emit": ["late", EOS], "prefill_ms_per_token": 60}],
        "chat_template": "{{ messages[0].content }}",
    },
    "thinks": script({"hidden": ["<think>", *["thought "] * 40, "</think>", "ok"]}),
    "slow": {"turns": [{"emit": ["tick "], "repeat": True, "delay_ms": 20}]},
}


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess(SCRIPTS) as daemon:
        yield daemon


def test_trap_04_and_15_thinking_is_no_answer_in_either_mode(daemon: DaemonProcess) -> None:
    answer = ask(daemon, "opened", "split")
    assert (answer.content, answer.reasoning) == ("answer", "secret")
    truncated = ask(daemon, "opened", "cut", max_tokens=3)
    assert (truncated.content, truncated.finish) == ("", "length")
    assert truncated.reasoning == "secret moresecret"


def test_trap_05_and_21_xml_calls_are_calls_in_either_mode(daemon: DaemonProcess) -> None:
    answer = ask(daemon, "strict", "call", tools=[LOOK])
    assert (answer.content, answer.calls, answer.finish) == ("", [("look", {"n": 3})], "tool_calls")


@pytest.mark.parametrize("arguments", ['{"n": 3}', {"n": 3}])
@pytest.mark.parametrize("content", [None, ""])
def test_trap_06_07_and_25_second_turn_of_an_agent(daemon: DaemonProcess, arguments: Any, content: Any) -> None:
    """A second system turn, arguments as text or object, null content: the prompt is what the model was trained on."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}
    messages = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
        {"role": "system", "content": "b"},
        {"role": "user", "content": "case seen!"},
    ]
    assert ask(daemon, "strict", messages, tools=[LOOK]).content == "saw all"


def test_trap_08_a_template_that_refuses_is_an_error(daemon: DaemonProcess) -> None:
    error = ask_status(daemon, "strict", [{"role": "assistant", "content": "x"}], tools=[LOOK])
    assert (error["status"], error["code"]) == (400, "template_error")
    assert "odd start" in error["message"]


def test_trap_09_nobody_pays_for_thinking_nobody_sees(daemon: DaemonProcess) -> None:
    """Hidden thinking is in the usage, and on the wire, and can be switched off."""
    answer = ask(daemon, "thinks", "hidden")
    assert answer.content == "ok"
    assert answer.usage["completion_tokens_details"]["reasoning_tokens"] >= 40
    assert answer.reasoning.startswith("thought ")


def test_trap_10_every_stream_has_usage(daemon: DaemonProcess) -> None:
    for options in ({}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
        with daemon.client() as client:
            answer = read_stream(
                client.post("/v1/chat/completions", json=body_of("opened", "split", stream=True, **options))
            )
        assert answer.usage["total_tokens"] > 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_trap_11_errors_are_objects_that_agents_read(daemon: DaemonProcess, path: str) -> None:
    long = "x" * 2000
    body = {"model": "test/strict", "messages": [{"role": "user", "content": long}], "input": long}
    for stream in (False, True):
        with daemon.client() as client:
            answer = client.post(path, json={**body, "stream": stream})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert {"message", "type", "param", "code"} <= error.keys()
        assert "maximum context length" in error["message"]


def test_trap_14_easy_items_null_content_unknown_parts(daemon: DaemonProcess) -> None:
    items: list[Any] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"n": 3}'},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {"role": "user", "content": "case seen!"},
    ]
    flat = {"type": "function", **LOOK["function"]}
    with daemon.client() as client:
        body = {
            "model": "test/strict",
            "input": items,
            "instructions": "a\n\nb",
            "tools": [flat, {"type": "web_search"}],
        }
        answer = client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][0]["content"][0]["text"] == "saw all"


def test_trap_20_type_and_number_in_every_frame(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        text = client.post("/v1/responses", json={"model": "test/thinks", "input": "case hidden!", "stream": True}).text
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]
    assert all(event["type"].startswith("response.") for event in events)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_trap_25_the_newer_name_of_the_limit(daemon: DaemonProcess) -> None:
    answer = ask(daemon, "slow", "x", max_completion_tokens=3)
    assert (answer.usage["completion_tokens"], answer.finish) == (3, "length")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_trap_33_and_34_a_silent_stream_says_something_each_second(daemon: DaemonProcess, path: str) -> None:
    """Prefill lasts seconds here: the head, then comments, never a gap that an idle timer would notice."""
    said = "x" * 60
    body = {"model": "test/silent", "messages": [{"role": "user", "content": said}], "input": said, "stream": True}
    comments, data = 0, 0
    with daemon.client() as client, client.stream("POST", path, json=body) as answer:
        for line in answer.iter_lines():
            comments += line.startswith(":")
            data += line.startswith("data:")
    assert comments >= 2
    assert data > 2


def test_trap_33_thinking_is_on_the_wire_in_both_apis(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        chat = client.post("/v1/chat/completions", json=body_of("thinks", "hidden", stream=True)).text
        body = {"model": "test/thinks", "input": "case hidden!", "stream": True}
        responses = client.post("/v1/responses", json=body).text
    assert chat.count('"reasoning_content":"thought "') == 40
    assert responses.count("event: response.reasoning_text.delta") == 40


def test_trap_35_the_last_line_says_how_it_ended(daemon: DaemonProcess) -> None:
    def terminal(request_id: str, **fields: Any) -> dict[str, Any]:
        with daemon.client(headers={"x-request-id": request_id}) as client:
            client.post("/v1/chat/completions", json=body_of("slow", "x", **fields))
        return daemon.wait_for_log("done", req_id=request_id)

    assert terminal("capped", max_tokens=2)["finish_reason"] == "length"
    assert terminal("finished", max_tokens=9, stop=["tick"])["finish_reason"] == "stop"
    assert {"prompt_tokens", "completion_tokens", "cached_tokens", "total_ms"} <= terminal("more", max_tokens=1).keys()
    with daemon.client(headers={"x-request-id": "abandoned"}) as client:
        stream_body = body_of("slow", "x", stream=True, max_tokens=4000)
        with client.stream("POST", "/v1/chat/completions", json=stream_body) as answer:
            next(answer.iter_lines())
    failed = daemon.wait_for_log("failed", req_id="abandoned")
    assert failed["error_code"] not in ("", None)
    assert len(daemon.log_lines("failed", req_id="abandoned")) == 1


def test_the_anthropic_path_reads_every_frame(daemon: DaemonProcess) -> None:
    """Arguments as objects, foreign keys, one strict reader of frames: thinking, text and a call."""
    gateway = Gateway(daemon.url)
    try:
        foreign = {
            "thinking": {"type": "adaptive"},
            "stop_sequences": ["zzz"],
            "metadata": {},
            "betas": ["x"],
            "top_k": 5,
        }
        body = {**body_of("strict", "call", tools=[LOOK], stream=True, **foreign), "model": "test/strict"}
        chunks = strict_chunks(gateway.forward("/v1/chat/completions", body).body)
        calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls]
        assert [call.function.name for call in calls if call.function.name] == ["look"]
        assert [call.index for call in calls] == [0] * len(calls)
        assert chunks[-1].usage is not None
        counted = gateway.forward("/v1/chat/completions", {**body, "stream": False}).counts
        assert counted["completion_tokens"] == chunks[-1].usage.completion_tokens
    finally:
        gateway.close()
