"""Chat completions over HTTP against the real daemon with scripted models: fields, framing, parity, usage."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.daemon import DaemonProcess, say

FOX = ["The quick br", "own", " fo", "x jumps"]
THINKING = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
REFUSING = (
    "{% for m in messages %}{% if m.role not in ['system','user','assistant','tool'] %}"
    "{{ raise_exception('unexpected role') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
SCRIPTS: dict[str, Any] = {
    "fox": say(*FOX),
    "endless": say("a", repeat=True),
    "cafe": say("caf", {"bytes": "c3"}, {"bytes": "a9"}, " noir"),
    "emoji": say("x", {"bytes": "f0"}, {"bytes": "9f98"}, {"bytes": "80"}, "y"),
    "tail": {**say("hello <"), "added_tokens": THINKING},
    "thinks": {**say("<think>", "plan", "</think>", "ok"), "added_tokens": THINKING},
    "lines": say("a\nb", "\r", "data: x\n\n", "\u2028", "end"),
    "roles": {**say("fine"), "chat_template": REFUSING},
    "small": {**say("x", repeat=True), "context_length": 64},
    "nan": say("a", "b", fault={"at": 1, "phase": "decode", "kind": "nan"}),
    "host": say("a", "b", "c", fault={"at": 2, "phase": "decode", "kind": "host", "text": "shape mismatch"}),
    "device": say(
        "a",
        "b",
        "c",
        fault={
            "at": 2,
            "phase": "decode",
            "kind": "device",
            "text": "CUDA error: an illegal memory access was encountered",
        },
    ),
}


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    # A device fault takes every model of its device along, so that one lives alone.
    alone = '[[models]]\nid = "scripted:test/device"\ndevices = ["cpu:1"]\n'
    with DaemonProcess(SCRIPTS, alone, models=[name for name in SCRIPTS if name != "device"]) as daemon:
        yield daemon


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line[6:]) for line in response.text.split("\n") if line.startswith("data: {")]


def both(daemon: DaemonProcess, name: str, content: str = "hi", **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The buffered answer, and the stream folded to the same form; parity is checked here."""
    buffered = daemon.chat(name, content, **fields).json()
    chunks = chunks_of(daemon.chat(name, content, stream=True, **fields))
    folded = fold(chunks)
    choice = buffered["choices"][0]
    assert (choice["message"].get("content") or "") == folded["content"]
    assert choice["message"].get("reasoning_content", "") == folded["reasoning"]
    assert choice["finish_reason"] == folded["finish_reason"]
    plain = ("prompt_tokens", "completion_tokens", "total_tokens", "completion_tokens_details")
    assert [buffered["usage"][key] for key in plain] == [folded["usage"][key] for key in plain]
    return buffered, folded


def fold(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
    assert len(reasons) == 1
    return {
        "content": "".join(choice["delta"].get("content", "") for choice in choices),
        "reasoning": "".join(choice["delta"].get("reasoning_content", "") for choice in choices),
        "finish_reason": reasons[0],
        "usage": chunks[-1]["usage"],
    }


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 2}, 2),
        ({"max_completion_tokens": 2}, 2),
        ({"max_tokens": 9, "max_completion_tokens": 3}, 3),
    ],
)
def test_chat_04_exact_limits(daemon: DaemonProcess, fields: dict[str, Any], tokens: int) -> None:
    buffered, _ = both(daemon, "endless", **fields)
    assert buffered["usage"]["completion_tokens"] == tokens
    assert buffered["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("value", [0, -1, "5"])
@pytest.mark.parametrize("streamed", [True, False])
def test_chat_04_bad_limits(daemon: DaemonProcess, value: Any, streamed: bool) -> None:
    response = daemon.chat("endless", max_tokens=value, stream=streamed)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 1e-4},
        {"temperature": 1e-40},
        {"temperature": 1, "top_p": 1e-4},
        {"temperature": 1, "top_p": 0},
        {"temperature": 0, "top_p": 0.5},
    ],
)
def test_chat_05_tiny_temperatures_pick_the_best(daemon: DaemonProcess, fields: dict[str, Any]) -> None:
    for _ in range(3):
        assert daemon.chat("fox", **fields).json()["choices"][0]["message"]["content"] == "".join(FOX)


