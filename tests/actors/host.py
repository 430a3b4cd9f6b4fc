"""A whole daemon without HTTP: the real Registry in this process, real device processes, scripted models."""

import json
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from neuron.actors.daemon import InferenceStream, LoadRequest, ModelState
from neuron.actors.events import Failed, Finish, InferenceEvent, TextDelta
from neuron.actors.model import ModelActor
from neuron.actors.registry import Registry
from neuron.actors.request import InferenceRequest, Message, Role, SamplingParams
from neuron.actors.settings import (
    LimitSettings,
    ModelSettings,
    RecoverySettings,
    ResidencySettings,
    ServerSettings,
    Settings,
    SourceKind,
    SourceSettings,
)

FAST = LimitSettings(step_seconds=2.0, load_stall_seconds=10.0, per_principal=100, write_idle_seconds=1.0)
EOS: dict[str, Any] = {"eos": True}


def turn(*emit: Any, **keys: Any) -> dict[str, Any]:
    return {"emit": list(emit), **keys}


class Host:
    """The registry with the gestures that tests make."""

    def __init__(self, registry: Registry, directory: Path) -> None:
        self.registry = registry
        self.directory = directory
        self._count = 0

    def write(self, name: str, *turns: dict[str, Any], **keys: Any) -> None:
        path = self.directory / "test" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"turns": list(turns), **keys}))

    async def load(self, name: str, **fields: Any) -> Any:
        return await self.registry.load(LoadRequest(model_id=f"scripted:test/{name}", **fields))

    async def submit(self, name: str, text: str = "hi", **fields: Any) -> InferenceStream:
        self._count += 1
        values: dict[str, Any] = {"principal": "p", "sampling": SamplingParams(temperature=0.0), **fields}
        return await self.registry.submit(
            InferenceRequest(
                req_id=values.pop("req_id", f"r{self._count}"),
                model=f"test/{name}",
                messages=(Message(role=Role.USER, content=text),),
                **values,
            )
        )

    async def ask(self, name: str, text: str = "hi", **fields: Any) -> "Answer":
        return await drain(await self.submit(name, text, **fields))

    def entry(self, name: str) -> ModelActor:
        return self.registry._catalogue.require(f"test/{name}")

    def state(self, name: str) -> ModelState:
        return self.registry.model(f"test/{name}").state

    def pid(self, device_id: str = "cpu") -> int:
        pids = {info.id: info.pid for info in self.registry.devices()}
        pid = pids[device_id]
        assert pid is not None
        return pid

    def kill(self, device_id: str = "cpu", number: int = signal.SIGKILL) -> int:
        pid = self.pid(device_id)
        os.kill(pid, number)
        return pid

    async def until_state(self, name: str, state: ModelState, within_s: float = 10.0) -> None:
        deadline = time.monotonic() + within_s
        while self.state(name) is not state:
            assert time.monotonic() < deadline, self.state(name)
            await anyio.lowlevel.checkpoint()

    async def until_idle(self, name: str, within_s: float = 10.0) -> None:
        entry = self.entry(name)
        assert await entry.wait_idle(within_s)
        assert entry.turnstile.active is None
        assert entry.turnstile.depth == 0


class Answer(msgspec.Struct):
    events: list[InferenceEvent]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def end(self) -> Finish | Failed:
        end = self.events[-1]
        assert isinstance(end, Finish | Failed)
        return end

    @property
    def finish(self) -> Finish:
        assert isinstance(self.end, Finish), self.end
        return self.end

    @property
    def code(self) -> str:
        assert isinstance(self.end, Failed), self.end
        return self.end.error.code


async def drain(stream: InferenceStream, within_s: float = 30.0) -> Answer:
    events: list[InferenceEvent] = []
    while True:
        event = await stream.next(within_s)
        assert event is not None, f"silent after {events}"
        events.append(event)
        if isinstance(event, Finish | Failed):
            return Answer(events)


async def read_until(stream: InferenceStream, kind: type, count: int = 1, within_s: float = 10.0) -> None:
    """Takes events until `count` of this kind came."""
    while count:
        event = await stream.next(within_s)
        assert event is not None
        assert not isinstance(event, Finish | Failed), event
        count -= isinstance(event, kind)


@asynccontextmanager
async def daemon(
    directory: Path,
    scripts: Mapping[str, Any] | None = None,
    *,
    limits: LimitSettings = FAST,
    load: bool = True,
    models: tuple[ModelSettings, ...] = (),
    recovery: RecoverySettings | None = None,
    residency: ResidencySettings | None = None,
    shutdown_seconds: float = 0.2,
    shut_down: bool = True,
) -> AsyncIterator[Host]:
    """`scripts`: name -> one turn, a list of turns, or a whole script; all loaded unless told not to."""
    settings = Settings(
        enable_scripted=True,
        sources={"scripted": SourceSettings(kind=SourceKind.SCRIPTED, path=directory)},
        limits=limits,
        models=models,
        recovery=recovery or RecoverySettings(),
        residency=residency or ResidencySettings(),
        server=ServerSettings(shutdown_seconds=shutdown_seconds),
    )
    registry = Registry(settings)
    host = Host(registry, directory)
    for name, script in (scripts or {}).items():
        if isinstance(script, dict) and "turns" in script:
            host.write(name, *script["turns"], **{key: value for key, value in script.items() if key != "turns"})
        else:
            host.write(name, *(script if isinstance(script, list) else [script]))
    async with anyio.create_task_group() as tasks:
        await registry.start(tasks)
        try:
            if load:
                for name in scripts or {}:
                    await host.load(name)
            yield host
        finally:
            with anyio.CancelScope(shield=True):
                if shut_down:
                    await registry.shutdown()
            tasks.cancel_scope.cancel()
