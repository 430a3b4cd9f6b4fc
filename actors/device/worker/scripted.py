"""The scripted backend: a model whose logits spell out what a script says, faults included. Needs no torch."""

import hashlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from neuron.actors.device.worker import raising
from neuron.actors.device.worker.classify import NanLogitsError
from neuron.actors.scripted import FaultKind, FaultPhase, Script, ScriptVocabulary, Turn, parse_script, read_content
from neuron.kernels.engine import ModelMemory, PixelScale, ReportProgress, Span

WINNER = np.float32(1e6)
"""The scripted token's logit, all others are 0: no penalty or bias in its legal range, no temperature and no seed can
make another token win (10,000 repeats at a frequency penalty of 2 take 20,000; a repetition penalty of 2 halves it)."""
EXIT_STATUS = 3
_LOAD_STEPS = 4
_TOKEN_BYTES = 4
_PATCHES_PER_PLACE = 4

OnFault = Callable[[str, int], None]
"""(digest of the script, turn): told before a fault fires, since firing may end the process."""


@dataclass(slots=True)
class _Sequence:
    """What one sequence holds. `step` counts logits rows since the prompt ended; `chunks` prefill calls."""

    tokens: list[int] = field(default_factory=list)
    #: Tokens kept from before, which cost no prefill time.
    kept: int = 0
    chunks: int = 0
    slept_ms: float = 0.0
    turn: int | None = None
    step: int = 0
    answering: bool = False


