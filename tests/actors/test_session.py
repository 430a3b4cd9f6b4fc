"""Sessions over a counted device: how many jobs each ending costs, and that a terminal line is written exactly once."""

import json
import math
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec
import pytest

from neuron.actors.daemon import ModelState
from neuron.actors.device.jobs import ForwardLogits, Logits
from neuron.actors.model import ModelActor
from neuron.actors.request import InferenceRequest, SamplingParams
from neuron.actors.resident import Resident
from neuron.actors.sampling.params import resolve_sampling
from neuron.actors.sampling.sampler import Sampler
from neuron.actors.session import Session
from neuron.actors.text.parser import build_parser
from neuron.actors.work import Work
from neuron.runtime.errors import ShuttingDown
from neuron.runtime.logs import flush_logs, redirected
from tests.actors.fake_device import VOCABULARY, FakeDevice, fake_resident
from tests.actors.host import FAST, Answer, drain

pytestmark = pytest.mark.anyio
A = ord("a")
LIMITS = msgspec.structs.replace(FAST, prefill_chunk_tokens=10)


class Bench:
    def __init__(self, device: FakeDevice, resident: Resident, model: ModelActor) -> None:
        self.device = device
        self.resident = resident
        self.model = model

    @property
    def eos(self) -> int:
        return min(self.resident.text.tokenizer.eos_ids)

    def start(self, prompt: int = 25, new: int = 50, **fields: Any) -> Session:
        request = InferenceRequest(req_id="r", model="test/fake", messages=(), principal="p", **fields)
        text = self.resident.text
        work = Work(
            req_id=request.req_id,
            prompt=[65] * prompt,
            max_new_tokens=new,
            parser=build_parser(text, opens_reasoning=False, request=request),
            detokenizer=text.tokenizer.detokenizer(),
            sampler=Sampler(resolve_sampling(SamplingParams(temperature=0.0), text.defaults), vocab_size=VOCABULARY),
        )
        return self.model.start_session(work, self.resident, self.model.turnstile.reserve("r", "p"))

    async def answer(self, **fields: Any) -> Answer:
        return await drain(self.start(**fields).stream)

    async def until_forwards(self, count: int) -> None:
        with anyio.fail_after(5):
            while len(self.device.forwards) < count:
                await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def bench(tokens: list[int], **limits: Any) -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory() as directory:
        device = FakeDevice(tokens)
        resident = fake_resident(device, Path(directory))
    async with anyio.create_task_group() as tasks:
        settings = msgspec.structs.replace(LIMITS, **limits)
        model = ModelActor("test/fake", "scripted:test/fake", (), settings, tasks)
        model.become_ready(resident)
        yield Bench(device, resident, model)
        assert await model.wait_idle(5)
        assert model.turnstile.active is None
        assert model.turnstile.depth == 0
        tasks.cancel_scope.cancel()


