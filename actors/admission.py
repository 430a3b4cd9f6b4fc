"""Admission: how long a prompt and an answer may be, and whether the device has memory left. One arithmetic for all.

Used by the registry (gates before any device work), by loading (how much context to build) and by the model list.
"""

from collections.abc import Awaitable, Callable

import anyio
import msgspec

from neuron.actors.daemon import DeviceInfo
from neuron.actors.errors import ContextLengthExceeded, InsufficientVram
from neuron.actors.settings import LimitSettings

#: Prompt cap when the configuration names none (NEURON_MAX_PROMPT_TOKENS).
DEFAULT_MAX_PROMPT_TOKENS = 16384
#: A prompt limit that comes of a measured speed is a multiple of so many tokens, and at least that.
LIMIT_STEP = 1024
#: Bytes of rendered prompt per allowed token; more cannot fit and is refused before it is tokenised.
BYTES_PER_TOKEN = 8
#: Longer than the device actor's refresh of its figures.
MEMORY_WAIT_S = 6.0
MEMORY_POLL_S = 0.25
MIB = 1 << 20


class ContextLimits(msgspec.Struct, frozen=True):
    """Tokens. `context`: prompt and answer together; `input`: the prompt alone; `output`: the answer alone."""

    context: int
    input: int
    output: int

    def check_prompt(self, prompt_len: int) -> None:
        """Raises ContextLengthExceeded."""
        if prompt_len > self.input:
            raise ContextLengthExceeded(prompt_len, self.input)

    def check_bytes(self, prompt_bytes: int) -> None:
        """Refuses text that is far past the cap without tokenising it; the count given is a lower estimate."""
        if prompt_bytes > BYTES_PER_TOKEN * self.input:
            raise ContextLengthExceeded(prompt_bytes // BYTES_PER_TOKEN, self.input)

    def new_tokens(self, requested: int | None, prompt_len: int) -> int:
        """How many tokens may be generated: clamped to the context, one at least after a prompt that fills it."""
        wanted = self.output if requested is None else requested
        return min(wanted, max(1, self.context - prompt_len))


def prompt_cap(settings: LimitSettings) -> int:
    return settings.max_prompt_tokens or DEFAULT_MAX_PROMPT_TOKENS


def default_context(settings: LimitSettings) -> int:
    """Positions to build the KV cache for when nobody asked: the prompt cap plus a whole default answer."""
    return prompt_cap(settings) + settings.default_max_tokens


def derive_limits(context: int, settings: LimitSettings, prefill_tok_s: float | None = None) -> ContextLimits:
    """`context` is what the resident model was built for; `prefill_tok_s` what it was measured at when it was loaded.

    A prompt that would take longer than `prefill_seconds` at that speed is refused before it costs anything.
    """
    longest = min(context, prompt_cap(settings))
    if prefill_tok_s is not None:
        in_time = int(prefill_tok_s * settings.prefill_seconds) // LIMIT_STEP * LIMIT_STEP
        longest = min(longest, max(LIMIT_STEP, in_time))
    return ContextLimits(
        context=context,
        input=longest,
        output=min(context, settings.default_max_tokens),
    )


def has_memory_figure(device: DeviceInfo) -> bool:
    """Only accelerators are gated by memory; host memory is the operating system's business."""
    return not device.id.startswith("cpu") and device.vram_used_mb + device.vram_free_mb > 0


def free_bytes(device: DeviceInfo, settings: LimitSettings) -> int | None:
    """What an accelerator has left for a model, beside the floor that its requests will need; None where no such figure
    counts or none is known yet."""
    return max(0, device.vram_free_mb - settings.min_free_vram_mb) * MIB if has_memory_figure(device) else None


def check_memory(device: DeviceInfo, settings: LimitSettings) -> None:
    """Raises InsufficientVram when the cached free memory is below the floor."""
    if has_memory_figure(device) and device.vram_free_mb < settings.min_free_vram_mb:
        raise InsufficientVram(
            "The device has too little free memory for another request right now.",
            free_mb=device.vram_free_mb,
            required_mb=settings.min_free_vram_mb,
        )


async def wait_for_memory(
    info: Callable[[], DeviceInfo], settings: LimitSettings, *, sleep: Callable[[float], Awaitable[None]] = anyio.sleep
) -> None:
    """The memory gate of a request: it waits a little for others to give memory back. Raises InsufficientVram.

    The figure is cached and refreshed by the device actor; nothing is asked of the device process.
    """
    waited = 0.0
    while True:
        try:
            return check_memory(info(), settings)
        except InsufficientVram:
            if waited >= MEMORY_WAIT_S:
                raise
        await sleep(MEMORY_POLL_S)
        waited += MEMORY_POLL_S
