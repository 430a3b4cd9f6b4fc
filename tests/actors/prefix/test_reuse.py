"""Reuse through the whole daemon without HTTP: a real device process, scripted models, and what operators see."""

import json
from pathlib import Path
from typing import Any

import pytest

from neuron.actors.daemon import PrefixCacheFigures
from neuron.actors.errors import ModelNotFound
from neuron.actors.events import TextDelta
from neuron.actors.request import InferenceRequest, Message, Role, SamplingParams
from neuron.runtime.logs import redirected
from tests.actors.host import Answer, Host, daemon, drain, read_until, turn

pytestmark = pytest.mark.anyio
LONG = "word " * 100


def _user(text: str) -> Message:
    return Message(role=Role.USER, content=text)


def _assistant(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


async def _ask(host: Host, *messages: Message, name: str = "m", **fields: Any) -> Answer:
    request = InferenceRequest(
        req_id="r",
        model=f"test/{name}",
        messages=messages,
        principal="p",
        sampling=SamplingParams(temperature=0.0),
        **fields,
    )
    return await drain(await host.registry.submit(request))


def _figures(host: Host) -> PrefixCacheFigures:
    figures = host.registry.load_figures()[0].prefix_cache
    assert figures is not None
    return figures


def _lines(path: Path, event: str) -> list[dict[str, Any]]:
    return [line for text in path.read_text().splitlines() if (line := json.loads(text))["event"] == event]


async def test_a_conversation_that_goes_on_computes_what_is_new(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file, redirected(file.fileno()):
        async with daemon(tmp_path, {"m": turn("yes")}) as host:
            first = (await _ask(host, _user(LONG))).finish
            second = (await _ask(host, _user(LONG), _assistant("yes"), _user(LONG))).finish
            third = (await _ask(host, _user("other " * 80))).finish
            fourth = (await _ask(host, _user(LONG), _assistant("yes"), _user("no " * 50))).finish
            figures = _figures(host)
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens > 500
    assert second.timings.cached_tokens == second.usage.cached_tokens
    assert second.timings.prefill_tokens == second.usage.prompt_tokens - second.usage.cached_tokens
    assert third.usage.cached_tokens == 0
    assert fourth.usage.cached_tokens == second.usage.cached_tokens
    assert (figures.hits, figures.misses) == (2, 2)
    assert figures.reused_tokens == 2 * second.usage.cached_tokens
    assert 0 < figures.bytes_used <= figures.bytes_budget
    hits = _lines(log, "prefix cache: hit")
    assert [line["reused_tokens"] for line in hits] == [second.usage.cached_tokens] * 2
    assert [line["cached_tokens"] for line in _lines(log, "prefill complete")] == [
        answer.usage.cached_tokens for answer in (first, second, third, fourth)
    ]
    assert [line["cached_tokens"] for line in _lines(log, "done")][1] == second.usage.cached_tokens


async def test_the_same_prompt_again_computes_its_last_token_at_least(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": turn("yes")}) as host:
        await _ask(host, _user(LONG))
        again = (await _ask(host, _user(LONG))).finish
    assert 0 < again.usage.cached_tokens < again.usage.prompt_tokens


async def test_a_request_that_is_left_leaves_what_it_computed(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": turn("a", repeat=True, delay_ms=1)}) as host:
        stream = await host.submit("m", LONG, max_tokens=5000)
        await read_until(stream, TextDelta)
        stream.cancel()
        await host.until_idle("m")
        again = (await _ask(host, _user(LONG), max_tokens=2)).finish
    assert again.usage.cached_tokens > 500


async def test_a_changed_head_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    # Bytes are tokens here: the text must not repeat itself, or it would be found everywhere.
    text = " ".join(f"line {number} of {number * 7919 % 1009}" for number in range(80))
    with log.open("wb") as file, redirected(file.fileno(), level="info"):
        async with daemon(tmp_path, {"m": turn("yes")}) as host:
            await _ask(host, _user("Today is Monday. " + text))
            await _ask(host, _user("Today is Sunday. " + text))
    (line,) = _lines(log, "prefix cache: the prompt differs from an earlier one")
    assert line["level"] == "warning"
    assert line["position"] < 40
    assert not [text for text in log.read_text().splitlines() if "Sunday" in text]


async def test_a_fresh_process_knows_nothing_of_before(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": turn("yes")}) as host:
        await _ask(host, _user(LONG))
        await host.registry.unload("test/m")
        with pytest.raises(ModelNotFound):
            host.registry.model("test/m")
        await host.load("m")
        answer = (await _ask(host, _user(LONG))).finish
        assert _figures(host).hits == 0
    assert answer.usage.cached_tokens == 0


async def test_a_failed_step_leaves_no_wrong_prefix_behind(tmp_path: Path) -> None:
    fault = {"at": 1, "phase": "decode", "kind": "host", "text": "once", "times": 1}
    async with daemon(tmp_path, {"m": turn("yes", "no", fault=fault)}) as host:
        assert (await _ask(host, _user(LONG))).code == "internal_error"
        again = await _ask(host, _user(LONG))
        figures = _figures(host)
    assert again.text == "yesno"
    assert again.finish.usage.cached_tokens > 500
    assert figures.failed_restores == 0
