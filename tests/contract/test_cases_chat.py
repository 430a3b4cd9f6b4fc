"""Field cases of sections A and B over HTTP that need the rendered prompt or other members of their kind.

The rest of these sections is in tests/api/test_daemon_chat.py, tests/api/test_daemon_life.py and tests/fault.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.asking import EOS, MARKS, ask, ask_status, body_of, function, script
from tests.harness.daemon import DaemonProcess

CALLS = [{"id": "c1", "type": "function", "function": {"name": "sqrt", "arguments": '{"v":101}'}}]
#: Shows every role, content and call of the prompt.
OPEN_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }}{% for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}]{% endfor %}"
    "{% endfor %}<assistant>"
)
HISTORY = "<user>root of 101?<assistant>[sqrt v=101]<tool>10.05<assistant>"
SYSTEM = "<system>Answer in rhyme.<user>hi<assistant>"
MERGED = "<system>one\n\ntwo\n\nthree<user>a<assistant>b<user>c<assistant>"
PARTS = {role: f"<{role}>alpha\nomega" for role in ("user", "system", "tool")}
PROMPTS = {"history": HISTORY, "rhyme": SYSTEM, "merged": MERGED, **PARTS}
SHOWN: dict[str, Any] = {
    "turns": [{"when": prompt, "emit": [f"saw {name}", EOS]} for name, prompt in PROMPTS.items()]
    + [{"emit": ["saw something else", EOS]}],
    "chat_template": OPEN_TEMPLATE,
    "added_tokens": MARKS,
}
FOX = ["The quick br", "own", " fo", "x jumps"]
STOPS: dict[str, tuple[list[Any], list[str], str]] = {
    "over tokens": (FOX, ["own fox"], "The quick br"),
    "first of two": (FOX, ["jumps", "quick"], "The "),
    "overlapping": (["aaab", "aab", "c"], ["aabc"], "aaab"),
    "never whole": (FOX, ["fox!"], "".join(FOX)),
    "at the end": (FOX, ["jumps"], "The quick brown fox "),
    "whole answer": (["stop"], ["stop"], ""),
    "prefix at the end": (["hello <"], ["<|x|>"], "hello <"),
    "accent": (["caf", {"bytes": "c3"}, {"bytes": "a9"}, " noir"], ["é n"], "caf"),
    "emoji": (["x", {"bytes": "f0"}, {"bytes": "9f98"}, {"bytes": "80"}, "y"], ["\U0001f600"], "x"),
    "behind thinking": (["<think>", "stop", "</think>", "go stop", " on"], ["stop"], "go "),
    "newlines": (["a\n", "\nb"], ["\n\n"], "a"),
}


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    stops = script({name: emit for name, (emit, _, _) in STOPS.items()})
    endless = {
        "turns": [{"emit": ["a"], "repeat": True}],
        "context_length": 64,
        "chat_template": "{{ messages[0].content }}",
    }
    with DaemonProcess({"shown": SHOWN, "stops": stops, "endless": endless}) as daemon:
        yield daemon


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}, {"content": []}])
@pytest.mark.parametrize("arguments", ['{"v":101}', {"v": 101}])
def test_chat_01_calls_with_null_or_absent_content(daemon: DaemonProcess, content: Any, arguments: Any) -> None:
    call = {**CALLS[0], "function": {"name": "sqrt", "arguments": arguments}}
    history = [
        {"role": "user", "content": "root of 101?"},
        {"role": "assistant", **content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "10.05"},
    ]
    answer = ask(daemon, "shown", history)
    assert answer.content == "saw history"
    assert answer.usage["prompt_tokens"] == len(HISTORY)


@pytest.mark.parametrize("role", PARTS)
def test_chat_02_text_parts(daemon: DaemonProcess, role: str) -> None:
    parts = [{"type": "text", "text": "alpha"}, {"type": "text", "text": "omega"}]
    before = [] if role == "system" else [{"role": "user", "content": "x"}]
    answer = ask(daemon, "shown", [*before, {"role": role, "content": parts}])
    assert answer.content == f"saw {role}"


@pytest.mark.parametrize(
    "part", [{"type": "input_hologram"}, {"type": "input_audio", "input_audio": {}}, {"text": "a"}, 7]
)
def test_chat_02_unknown_parts(daemon: DaemonProcess, part: Any) -> None:
    error = ask_status(daemon, "shown", [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}])
    assert error["status"] == 400
    assert error["param"].startswith("messages[0].content[1]")


def test_chat_03_developer_is_system(daemon: DaemonProcess) -> None:
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "Answer in rhyme."}, {"role": "user", "content": "hi"}]
        answer = ask(daemon, "shown", messages)
        assert (answer.content, answer.usage["prompt_tokens"]) == ("saw rhyme", len(SYSTEM))
    odd: tuple[Any, ...] = ("wizard", "", None, 3, "User")
    for name in odd:
        assert ask_status(daemon, "shown", [{"role": name, "content": "hi"}])["status"] == 400


def test_chat_03_system_turns_are_joined_in_order(daemon: DaemonProcess) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "one"},
        {"role": "user", "content": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "b"},
        {"role": "system", "content": "three"},
        {"role": "user", "content": "c"},
    ]
    assert ask(daemon, "shown", messages).content == "saw merged"


@pytest.mark.parametrize("name", STOPS)
def test_chat_06_08_13_stops(daemon: DaemonProcess, name: str) -> None:
    _, stop, content = STOPS[name]
    answer = ask(daemon, "stops", name, stop=stop)
    assert (answer.content, answer.finish) == (content, "stop")
    assert "\ufffd" not in answer.content
    assert ask(daemon, "stops", name, stop_sequences=stop).content == content


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None, "tool_choice": "auto"},
        {"tools": None, "tool_choice": None},
        {"tool_choice": "none"},
    ],
)
def test_chat_09_harmless_combinations(daemon: DaemonProcess, fields: dict[str, Any]) -> None:
    messages = [{"role": "system", "content": "Answer in rhyme."}, {"role": "user", "content": "hi"}]
    answer = ask(daemon, "shown", messages, **fields)
    assert (answer.content, answer.usage["prompt_tokens"]) == ("saw rhyme", len(SYSTEM))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [], "tool_choice": "required"}, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tools"),
        ({"tools": [function("g")], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [function("g")], "tool_choice": "sometimes"}, "tool_choice"),
    ],
)
def test_chat_09_contradictions(daemon: DaemonProcess, fields: dict[str, Any], param: str) -> None:
    error = ask_status(daemon, "shown", "x", **fields)
    assert (error["status"], error["param"]) == (400, param)


def test_chat_12_every_length_around_the_context(daemon: DaemonProcess) -> None:
    """Bytes are tokens here. A prompt may fill the context; one token then follows."""
    for length, made in ((40, 24), (60, 4), (63, 1), (64, 1)):
        said = [{"role": "user", "content": "x" * length}]
        answer = ask(daemon, "endless", said, max_tokens=100)
        assert answer.finish == "length"
        assert answer.usage["prompt_tokens"] == length
        assert answer.usage["completion_tokens"] == made
    error = ask_status(daemon, "endless", [{"role": "user", "content": "x" * 65}])
    assert (error["status"], error["code"], error["kind"]) == (400, "context_length_exceeded", "prompt_too_long")
    assert (error["prompt_len"], error["max"]) == (65, 64)


def test_sse_05_bytes_come_back_as_they_were(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        raw = client.post("/v1/chat/completions", json=body_of("stops", "accent", stream=True)).content
    assert raw.endswith(b"data: [DONE]\n\n")
    assert b"\r" not in raw
    assert "café noir" in "".join(part for part in raw.decode().split('"content":"') for part in [part.split('"')[0]])
