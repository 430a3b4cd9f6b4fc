"""The gateway's stand-in works against the real daemon, idle and under load, and notices every missing key."""

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.contract import structs
from tests.contract.gateway import Gateway, GatewayError, decode, strict_chunks
from tests.harness.daemon import DaemonProcess, say

CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
SCRIPTS: dict[str, Any] = {
    "plain": say("Hel", "lo", " there"),
    "slow": say("tick ", repeat=True, delay_ms=20),
    "prefill": {"turns": [{"emit": ["x"], "prefill_ms_per_token": 5}]},
    "tools": {
        "turns": [{"emit": ["Let me look. ", "<tool_call>", "\n", CALL[:20], CALL[20:], "\n", "</tool_call>"]}],
        "added_tokens": ["<think>", "</think>", "<tool_call>", "</tool_call>"],
    },
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess(SCRIPTS) as daemon:
        yield daemon


@pytest.fixture(name="gateway")
def _gateway(daemon: DaemonProcess) -> Iterator[Gateway]:
    gateway = Gateway(daemon.url)
    yield gateway
    gateway.close()


def body(name: str, **fields: Any) -> dict[str, Any]:
    return {"model": f"test/{name}", "messages": [{"role": "user", "content": "hi"}], "temperature": 0, **fields}


def test_polls_while_idle(gateway: Gateway) -> None:
    polled = gateway.poll()
    assert polled.health.activation.state is structs.State.READY
    assert sorted(model.id for model in polled.models) == [f"test/{name}" for name in sorted(SCRIPTS)]
    assert {load.id for load in polled.health.models} == {model.id for model in polled.models}
    assert polled.discovery.harnesses == ["candle"]
    assert all(model.status == "loaded" and model.servable.ok for model in polled.models)
    assert gateway.version().features is not None


def test_polls_stay_quick_and_whole_under_load(daemon: DaemonProcess, gateway: Gateway) -> None:
    """A prefill of seconds, a decoding stream, loads and unloads go on meanwhile."""
    stop = threading.Event()

    def stream(name: str) -> None:
        with daemon.client(timeout=60.0) as client:
            payload = daemon.chat_body(name, stream=True, max_tokens=400)
            with client.stream("POST", "/v1/chat/completions", json=payload) as response:
                for _ in response.iter_lines():
                    if stop.is_set():
                        return

    def churn() -> None:
        while not stop.is_set():
            daemon.unload("plain")
            daemon.load("plain")

    threads = [threading.Thread(target=stream, args=(name,)) for name in ("slow", "slow", "prefill")]
    threads.append(threading.Thread(target=churn))
    for thread in threads:
        thread.start()
    try:
        depths = []
        for _ in range(40):
            polled = gateway.poll()
            depths += [load.in_flight + load.queue_depth for load in polled.health.models]
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert max(depths) >= 1
    daemon.wait_state("plain", "ready")


def test_cold_load_by_qualified_id_then_bare_id(daemon: DaemonProcess, gateway: Gateway) -> None:
    gateway.unload("test/plain")
    assert gateway.resolve("test/plain") is None
    gateway.cold_load("scripted:test/plain")
    gateway.cold_load("scripted:test/plain")
    assert gateway.resolve("test/plain") == daemon.url
    assert gateway.forward("/v1/chat/completions", body("plain")).status == 200


def test_a_conflicting_load_says_already_loaded(daemon: DaemonProcess) -> None:
    response = daemon.load("plain", max_context=128)
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "already_loaded"
    assert "already loaded" in response.json()["error"]["message"]


def test_meters_streams_and_buffered_answers_alike(gateway: Gateway) -> None:
    buffered = gateway.forward("/v1/chat/completions", body("plain"))
    streamed = gateway.forward("/v1/chat/completions", body("plain", stream=True))
    asked = gateway.forward("/v1/chat/completions", body("plain", stream=True, stream_options={"include_usage": True}))
    assert set(buffered.counts) == {"prompt_tokens", "completion_tokens", "cached_tokens"}
    assert buffered.counts == streamed.counts == asked.counts
    refused = gateway.forward("/v1/chat/completions", body("plain", temperature=9))
    assert (refused.status, refused.counts) == (400, {})


def test_every_frame_parses_strictly(gateway: Gateway) -> None:
    chunks = strict_chunks(gateway.forward("/v1/chat/completions", body("plain", stream=True)).body)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "Hello there"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].usage is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_tool_calls_open_one_block_each(gateway: Gateway) -> None:
    answer = gateway.forward("/v1/chat/completions", body("tools", stream=True, tools=[TOOL]))
    calls = [
        call for chunk in strict_chunks(answer.body) for choice in chunk.choices for call in choice.delta.tool_calls
    ]
    assert [call.function.name for call in calls if call.function.name] == ["get_weather"]
    assert calls[0].id
    assert msgspec.json.decode("".join(call.function.arguments for call in calls)) == {"city": "Paris"}


def test_the_anthropic_routes_conversation_is_accepted(gateway: Gateway) -> None:
    """One merged system message, arguments as objects, tool results as role tool, foreign keys at top level."""
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "weather?", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "toolu_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": {"city": "Paris"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"},
    ]
    foreign = {
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "u"},
        "stop_sequences": ["</end>"],
        "context_management": {"edits": []},
        "anthropic_version": "2023-06-01",
        "top_k": 40,
    }
    answer = gateway.forward(
        "/v1/chat/completions", {**body("tools", stream=True, tools=[TOOL], **foreign), "messages": messages}
    )
    assert answer.status == 200
    assert strict_chunks(answer.body)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/discovery", structs.Discovery),
        ("/models", list[structs.Model]),
        ("/health", structs.Health),
        ("/version", structs.Version),
    ],
)
def test_the_stand_in_notices_missing_and_mistyped_keys(daemon: DaemonProcess, path: str, kind: Any) -> None:
    """Mutation of the answers: each required key removed, then given another type, must be refused."""
    answer = daemon.get(path)
    decode(msgspec.json.encode(answer), kind)
    mutants = list(_mutants(answer, kind))
    assert len(mutants) >= 6
    unnoticed = [name for name, mutant in mutants if not _refused(mutant, kind)]
    assert unnoticed == []


def _refused(answer: Any, kind: Any) -> bool:
    try:
        decode(msgspec.json.encode(answer), kind)
    except GatewayError:
        return True
    return False


def _mutants(value: Any, kind: Any) -> Iterator[tuple[str, Any]]:
    """Every required key of `kind` within `value`: once missing, once of another type."""
    if isinstance(value, list) and value:
        inner = kind.__args__[0] if hasattr(kind, "__args__") else None
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            for name, mutant in _mutants(value[0], inner):
                yield name, [mutant, *value[1:]]
        return
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return
    for field in msgspec.structs.fields(kind):
        missing = {key: item for key, item in value.items() if key != field.name}
        yield f"{field.name} missing", missing
        yield f"{field.name} mistyped", {**value, field.name: {"not": ["the", "type"]}}
        for name, mutant in _mutants(value[field.name], field.type):
            yield f"{field.name}.{name}", {**value, field.name: mutant}
