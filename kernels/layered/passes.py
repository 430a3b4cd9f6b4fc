"""Passes: tokens of a sequence cut into passes over the stack, and the logits row that comes of the last one."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from neuron.kernels.attention.rope import Rope
from neuron.kernels.formats.model_config import LayerKind, ModelConfig
from neuron.kernels.gdn.state import state_shape
from neuron.kernels.layered.graph import Recorder
from neuron.kernels.layered.placement import Kernels, Placement
from neuron.kernels.layered.rows import DeviceRows, HostRows, KvRows
from neuron.kernels.layered.sequence import LayeredSequence
from neuron.kernels.layered.span import Span
from neuron.kernels.layered.stack import Spliced, Stack
from neuron.kernels.layered.state import DeviceState
from neuron.kernels.layered.step import DecodeStep
from neuron.kernels.resident import Logits, RopePositions, within


class Passes:
    """`config` is the rank's own; `rows` the most tokens of one pass. With a recorder, single tokens that want logits
    run as a step between static buffers. Owns the placement's threads from here."""

    def __init__(
        self,
        config: ModelConfig,
        stack: Stack,
        rope: Rope,
        placement: Placement,
        context: int,
        rows: int,
        recorder: Recorder | None,
    ) -> None:
        self._config, self._stack, self._rope, self._placement = config, stack, rope, placement
        self._context, self._rows, self._recorder = context, rows, recorder

    def new_sequence(self) -> LayeredSequence:
        config, place = self._config, self._placement
        full = sum(kind is LayerKind.FULL for kind in config.layer_kinds)
        size = (full, config.num_kv_heads, config.head_dim, self._context, place.rows_dtype)
        host = place.kernels is Kernels.COMPILED
        rows: KvRows = HostRows(*size) if host else DeviceRows(*size, place.device)
        shape = state_shape(config)
        sequence = LayeredSequence(rows, None if shape is None else DeviceState(shape, place.device))
        if self._recorder is not None:
            self._add_step(sequence, self._recorder)
        return sequence

    def run(
        self,
        sequence: LayeredSequence,
        tokens: npt.NDArray[np.int32],
        logits: Logits,
        spliced: Sequence[tuple[int, torch.Tensor]],
        rope_positions: RopePositions,
    ) -> None:
        """All `tokens` after what `sequence` holds; its length moves with each pass. Arguments are checked."""
        if self._placement.on_host and self._placement.team.adapt():
            torch.set_num_threads(self._placement.team.active)
        with torch.inference_mode():
            for start in range(0, len(tokens), self._rows):
                stop = min(start + self._rows, len(tokens))
                turned = None if rope_positions is None else rope_positions[:, start:stop]
                wanted = logits if stop == len(tokens) else None
                self._one(sequence, tokens[start:stop], wanted, within(spliced, start, stop), turned)
                sequence.length += stop - start
            self._wait()

    def close(self) -> None:
        """End the threads. No pass may run any more."""
        self._placement.team.close()

    def _one(
        self,
        sequence: LayeredSequence,
        tokens: npt.NDArray[np.int32],
        logits: Logits,
        spliced: Spliced,
        rope_positions: RopePositions,
    ) -> None:
        n, start = len(tokens), sequence.length
        positions = np.arange(start, start + n, dtype=np.int64)
        turned = positions + sequence.rope_delta if rope_positions is None else rope_positions.astype(np.int64)
        if n == 1 and sequence.step is not None and logits is not None and not spliced:
            self._rope.table(turned, sequence.step.rope)
            self._stack.begin()
            row = sequence.step.run(int(tokens[0]), start)
        else:
            table = np.empty((n, 2, self._config.rope.rotary_dim // 2), dtype=np.float32)
            self._rope.table(turned, table)
            ids, index, rope = (self._put(values) for values in (tokens.astype(np.int64), positions, table))
            x = self._stack.run(ids, Span(start, n, index, rope), sequence, spliced)
            row = None if logits is None else self._stack.head(x[-1:])
        if logits is not None and row is not None:
            torch.from_numpy(logits).copy_(row[0, : len(logits)], non_blocking=True)

    def _add_step(self, sequence: LayeredSequence, recorder: Recorder) -> None:
        half = self._config.rope.rotary_dim // 2

        def run(token: torch.Tensor, span: Span) -> torch.Tensor | None:
            return self._stack.head(self._stack.run(token, span, sequence))

        sequence.step = DecodeStep(half, self._placement.device, run, recorder)

    def _put(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._placement.device)

    def _wait(self) -> None:
        if not self._placement.on_host:
            torch.cuda.current_stream(self._placement.device).synchronize()