def test_chat_05_nan_logits_fail_one_request(daemon: DaemonProcess) -> None:
    response = daemon.chat("nan")
    assert (response.status_code, response.json()["error"]["code"]) == (500, "nan_logits")
    assert daemon.chat("nan").status_code == 200
    model = daemon.model("nan")
    assert model is not None
    assert model["state"] == "ready"


@pytest.mark.parametrize(
    ("name", "stop", "content", "reason"),
    [
        ("fox", ["own fox"], "The quick br", "stop"),
        ("fox", ["zzz", "own fox"], "The quick br", "stop"),
        ("fox", ["fox!"], "The quick brown fox jumps", "stop"),
        ("cafe", ["é"], "caf", "stop"),
        ("cafe", ["é n"], "caf", "stop"),
        ("emoji", ["\U0001f600"], "x", "stop"),
        ("tail", ["<|x|>"], "hello <", "stop"),
        ("thinks", ["ZZZZZZZZ"], "ok", "stop"),
    ],
)
def test_chat_06_08_13_stop_strings(
    daemon: DaemonProcess, name: str, stop: list[str], content: str, reason: str
) -> None:
    buffered, _ = both(daemon, name, stop=stop)
    choice = buffered["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (content, reason)
    assert "\ufffd" not in json.dumps(buffered, ensure_ascii=False)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None, "tool_choice": "auto"},
        {"tools": None, "tool_choice": None},
        {"tool_choice": "none"},
    ],
)
def test_chat_09_harmless_tool_fields(daemon: DaemonProcess, fields: dict[str, Any]) -> None:
    plain = daemon.chat("fox").json()["usage"]["prompt_tokens"]
    assert daemon.chat("fox", **fields).json()["usage"]["prompt_tokens"] == plain


@pytest.mark.parametrize("streamed", [True, False])
def test_chat_09_required_without_tools(daemon: DaemonProcess, streamed: bool) -> None:
    response = daemon.chat("fox", tools=[], tool_choice="required", stream=streamed)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


def test_chat_02_parts_are_text(daemon: DaemonProcess) -> None:
    joined = [{"role": "user", "content": "alpha\nomega"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "alpha"}, {"type": "text", "text": "omega"}]}]
    counts = [daemon.chat("fox", messages=messages).json()["usage"]["prompt_tokens"] for messages in (joined, parts)]
    assert counts[0] - counts[1] in (0, 1)


def test_chat_03_developer_is_system(daemon: DaemonProcess) -> None:
    counts = []
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "Answer in rhyme."}, {"role": "user", "content": "hi"}]
        response = daemon.chat("roles", messages=messages)
        assert response.status_code == 200, response.text
        counts.append(response.json()["usage"]["prompt_tokens"])
    assert counts[0] == counts[1]


