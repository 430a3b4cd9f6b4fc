"""Matrices side by side on huge pages: the same bytes, aligned, readable behind their end, and given back."""

import gc
import mmap
import weakref
from itertools import pairwise

import numpy as np
import pytest

from neuron.kernels.decoder.arena import Arena
from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.weights.matrix import ALIGNMENT, TAIL, Matrix, empty_matrix

HUGE = 1 << 21
pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages to ask for")


def filled(rows: int, cols: int, seed: int = 0) -> Matrix:
    matrix = empty_matrix(GgmlType.Q8_0, rows, cols)
    matrix.data[:] = np.random.default_rng(seed).integers(0, 256, matrix.data.shape, dtype=np.uint8)
    return matrix


def test_the_same_matrix_one_behind_the_other() -> None:
    arena = Arena()
    matrices = [filled(rows, 96, rows) for rows in (1, 7, 64, 333)]
    settled = [arena.settled(matrix) for matrix in matrices]
    for before, after in zip(matrices, settled, strict=True):
        assert (after.kind, after.rows, after.cols, after.row_bytes) == (
            before.kind,
            before.rows,
            before.cols,
            before.row_bytes,
        )
        assert np.array_equal(after.data, before.data)
        assert after.address % ALIGNMENT == 0
        assert after.data.flags.c_contiguous
    assert settled[0].address % HUGE == 0
    gaps = [b.address - a.address - a.nbytes for a, b in pairwise(settled)]
    assert all(TAIL <= gap < TAIL + ALIGNMENT for gap in gaps)


def test_a_stretch_follows_a_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuron.kernels.decoder.arena._STRETCH", 16 * HUGE)
    arena = Arena()
    # Three of 12 MiB: the third does not fit beside the others in 32.
    settled = [arena.settled(filled(12 << 10, 964 // 32 * 32, seed)) for seed in range(3)]
    for seed, matrix in enumerate(settled):
        assert np.array_equal(matrix.data, filled(matrix.rows, matrix.cols, seed).data)
    assert settled[2].address % HUGE == 0


def test_a_large_matrix_stays_where_it_is() -> None:
    large = empty_matrix(GgmlType.Q8_0, 32 << 10, 1024)
    assert Arena().settled(large) is large


def test_without_room_a_matrix_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    matrix = filled(4, 64)
    assert Arena().settled(matrix) is matrix


def test_a_stretch_goes_with_its_last_matrix() -> None:
    arena = Arena()
    kept = arena.settled(filled(4, 64))
    owner = kept.data
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    seen = weakref.ref(owner)
    del arena, owner
    gc.collect()
    assert seen() is not None
    del kept
    gc.collect()
    assert seen() is None
