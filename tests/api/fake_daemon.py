"""A Daemon without devices, for tests of the HTTP layer: answers are lists of events, served by a real listener."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from neuron.actors.daemon import (
    Activation,
    DeviceInfo,
    LoadOutcome,
    LoadProgress,
    LoadRequest,
    ModelInfo,
    ModelLoadFigures,
    ModelState,
    OfferedModel,
)
from neuron.actors.errors import ModelNotFound
from neuron.actors.events import Finish, FinishReason, InferenceEvent, Start, TextDelta, Timings, Usage
from neuron.actors.figures import Figures, RequestRecord
from neuron.actors.request import InferenceRequest
from neuron.actors.settings import ServerSettings, Settings
from neuron.api.access import Access
from neuron.api.app import create_app
from neuron.api.server.bind import bind
from neuron.api.server.listener import Listener

MODEL = "demo:org/name"
TIMINGS = Timings(queue_ms=0.5, prefill_ms=10.0, decode_ms=20.0, prefill_tokens=7, decode_tokens=3)


def finish(reason: FinishReason = FinishReason.STOP) -> Finish:
    return Finish(reason, Usage(prompt_tokens=7, completion_tokens=3), TIMINGS)


def answer(*texts: str) -> list[InferenceEvent]:
    return [Start(7), *(TextDelta(text) for text in texts), finish()]


class FakeStream:
    """Plays `events`; a float among them is a pause in seconds. With `forever` the last event repeats."""

    def __init__(self, events: Sequence[InferenceEvent | float], forever: bool = False) -> None:
        self._events = list(events)
        self._forever = forever
        self.cancelled: list[str] = []
        self.taken = 0

    async def next(self, wait_s: float) -> InferenceEvent | None:
        head = self._events[0]
        if isinstance(head, float):
            if head > wait_s:
                self._events[0] = head - wait_s
                await asyncio.sleep(wait_s)
                return None
            await asyncio.sleep(head)
            self._events.pop(0)
            return await self.next(0.0)
        self.taken += 1
        await asyncio.sleep(0)
        return head if self._forever and len(self._events) == 1 else self._events.pop(0)  # type: ignore[return-value]

    def cancel(self, reason: str = "client_disconnected") -> None:
        self.cancelled.append(reason)


class FakeDaemon:
    """`on_submit` gives the stream of a request, or raises."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.requests: list[InferenceRequest] = []
        self.streams: list[FakeStream] = []
        self.loads: list[LoadRequest] = []
        self.load_error: Exception | None = None
        self.on_submit: Callable[[InferenceRequest], FakeStream] = lambda _request: FakeStream(answer("hello"))
        self.state = ModelState.READY
        self.capability_list: tuple[str, ...] = ("text",)
        self.is_draining = False
        self.activation_state = "ready"
        self.figures_by_model: dict[str, Figures] = {"org/name": Figures()}
        self.records: list[RequestRecord] = []

    def info(self) -> ModelInfo:
        return ModelInfo(
            id="org/name",
            source_id=MODEL,
            state=self.state,
            devices=(0,),
            device_ids=("cpu",),
            capabilities=self.capability_list,
            context=4096,
            input=4096,
            output=4096,
            tool_call=True,
            reasoning=False,
            servable=self.state is ModelState.READY,
            loaded_at="2026-01-02T03:04:05Z",
        )

    def models(self, *, everything: bool = False) -> list[ModelInfo]:
        return [self.info()]

    def offered(self) -> list[OfferedModel]:
        return []

    def model(self, model_id: str) -> ModelInfo:
        if model_id not in (MODEL, "org/name"):
            raise ModelNotFound(model_id)
        return self.info()

    async def capabilities(self, model_id: str) -> tuple[str, ...]:
        return self.model(model_id).capabilities

    def load_figures(self) -> list[ModelLoadFigures]:
        return [
            ModelLoadFigures(
                id="org/name",
                state=self.state,
                in_flight=0,
                queue_depth=0,
                max_in_flight=1,
                max_queue_depth=32,
                rejected_queue_full=0,
                rejected_timeout=0,
                rejected_per_principal=0,
                tok_s_prefill=0.0,
                tok_s_decode=0.0,
                active_request_id=None,
                active_for_s=None,
                queue=(),
            )
        ]

    def figures(self) -> dict[str, Figures]:
        return self.figures_by_model

    def request_records(self) -> list[RequestRecord]:
        return self.records

    def devices(self) -> list[DeviceInfo]:
        return [
            DeviceInfo(
                index=0,
                id="cpu",
                name="CPU",
                state="ready",
                pid=1,
                compute_capability="",
                vram_total_mb=0,
                vram_used_mb=0,
                vram_free_mb=0,
                utilization_pct=0,
                temp_c=0,
                last_seen_s=0.1,
            )
        ]

    def activation(self) -> Activation:
        return Activation(self.activation_state, (), None, ("org/name",), ())

    def draining(self) -> bool:
        return self.is_draining

    def discovery(self) -> dict[str, Any]:
        return {"hostname": "h", "devices": []}

    async def load(self, request: LoadRequest) -> LoadOutcome:
        self.loads.append(request)
        if self.load_error is not None:
            raise self.load_error
        return LoadOutcome("loaded")

    async def load_progress(self, request: LoadRequest) -> AsyncIterator[LoadProgress | LoadOutcome]:
        self.loads.append(request)
        if self.load_error is not None:
            raise self.load_error
        yield LoadProgress("reading", 0.5)
        yield LoadOutcome("loaded")

    async def unload(self, model_id: str) -> None:
        self.model(model_id)

    async def submit(self, request: InferenceRequest) -> FakeStream:
        self.requests.append(request)
        stream = self.on_submit(request)
        self.streams.append(stream)
        return stream

    async def preflight(self, request: LoadRequest) -> dict[str, Any]:
        return {}


class FakeServer:
    """Serves a FakeDaemon on a free loopback port, on a loop in a thread of its own."""

    def __init__(self, daemon: FakeDaemon | None = None, server: ServerSettings | None = None) -> None:
        self.daemon = daemon or FakeDaemon()
        self._access = Access(server or self.daemon.settings.server)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Self:
        self._sock = bind("127.0.0.1", 0)
        self.port: int = self._sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        idle_s = self.daemon.settings.limits.write_idle_seconds
        self.listener = Listener(create_app(self.daemon, self._access), self._sock, write_idle_s=idle_s)
        self._started.set()
        await self.listener.serve(self._stop, grace_s=0.5)

    def client(self, **options: Any) -> httpx.Client:
        settings: dict[str, Any] = {"base_url": self.url, "timeout": 10.0, "trust_env": False}
        return httpx.Client(**{**settings, **options})

    def chat(self, **fields: Any) -> httpx.Response:
        with self.client() as client:
            return client.post("/v1/chat/completions", json=chat_body(**fields))


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "org/name", "messages": [{"role": "user", "content": "hi"}], **fields}