def test_chat_11_usage_agrees_and_counts_reasoning(daemon: DaemonProcess) -> None:
    buffered, _ = both(daemon, "thinks", stream_options={"include_usage": True})
    usage = buffered["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] >= 1
    assert usage["completion_tokens"] >= 4


@pytest.mark.parametrize("streamed", [True, False])
def test_chat_12_long_prompts_are_refused_with_a_status(daemon: DaemonProcess, streamed: bool) -> None:
    response = daemon.chat("small", "x" * 100, stream=streamed)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert str(error["max"]) in error["message"]
    assert str(error["prompt_len"]) in error["message"]


def test_chat_12_a_limit_beyond_the_context_is_clamped(daemon: DaemonProcess) -> None:
    buffered, _ = both(daemon, "small", "x", max_tokens=1000)
    usage = buffered["usage"]
    assert buffered["choices"][0]["finish_reason"] == "length"
    assert usage["total_tokens"] <= 64


@pytest.mark.parametrize(
    ("options", "asked"),
    [("absent", False), ({"include_usage": False}, False), ({"include_usage": True}, True), (None, False)],
)
def test_sse_01_usage_chunk(daemon: DaemonProcess, options: Any, asked: bool) -> None:
    fields = {} if options == "absent" else {"stream_options": options}
    chunks = chunks_of(daemon.chat("fox", stream=True, **fields))
    empty = [chunk for chunk in chunks if chunk["choices"] == []]
    if not asked:
        assert empty == []
        assert chunks[-1]["usage"]["total_tokens"] > 0
        return
    assert empty == [chunks[-1]]
    assert chunks[-1]["usage"]["total_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("name", "code", "state"), [("host", "internal_error", "ready"), ("device", "device_fault", "poisoned")]
)
def test_sse_02_errors_after_the_stream_began(daemon: DaemonProcess, name: str, code: str, state: str) -> None:
    response = daemon.chat(name, stream=True)
    lines = [line for line in response.text.split("\n") if line.startswith("data:")]
    errors = [json.loads(line[6:])["error"] for line in lines if '"error"' in line]
    assert [error["code"] for error in errors] == [code]
    assert '"error"' in lines[-1]
    assert "illegal memory" not in response.text
    daemon.wait_state(name, state)
    if state == "poisoned":
        refused = daemon.chat(name)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_poisoned")
        assert refused.headers["x-should-retry"] == "false"


def test_sse_05_framing(daemon: DaemonProcess) -> None:
    response = daemon.chat("lines", stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    assert all(frame.startswith(("data: ", ":")) and "\n" not in frame for frame in frames[:-1])
    chunks = chunks_of(response)
    assert len({(chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert isinstance(chunks[0]["created"], int)
    assert all(set(choice) >= {"index", "delta", "finish_reason"} for chunk in chunks for choice in chunk["choices"])
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert fold(chunks)["content"] == "a\nb\rdata: x\n\n\u2028end"


def test_answers_carry_timings_and_ids(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        response = client.post("/v1/chat/completions", json=daemon.chat_body("fox"), headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    body = response.json()
    assert set(body["timings"]) == {
        "prompt_n",
        "prompt_ms",
        "prompt_per_second",
        "predicted_n",
        "predicted_ms",
        "predicted_per_second",
        "queue_ms",
        "cached_n",
    }
    assert set(body["usage"]["helexa_timing"]) == {"prefill_ms", "decode_ms", "prefill_tokens"}
    assert response.text.index('"choices"') < response.text.index('"usage"')


def test_both_ids_name_one_model(daemon: DaemonProcess) -> None:
    for model in ("test/fox", "scripted:test/fox"):
        with daemon.client() as client:
            assert (
                client.post("/v1/chat/completions", json={**daemon.chat_body("fox"), "model": model}).status_code == 200
            )
            assert client.get(f"/v1/models/{model}").json()["id"] == "test/fox"


def test_half_a_surrogate_pair_is_refused_by_place(daemon: DaemonProcess) -> None:
    with daemon.client() as client:
        headers = {"content-type": "application/json"}
        body = '{"model": "test/fox", "messages": [{"role": "user", "content": "emoji \\ud83d"}]%s}'
        for extra in ("", ', "stream": true'):
            response = client.post("/v1/chat/completions", content=body % extra, headers=headers)
            assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[0].content")
        responses = client.post("/v1/responses", content='{"model": "test/fox", "input": "\\ud83d"}', headers=headers)
        assert responses.json()["error"]["param"] == "input"
        whole = body.replace("\\ud83d", "\\ud83d\\ude00") % ""
        assert client.post("/v1/chat/completions", content=whole, headers=headers).status_code == 200
