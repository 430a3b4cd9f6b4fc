"""What the registry says about models and the host, asking nobody: names, capabilities, discovery, preflight."""

import json
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from neuron.actors import discovery
from neuron.actors.daemon import LoadRequest
from neuron.actors.errors import ModelNotFound
from neuron.actors.registry import Registry
from neuron.actors.settings import Settings, SourceKind, SourceSettings
from neuron.runtime.errors import NeuronError
from tests.actors.host import EOS, daemon, turn

pytestmark = pytest.mark.anyio


async def test_two_sources_with_the_same_name_are_two_models(tmp_path: Path) -> None:
    async with daemon(tmp_path / "one", {"m": turn("one", EOS)}, load=False) as host:
        path = tmp_path / "two" / "test" / "m.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"turns": [turn("two", EOS)]}))
        other = SourceSettings(kind=SourceKind.SCRIPTED, path=tmp_path / "two")
        sources = {**host.registry.settings.sources, "other": other}
        host.registry.settings.sources.update(sources)
        await host.load("m")
        await host.registry.load(LoadRequest(model_id="other:test/m"))
        assert [info.id for info in host.registry.models()] == ["test/m", "other:test/m"]
        assert host.registry.model("test/m").source_id == "scripted:test/m"
        assert host.registry.model("other:test/m").source_id == "other:test/m"
        await host.registry.unload("test/m")
        assert [info.source_id for info in host.registry.models()] == ["other:test/m"]


async def test_a_model_loaded_from_one_source_answers_to_its_bare_id(tmp_path: Path) -> None:
    """A gateway loads `scheme:org/name` and then asks for `org/name`."""
    async with daemon(tmp_path, {"m": turn("one", EOS)}) as host:
        assert host.registry.settings.default_source == "huggingface"
        assert (await host.registry.load(LoadRequest(model_id="test/m"))).already


async def test_capabilities_of_models_that_are_not_resident(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": turn("one", EOS)}, load=False) as host:
        assert await host.registry.capabilities("scripted:test/m") == ("text",)
        for name in ("scripted:test/none", "nowhere:a/b", "huggingface:a/b", "nonsense", ""):
            with pytest.raises(ModelNotFound):
                await host.registry.capabilities(name)


async def test_files_of_a_model_that_is_not_resident_are_not_read_on_the_loop(tmp_path: Path) -> None:
    """A gateway asks for every model that it has heard of, on disks that may be slow."""
    async with daemon(tmp_path, {"m": turn("one", EOS)}, load=False) as host:
        threads: list[threading.Thread] = []
        read = host.registry._loader.local_capabilities

        def note(model_id: str) -> tuple[str, ...]:
            threads.append(threading.current_thread())
            return read(model_id)

        host.registry._loader.local_capabilities = note  # type: ignore[method-assign]
        assert await host.registry.capabilities("scripted:test/m") == ("text",)
        assert threading.main_thread() not in threads


async def test_lookups_on_a_stuck_disk_take_no_threads_from_others(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": turn("one", EOS)}, load=False) as host:
        over = threading.Event()
        entered: list[str] = []

        def stuck(model_id: str) -> tuple[str, ...]:
            entered.append(model_id)
            over.wait(60.0)
            return ()

        host.registry._loader.local_capabilities = stuck  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(host.registry.capabilities, "scripted:test/m")
            while len(entered) < 2:
                await anyio.lowlevel.checkpoint()
            assert await anyio.to_thread.run_sync(lambda: 42) == 42
            assert len(entered) <= 2
            over.set()


async def test_preflight_starts_no_device(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": turn("one", EOS)}, load=False) as host:
        report = await host.registry.preflight(LoadRequest(model_id="scripted:test/m"))
        assert report["format"] == "scripted"
        json.dumps(report)
        with pytest.raises(NeuronError):
            await host.registry.preflight(LoadRequest(model_id="scripted:test/none"))
        assert [info.pid for info in host.registry.devices()] == [None]
        assert host.registry.models(everything=True) == []


@pytest.mark.parametrize("name", ["noslash", ":a/b", "a/b/c", "nowhere:a/b", "../x/y", "a/..", "x" * 300 + "/y"])
async def test_malformed_ids_are_typed_errors_and_leave_nothing(tmp_path: Path, name: str) -> None:
    async with daemon(tmp_path, load=False) as host:
        with pytest.raises(NeuronError) as caught:
            await host.registry.load(LoadRequest(model_id=name))
        assert caught.value.status in (400, 422)
        assert host.registry.models(everything=True) == []


def test_discovery_has_every_key() -> None:
    facts = discovery.gather(0)
    body = discovery.document(facts, [], 16_384, None)
    assert body["harnesses"] == ["candle"]
    assert body["max_prompt_tokens"] == 16_384
    assert all(isinstance(body[key], str) and body[key] for key in ("hostname", "os", "kernel"))
    assert body["cuda_version"] is None
    assert "cuda_unavailable_reason" not in body


SMI = """#!/bin/sh
case "$1" in
--query-gpu=*) printf '0, NVIDIA Test, 24576, 8.9, 580.95.05\\n1, NVIDIA Test, [N/A], 9.0, 580.95.05\\n';;
*) printf '| NVIDIA-SMI 580.95.05  Driver Version: 580.95.05  CUDA Version: 13.0  |\\n';;
esac
"""


def fake_tool(directory: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = directory / "nvidia-smi"
    path.write_text(text)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


def test_the_drivers_tool_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(tmp_path, SMI, monkeypatch)
    facts = discovery.gather(2)
    assert (facts.driver_version, facts.cuda_version) == ("580.95.05", "13.0")
    assert [(gpu.index, gpu.vram_total_mb, gpu.compute_capability) for gpu in facts.gpus] == [
        (0, 24_576, "8.9"),
        (1, 0, "9.0"),
    ]
    assert facts.cuda_unavailable_reason is None


@pytest.mark.parametrize("text", ["#!/bin/sh\necho 'Driver/library version mismatch'; exit 18\n", "#!/bin/sh\n"])
def test_a_gpu_that_cannot_be_used_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    fake_tool(tmp_path, text, monkeypatch)
    facts = discovery.gather(1)
    assert facts.gpus == ()
    assert facts.cuda_unavailable_reason
    body: dict[str, Any] = discovery.document(facts, [], 1, None)
    assert body["cuda_unavailable_reason"] == facts.cuda_unavailable_reason


def test_a_tool_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("nvidia-smi", 5.0)

    monkeypatch.setattr(shutil, "which", lambda _: "/bin/true")
    monkeypatch.setattr(subprocess, "run", hang)
    assert discovery.gather(1).cuda_unavailable_reason == "the NVIDIA driver does not answer"


def test_a_registry_needs_no_loop_to_exist() -> None:
    assert Registry(Settings()).settings.limits.queue_total == 128
