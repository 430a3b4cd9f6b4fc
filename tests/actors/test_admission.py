"""The arithmetic of limits, and the memory gate."""

import msgspec
import pytest

from neuron.actors.admission import check_memory, default_context, derive_limits, free_bytes, wait_for_memory
from neuron.actors.daemon import DeviceInfo
from neuron.actors.errors import ContextLengthExceeded, InsufficientVram
from neuron.actors.settings import LimitSettings

LIMITS = LimitSettings()
DEVICE = DeviceInfo(
    index=0,
    id="cuda:0",
    name="",
    state="ready",
    pid=1,
    compute_capability="9.0",
    vram_total_mb=24_000,
    vram_used_mb=0,
    vram_free_mb=1_499,
    utilization_pct=0,
    temp_c=0,
    last_seen_s=0.0,
)


@pytest.mark.parametrize(
    ("context", "expected"),
    [(4096, (4096, 4096, 4096)), (24_576, (24_576, 16_384, 8_192)), (262_144, (262_144, 16_384, 8_192))],
)
def test_limits_follow_from_the_context(context: int, expected: tuple[int, int, int]) -> None:
    limits = derive_limits(context, LIMITS)
    assert (limits.context, limits.input, limits.output) == expected


def test_the_prompt_cap_can_be_set() -> None:
    assert derive_limits(262_144, msgspec.structs.replace(LIMITS, max_prompt_tokens=100_000)).input == 100_000


@pytest.mark.parametrize(
    ("tok_s", "expected"), [(1.0, 1024), (10.0, 5120), (27.3, 15_360), (27.4, 16_384), (5000.0, 16_384)]
)
def test_a_prompt_must_be_possible_in_the_time_for_it(tok_s: float, expected: int) -> None:
    assert derive_limits(24_576, LIMITS, tok_s).input == expected
    assert derive_limits(512, LIMITS, tok_s).input == 512


def test_the_context_that_is_built() -> None:
    assert default_context(LIMITS) == 16_384 + 8_192


def test_prompts_at_and_past_the_limit() -> None:
    limits = derive_limits(24_576, LIMITS)
    limits.check_prompt(16_384)
    with pytest.raises(ContextLengthExceeded) as caught:
        limits.check_prompt(16_385)
    assert "16384 tokens" in caught.value.message
    assert "16385 tokens" in caught.value.message
    limits.check_bytes(8 * 16_384)
    with pytest.raises(ContextLengthExceeded):
        limits.check_bytes(8 * 16_384 + 8)


@pytest.mark.parametrize(
    ("asked", "prompt", "expected"),
    [(None, 10, 8_192), (100, 10, 100), (100_000, 10, 24_566), (100, 24_570, 6), (5, 24_576, 1), (None, 20_000, 4_576)],
)
def test_answers_are_clamped_to_the_context(asked: int | None, prompt: int, expected: int) -> None:
    assert derive_limits(24_576, LIMITS).new_tokens(asked, prompt) == expected


def test_the_memory_gate_knows_accelerators_only() -> None:
    with pytest.raises(InsufficientVram) as caught:
        check_memory(DEVICE, LIMITS)
    assert caught.value.retry_after == 5
    assert caught.value.extra == {"free_mb": 1_499, "required_mb": 1_500}
    check_memory(msgspec.structs.replace(DEVICE, vram_free_mb=1_500), LIMITS)
    check_memory(msgspec.structs.replace(DEVICE, id="cpu", vram_free_mb=0), LIMITS)
    assert free_bytes(DEVICE, LIMITS) == 0
    assert free_bytes(msgspec.structs.replace(DEVICE, vram_free_mb=1_600), LIMITS) == 100 << 20
    assert free_bytes(msgspec.structs.replace(DEVICE, id="cpu"), LIMITS) is None
    # Of a process that has only just started nothing but the total is known.
    assert free_bytes(msgspec.structs.replace(DEVICE, vram_free_mb=0, vram_used_mb=0), LIMITS) is None
    check_memory(msgspec.structs.replace(DEVICE, vram_free_mb=0, vram_used_mb=0), LIMITS)


@pytest.mark.anyio
@pytest.mark.parametrize("comes_back_after", [0, 1, 10, None])
async def test_a_request_waits_a_little_for_memory(comes_back_after: int | None) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def info() -> DeviceInfo:
        back = comes_back_after is not None and len(waits) >= comes_back_after
        return msgspec.structs.replace(DEVICE, vram_free_mb=2_000 if back else 100)

    if comes_back_after is None:
        with pytest.raises(InsufficientVram):
            await wait_for_memory(info, LIMITS, sleep=sleep)
        assert sum(waits) == 6.0
    else:
        await wait_for_memory(info, LIMITS, sleep=sleep)
        assert len(waits) == comes_back_after
