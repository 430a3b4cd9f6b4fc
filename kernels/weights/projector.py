"""SeeingReader: a text model's GGUF with the vision tower of an mmproj file beside it, as one reader."""

import numpy as np

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.formats.gguf import GgufSet
from neuron.kernels.formats.projector import PATCH, PATCH_FRAMES, PREFIX, stored_name
from neuron.kernels.formats.sharding import WHOLE, Cut
from neuron.kernels.threads import Team
from neuron.kernels.weights.matrix import Floats, Matrix
from neuron.kernels.weights.reader import GgufReader

_FLOATS = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)


class SeeingReader(GgufReader):
    """Names that begin with `PREFIX` are the tower's, as safetensors files call them. See WeightReader."""

    def __init__(self, opened: GgufSet, projector: GgufSet, team: Team) -> None:
        super().__init__(opened, team)
        self._tower, self._projector = GgufReader(projector, team), projector

    def has(self, name: str) -> bool:
        if not name.startswith(PREFIX):
            return super().has(name)
        plain = name.removeprefix(PREFIX)
        return plain == PATCH or self._tower.has(stored_name(plain))

    def matrix(self, name: str, kind: GgmlType | None = None, cut: Cut = WHOLE) -> Matrix:
        """Matrices of a tower are floating-point; blocks become float32."""
        if not name.startswith(PREFIX):
            return super().matrix(name, kind, cut)
        stored = stored_name(name.removeprefix(PREFIX))
        if kind is None and self._tower.kind(stored) not in _FLOATS:
            kind = GgmlType.F32
        return self._tower.matrix(stored, kind, cut)

    def vector(self, name: str) -> Floats:
        if not name.startswith(PREFIX):
            return super().vector(name)
        plain = name.removeprefix(PREFIX)
        if plain != PATCH:
            return self._tower.vector(stored_name(plain))
        frames = [self._projector.dequantised(frame) for frame in PATCH_FRAMES]
        both: Floats = np.ascontiguousarray(np.stack(frames, axis=2)).reshape(-1)
        return both

    def release(self, name: str) -> None:
        if not name.startswith(PREFIX):
            super().release(name)