class Lines:
    """The log lines so far, as mappings."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self, *names: str) -> list[dict[str, Any]]:
        flush_logs(5.0)
        events = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [event for event in events if event["event"] in names]


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Lines]:
    path = tmp_path / "log"
    with path.open("wb") as file, redirected(file.fileno()):
        yield Lines(path)


def chunks(jobs: list[ForwardLogits]) -> list[int]:
    return [len(job.tokens) // 4 for job in jobs]


async def test_the_prompt_goes_in_chunks_and_each_token_is_one_step() -> None:
    async with bench([A]) as b:
        answer = await b.answer(prompt=25, new=3)
        assert answer.text == "aaa"
        assert chunks(b.device.forwards) == [10, 10, 5, 1, 1]
        assert [job.position for job in b.device.forwards] == [0, 10, 20, 25, 26]
        assert [job.slot for job in b.device.forwards] == [None, None, 0, 1, 0]
        stamps = [job.stamp for job in b.device.forwards]
        assert stamps == sorted(set(stamps))


async def test_an_end_token_posts_no_further_step() -> None:
    async with bench([A]) as probe:
        eos = probe.eos
    async with bench([A, A, eos]) as b:
        answer = await b.answer(prompt=5)
        assert answer.text == "aa"
        assert answer.finish.usage.completion_tokens == 3
        assert chunks(b.device.forwards) == [5, 1, 1]


async def test_a_stop_string_costs_one_step_at_most_and_its_reply_is_waited_for() -> None:
    async with bench([A, ord("b"), ord("c")]) as b:
        answer = await b.answer(prompt=5, stop=("b",))
        assert answer.text == "a"
        assert await b.model.wait_idle(5)
        assert chunks(b.device.forwards) == [5, 1, 1]
        assert b.device.replied == len(b.device.jobs)


async def test_gone_in_prefill_runs_at_most_the_chunk_that_runs() -> None:
    async with bench([A]) as b:
        session = b.start(prompt=160)
        await b.until_forwards(1)
        b.device.hold()
        before = len(b.device.forwards)
        session.stream.cancel()
        b.device.gate.set()
        assert await b.model.wait_idle(5)
        assert len(b.device.forwards) <= before + 1
        assert b.device.replied == len(b.device.jobs)


async def test_the_lock_is_kept_until_the_device_answers() -> None:
    async with bench([A]) as b:
        first = b.start(prompt=5, new=5000)
        await b.until_forwards(4)
        b.device.hold()
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        first.stream.cancel()
        second = b.start(prompt=5, new=1)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert b.model.turnstile.active is first.ticket
        b.device.gate.set()
        assert (await drain(second.stream)).text == "a"


@pytest.mark.parametrize(
    "tamper",
    [
        lambda reply: msgspec.structs.replace(reply, stamp=reply.stamp - 1),
        lambda reply: msgspec.structs.replace(reply, position=reply.position + 1),
        lambda reply: msgspec.structs.replace(reply, slot=1 - reply.slot),
    ],
)
async def test_logits_of_another_step_are_never_read(tamper: Callable[[Logits], Logits]) -> None:
    async with bench([A]) as b:
        b.device.tamper = tamper
        assert (await b.answer(prompt=5)).code == "protocol_error"
        assert b.model.state is ModelState.POISONED
        assert b.device.killed == ["protocol_error"]


@pytest.mark.parametrize("fill", [math.nan, -math.inf])
async def test_unhealthy_logits_fail_one_request(fill: float, lines: Lines) -> None:
    async with bench([A]) as b:
        b.device.fill = fill
        assert (await b.answer(prompt=5)).code == "nan_logits"
        b.device.fill = 0.0
        assert (await b.answer(prompt=5, new=1)).text == "a"
        assert b.model.state is ModelState.READY
        assert b.model.figures.unhealthy_logits == 1
    assert len(lines.all("logits unhealthy")) == 1
    assert len(lines.all("model NOT marked poisoned")) == 1


async def test_one_terminal_line_for_each_request(lines: Lines) -> None:
    async with bench([A]) as b:
        await b.answer(prompt=25, new=2)
        gone = b.start(prompt=5, new=5000)
        await b.until_forwards(8)
        gone.stream.cancel()
        assert await b.model.wait_idle(5)
        ended = b.start(prompt=5, new=5000)
        ended.stream.end_early(ShuttingDown("The daemon is shutting down."))
        assert (await drain(ended.stream)).code == "shutting_down"
    terminal = lines.all("done", "failed")
    assert [event["event"] for event in terminal] == ["done", "failed", "failed"]
    done, gone_line, _ = terminal
    assert (done["prompt_tokens"], done["completion_tokens"], done["finish_reason"]) == (25, 2, "length")
    assert done["total_ms"] >= 0
    assert (gone_line["error_code"], gone_line["phase"], gone_line["poisoned"]) == (
        "client_disconnected",
        "decode",
        False,
    )
    order = lines.all("starting", "prefill complete", "done", "failed")
    assert [event["event"] for event in order[:3]] == ["starting", "prefill complete", "done"]
    assert all(event["req_id"] == "r" for event in terminal)


async def test_a_long_wait_is_logged_and_reported(lines: Lines) -> None:
    async with bench([A], queue_seconds=2.3, write_idle_seconds=60.0) as b:
        first = b.start(prompt=5, new=100_000)
        answer = await b.answer(prompt=5)
        assert answer.code == "queue_timeout"
        first.stream.cancel()
    waits = lines.all("still waiting for model lock")
    assert [round(event["waited_s"]) for event in waits] == [2]
    assert waits[0]["req_id"] == "r"


async def test_a_full_buffer_stops_the_session_until_it_is_read() -> None:
    async with bench([A], write_idle_seconds=5.0) as b:
        session = b.start(prompt=5, new=6000)
        with anyio.fail_after(20):
            while len(session.stream._buffer) < 4096:
                await anyio.lowlevel.checkpoint()
        await anyio.sleep(0.05)
        held = len(b.device.forwards)
        await anyio.sleep(0.05)
        assert len(b.device.forwards) == held
        answer = await drain(session.stream)
        assert answer.finish.usage.completion_tokens == 6000
        assert answer.text == "a" * 6000