class ScriptedModel:
    """A SeeingModel. The prompt is what a sequence holds when logits are first asked of it."""

    def __init__(self, script: Script, digest: str, fired: dict[int, int], on_fault: OnFault) -> None:
        self._script = script
        self._vocabulary = ScriptVocabulary(script)
        self._ids = [[self._vocabulary.entry_id(entry) for entry in turn.emit] for turn in script.turns]
        self._digest = digest
        self._fired = fired
        self._on_fault = on_fault
        self._sequences: dict[int, _Sequence] = {}
        #: Places of images that no prompt has passed over.
        self._images: dict[int, int] = {}
        self._kept: dict[int, tuple[int, list[int]]] = {}
        self.vocab_size: int = self._vocabulary.row_size
        self.context_length: int = script.context_length
        self.memory = ModelMemory(weights=0, kv_per_token=0, state=0, workspace=0)
        self.summary = f"scripted, {len(script.turns)} turns, {self._vocabulary.size} ids, rows of {self.vocab_size}"

    # -- DeviceModel -----------------------------------------------------------------------------

    def forward(
        self, sequence: int, tokens: npt.NDArray[np.int32], position: int, logits: npt.NDArray[np.float32] | None
    ) -> None:
        state = self._sequences.setdefault(sequence, _Sequence())
        self._check(state, tokens, position)
        state.tokens.extend(tokens.tolist())
        if state.answering:
            state.step += len(tokens)
        else:
            self._prefill(state, last=logits is not None)
        if logits is not None:
            self._answer(state, logits)

    def encode_image(
        self,
        sequence: int,
        image: int,
        patches: npt.NDArray[np.uint8],
        grid: tuple[int, int, int],
        scale: PixelScale,
    ) -> int:
        """Looks at nothing: an image fills a place for each four patches."""
        if len(patches) != grid[0] * grid[1] * grid[2] or len(patches) % _PATCHES_PER_PLACE:
            raise ValueError(f"{len(patches)} patches for a grid of {list(grid)}")
        self._images[image] = len(patches) // _PATCHES_PER_PLACE
        return self._images[image]

    def forward_with_images(
        self,
        sequence: int,
        tokens: npt.NDArray[np.int32],
        position: int,
        logits: npt.NDArray[np.float32] | None,
        spans: tuple[Span, ...],
        positions: npt.NDArray[np.int32],
        rope_delta: int,
    ) -> None:
        for image, _, length in spans:
            if self._images.get(image) != length:
                raise ValueError(f"image {image} of {length} places is not encoded")
        self.forward(sequence, tokens, position, logits)
        for image, offset, length in spans:
            if offset + length <= position + len(tokens):
                del self._images[image]

    def clear(self, sequence: int, keep: int = 0) -> int:
        self._images.clear()
        state = self._sequences.get(sequence)
        if state is None:
            return 0
        kept = state.tokens[: max(0, keep)]
        self._sequences[sequence] = _Sequence(tokens=kept, kept=len(kept))
        return len(kept)

    def save_rows(self, sequence: int, block: int, begin: int, end: int) -> int:
        state = self._sequences.get(sequence)
        if state is None or not 0 <= begin < end <= len(state.tokens) or block <= 0 or block in self._kept:
            raise ValueError(f"tokens {begin} to {end} cannot be kept as block {block}")
        self._kept[block] = (begin, state.tokens[begin:end])
        return _TOKEN_BYTES * (end - begin)

    def save_state(self, sequence: int, block: int) -> int:
        raise ValueError("a script has no recurrent state")

    def restore_prefix(self, sequence: int, keep: int, rows: Sequence[int], state: int) -> int:
        self._images.clear()
        held = self._sequences.get(sequence, _Sequence()).tokens
        tokens = held[:keep]
        for block in rows:
            begin, kept = self._kept.get(block, (len(tokens) + 1, []))
            if begin > len(tokens):
                raise ValueError(f"block {block} does not continue {len(tokens)} tokens")
            tokens = tokens + kept[len(tokens) - begin :]
        if state or not 0 <= keep <= len(held) or not tokens:
            raise ValueError(f"{keep} of {len(held)} tokens cannot be kept")
        self._sequences[sequence] = _Sequence(tokens=tokens, kept=len(tokens))
        return len(tokens)

    def drop_blocks(self, blocks: Sequence[int]) -> int:
        dropped = [self._kept.pop(block)[1] for block in blocks if block in self._kept]
        return sum(_TOKEN_BYTES * len(tokens) for tokens in dropped)

    def close(self) -> None:
        self._sequences.clear()
        self._kept.clear()

    # -- steps -----------------------------------------------------------------------------------

    def _check(self, state: _Sequence, tokens: npt.NDArray[np.int32], position: int) -> None:
        if len(tokens) == 0:
            raise ValueError("there are no tokens to run")
        if position != len(state.tokens):
            raise ValueError(f"position {position} is not the sequence's length {len(state.tokens)}")
        if position + len(tokens) > self.context_length:
            raise ValueError(f"position {position + len(tokens)} lies beyond the context of {self.context_length}")
        if int(tokens.min()) < 0 or int(tokens.max()) >= self._vocabulary.size:
            raise ValueError("a token id lies outside the vocabulary")

    def _prefill(self, state: _Sequence, *, last: bool) -> None:
        # Earlier chunks may not hold the text that a turn waits for: what is owed is settled with the next one.
        state.turn = self._match(state.tokens)
        turn = self._turn(state)
        if turn is not None:
            owed = turn.prefill_ms_per_token * (len(state.tokens) - state.kept) - state.slept_ms
            if owed > 0:
                state.slept_ms += owed
                time.sleep(owed / 1000)
            self._maybe_fail(state.turn, FaultPhase.PREFILL, state.chunks, last=last)
        state.chunks += 1
        if last:
            state.answering = True

    def _answer(self, state: _Sequence, logits: npt.NDArray[np.float32]) -> None:
        turn = self._turn(state)
        if turn is not None and turn.delay_ms:
            time.sleep(turn.delay_ms / 1000)
        logits.fill(0.0)
        logits[self._next_id(state)] = WINNER
        if self._maybe_fail(state.turn, FaultPhase.DECODE, state.step):
            logits.fill(np.nan)

    def _next_id(self, state: _Sequence) -> int:
        """The scripted id of this step: the entry, or eos past the end of the list and where no turn matched."""
        if state.turn is None:
            return self._vocabulary.eos_id
        ids = self._ids[state.turn]
        step = state.step
        if ids and self._script.turns[state.turn].repeat:
            step %= len(ids)
        return ids[step] if step < len(ids) else self._vocabulary.eos_id

    def _turn(self, state: _Sequence) -> Turn | None:
        return None if state.turn is None else self._script.turns[state.turn]

    def _match(self, tokens: list[int]) -> int | None:
        prompt: bytes | None = None
        for index, turn in enumerate(self._script.turns):
            if turn.when is None:
                return index
            if prompt is None:
                prompt = self._vocabulary.decode(tokens)
            if turn.when.encode() in prompt:
                return index
        return None

    # -- faults ----------------------------------------------------------------------------------

    def will_raise(self) -> bool:
        """True when a fault that is still to come needs the tensor library's own exceptions."""
        return any(
            turn.fault is not None
            and turn.fault.kind in (FaultKind.DEVICE, FaultKind.OOM)
            and self._fired.get(index, 0) < turn.fault.times
            for index, turn in enumerate(self._script.turns)
        )

    def maybe_fail_load(self, step: int) -> None:
        """Fire the load faults that are due at progress report `step`, whatever their turn waits for."""
        for index in range(len(self._script.turns)):
            if self._maybe_fail(index, FaultPhase.LOAD, step, last=step == _LOAD_STEPS - 1):
                raise NanLogitsError("the self-check of the load gave no finite logits")

    def _maybe_fail(self, index: int | None, phase: FaultPhase, at: int, *, last: bool = False) -> bool:
        """Fire the turn's fault if it is due. True: the row is to hold NaN."""
        fault = None if index is None else self._script.turns[index].fault
        if index is None or fault is None or fault.phase is not phase:
            return False
        due = at == fault.at or (last and at < fault.at)
        if not due or self._fired.get(index, 0) >= fault.times:
            return False
        self._fired[index] = self._fired.get(index, 0) + 1
        self._on_fault(self._digest, index)
        match fault.kind:
            case FaultKind.DEVICE:
                raise raising.from_text(fault.text)
            case FaultKind.OOM:
                raise raising.device_error("oom", text=fault.text)
            case FaultKind.HOST:
                raise ValueError(fault.text or "a scripted host error")
            case FaultKind.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case FaultKind.EXIT:
                os._exit(EXIT_STATUS)
            case FaultKind.HANG:
                while True:
                    time.sleep(60)
            case FaultKind.NAN:
                if phase is FaultPhase.PREFILL:
                    raise NanLogitsError("scripted")
        return True


def load_scripted(
    path: Path, fired: tuple[tuple[str, int, int], ...], progress: ReportProgress, on_fault: OnFault
) -> ScriptedModel:
    """Read a script and report four steps of progress. Raises ScriptError, and what its load fault says."""
    content = read_content(path)
    script = parse_script(content)
    digest = hashlib.sha256(content).hexdigest()[:32]
    counts = {turn: count for known, turn, count in fired if known == digest}
    model = ScriptedModel(script, digest, counts, on_fault)
    if model.will_raise():
        raising.prepare()
    for step in range(_LOAD_STEPS):
        progress("read", (step + 1) / _LOAD_STEPS)
        model.maybe_fail_load(step)
    return model
