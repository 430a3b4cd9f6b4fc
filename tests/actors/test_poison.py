"""What a fault costs: the process and the models on it when the device failed, one request when it did not."""

import signal
from pathlib import Path

import anyio
import msgspec
import pytest

from neuron.actors.daemon import LoadOutcome, ModelState
from neuron.actors.errors import ModelPoisoned, UnsupportedDevice
from neuron.actors.events import TextDelta
from neuron.actors.settings import RecoveryMode, RecoverySettings
from neuron.runtime.errors import NeuronError, RestartLimit
from tests.actors.host import EOS, FAST, Host, daemon, drain, read_until, turn
from tests.harness.invariants import gone
from tests.harness.scripts import fault

pytestmark = pytest.mark.anyio
FOX = turn("The quick br", "own", " fox", EOS)
ENDLESS = turn("x", repeat=True, delay_ms=2, when="endless")


async def refused_as_poisoned(host: Host, name: str) -> None:
    with pytest.raises(ModelPoisoned) as caught:
        await host.submit(name)
    assert caught.value.should_retry is False
    assert host.entry(name).turnstile.depth == 0


async def test_kill_9_in_mid_stream(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": [ENDLESS, FOX]}) as host:
        stream = await host.submit("m", "endless")
        waiting = await host.submit("m")
        await read_until(stream, TextDelta, 3)
        old = host.kill()
        assert (await drain(stream, 5)).code == "worker_died"
        assert (await drain(waiting, 5)).code == "model_poisoned"
        await host.until_state("m", ModelState.POISONED)
        await refused_as_poisoned(host, "m")
        await host.registry.unload("test/m")
        assert await host.load("m") == LoadOutcome("loaded")
        assert (await host.ask("m")).text == "The quick brown fox"
        assert host.pid() != old
        assert gone(old)


async def test_kill_9_while_idle_is_seen_before_any_request(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": FOX}) as host:
        host.kill()
        await host.until_state("m", ModelState.POISONED)
        await refused_as_poisoned(host, "m")
        poison = host.registry.model("test/m").poison
        assert poison is not None
        assert poison.req_id is None
        assert "SIGKILL" in f"{poison.reason} {poison.exit_status}"


async def test_load_alone_cures_a_poisoned_model(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": FOX}) as host:
        old = host.kill()
        await host.until_state("m", ModelState.POISONED)
        assert await host.load("m") == LoadOutcome("loaded")
        assert host.pid() != old
        assert host.registry.model("test/m").poison is None
        assert (await host.ask("m")).text == "The quick brown fox"


async def test_only_the_models_of_the_dead_device_are_poisoned(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": FOX, "b": FOX}) as host:
        host.write("c", ENDLESS, FOX)
        await host.load("c", devices=("cpu:1",))
        assert host.registry.model("test/c").device_ids == ("cpu:1",)
        stream = await host.submit("c", "endless")
        await read_until(stream, TextDelta)
        other = host.pid("cpu:1")
        host.kill("cpu")
        await host.until_state("a", ModelState.POISONED)
        await host.until_state("b", ModelState.POISONED)
        await read_until(stream, TextDelta, 20)
        stream.cancel()
        assert (await host.ask("c")).text == "The quick brown fox"
        await host.load("a")
        assert host.state("b") is ModelState.POISONED
        assert (await host.ask("a")).text == "The quick brown fox"
        assert host.pid("cpu:1") == other


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("kind", "text", "codes"),
    [
        ("device", "CUDA error: an illegal memory access was encountered", {"device_fault"}),
        ("kill", "", {"worker_died"}),
        ("exit", "", {"worker_died"}),
        ("hang", "", {"worker_unresponsive"}),
    ],
)
async def test_device_faults_poison(tmp_path: Path, kind: str, text: str, codes: set[str], phase: str) -> None:
    broken = turn("a", "b", "c", EOS, when="break", fault=fault(kind, 1, phase, text))
    async with daemon(tmp_path, {"m": [broken, FOX]}, limits=msgspec.structs.replace(FAST, step_seconds=0.5)) as host:
        await host.ask("m")  # the first step has the limit of a load
        answer = await host.ask("m", "break", req_id="culprit")
        assert answer.code in codes
        assert answer.text == ("a" if phase == "decode" else "")
        await refused_as_poisoned(host, "m")
        poison = host.registry.model("test/m").poison
        assert poison is not None
        assert (poison.req_id, poison.phase) == ("culprit", phase)
        await host.load("m")
        assert (await host.ask("m", "break")).text == "abc"


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        ("host", "shape mismatch", "internal_error"),
        ("oom", "CUDA out of memory", "insufficient_vram"),
        ("nan", "", "nan_logits"),
    ],
)
async def test_other_faults_cost_one_request(tmp_path: Path, kind: str, text: str, code: str, phase: str) -> None:
    broken = turn("a", "b", "c", EOS, when="break", fault=fault(kind, 1, phase, text))
    async with daemon(tmp_path, {"m": [broken, FOX]}) as host:
        pid = host.pid()
        assert (await host.ask("m", "break")).code == code
        assert host.state("m") is ModelState.READY
        assert (await host.ask("m")).text == "The quick brown fox"
        assert host.pid() == pid
        await host.until_idle("m")


async def test_a_stopped_process_is_found_while_idle(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": FOX}) as host:
        host.kill(number=signal.SIGSTOP)
        await host.until_state("m", ModelState.POISONED, 15)


async def test_a_process_killed_in_its_load(tmp_path: Path) -> None:
    script = [turn("a", EOS, fault=fault("kill", 0, "load", times=1))]
    async with daemon(tmp_path, {"good": FOX}) as host:
        host.write("bad", *script)
        with pytest.raises(NeuronError) as caught:
            await host.load("bad", devices=("cpu:1",))
        assert caught.value.code == "worker_died"
        assert [info.state for info in host.registry.models(everything=True)] == [ModelState.READY, ModelState.FAILED]
        assert (await host.ask("good")).text == "The quick brown fox"
        assert await host.load("bad", devices=("cpu:1",)) == LoadOutcome("loaded")


async def test_a_crash_loop_is_stopped(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": turn("a", EOS, fault=fault("kill", 0, "load", times=100))}, load=False) as host:
        for _ in range(3):
            with pytest.raises(NeuronError) as caught:
                await host.load("m")
            assert caught.value.code == "worker_died"
        with pytest.raises(RestartLimit) as limit:
            await host.load("m")
        assert limit.value.retry_after is not None


async def test_unload_when_the_process_is_already_gone(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": FOX}) as host:
        host.kill()
        await host.registry.unload("test/m")
        assert host.registry.models() == []


async def test_a_process_that_dies_in_a_recovery_is_recovered_from(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": FOX}, recovery=RecoverySettings(mode=RecoveryMode.AUTO)) as host:
        host.write("m", turn("better", EOS, fault=fault("kill", 0, "load")))
        host.kill()
        await host.until_state("m", ModelState.RECOVERING)
        await host.until_state("m", ModelState.READY, 30)
        assert (await host.ask("m")).text == "better"


async def test_automatic_recovery_within_its_budget(tmp_path: Path) -> None:
    recovery = RecoverySettings(mode=RecoveryMode.AUTO, restart_budget=2)
    async with daemon(tmp_path, {"m": FOX}, recovery=recovery) as host:
        for _ in range(2):
            old = host.kill()
            await host.until_state("m", ModelState.RECOVERING)
            assert host.registry.model("test/m").capabilities == ("text",)
            with pytest.raises(NeuronError) as caught:
                await host.submit("m")
            assert caught.value.code == "model_loading"
            await host.until_state("m", ModelState.READY)
            assert host.pid() != old
            assert (await host.ask("m")).text == "The quick brown fox"
        host.kill()
        await host.until_state("m", ModelState.POISONED)
        with anyio.move_on_after(0.3):
            await host.until_state("m", ModelState.RECOVERING, 60)
        assert host.state("m") is ModelState.POISONED


async def test_bad_input_leaves_a_poisoned_model_as_it_was(tmp_path: Path) -> None:
    """A pair asked for with one device, or a context that cannot be: 422, and the record is still there."""
    async with daemon(tmp_path, {"good": FOX}) as host:
        host.write("pair", FOX)
        await host.load("pair", tensor_parallel=2, devices=("cpu:1", "cpu:2"))
        host.kill("cpu:2")
        await host.until_state("pair", ModelState.POISONED)
        before = host.registry.model("test/pair")
        assert before.poison is not None
        with pytest.raises(UnsupportedDevice):
            await host.load("pair", devices=("cpu:1",))
        after = host.registry.model("test/pair")
        assert (after.state, after.reason, after.poison) == (ModelState.POISONED, before.reason, before.poison)
        assert after.device_ids == ("cpu:1", "cpu:2")
        await refused_as_poisoned(host, "pair")
        assert await host.load("pair") == LoadOutcome("loaded")
        assert host.registry.model("test/pair").device_ids == ("cpu:1", "cpu:2")
        assert (await host.ask("pair")).text == "The quick brown fox"


async def test_a_cure_that_fails_on_the_device_leaves_a_failed_model(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"m": FOX}) as host:
        host.write("m", turn("a", EOS, fault=fault("kill", 0, "load", times=1)))
        host.kill()
        await host.until_state("m", ModelState.POISONED)
        with pytest.raises(NeuronError):
            await host.load("m")
        info = host.registry.models(everything=True)[0]
        assert (info.state, info.poison) == (ModelState.FAILED, None)
        assert await host.load("m") == LoadOutcome("loaded")
