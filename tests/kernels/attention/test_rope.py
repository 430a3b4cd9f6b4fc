"""Frequencies beyond what the parity tests of whole models reach: M-RoPE axes, frequency factors, partial width."""

import numpy as np

from neuron.kernels.attention.rope import build_rope
from neuron.kernels.formats.model_config import RopeConfig


def test_interleaved_sections_alternate_until_they_are_used_up() -> None:
    config = RopeConfig(theta=1e7, rotary_dim=64, mrope_section=(11, 11, 10), mrope_interleaved=True)
    axis = build_rope(config, 1024).axis
    assert np.flatnonzero(axis == 1).tolist() == list(range(1, 33, 3))
    assert np.flatnonzero(axis == 2).tolist() == list(range(2, 30, 3))
    assert np.count_nonzero(axis == 0) == 11


def test_consecutive_sections_follow_each_other() -> None:
    config = RopeConfig(theta=1e4, rotary_dim=16, mrope_section=(2, 3, 3))
    assert build_rope(config, 1024).axis.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]


def test_equal_positions_on_all_axes_are_plain_rope() -> None:
    config = RopeConfig(theta=1e7, rotary_dim=64, mrope_section=(11, 11, 10), mrope_interleaved=True)
    rope = build_rope(config, 1024)
    plain, threefold = (np.zeros((5, 2, 32), dtype=np.float32) for _ in range(2))
    positions = np.arange(7, 12)
    rope.table(positions, plain)
    rope.table(np.stack([positions] * 3), threefold)
    np.testing.assert_array_equal(plain, threefold)


def test_frequency_factors_divide() -> None:
    config = RopeConfig(theta=1e4, rotary_dim=8)
    factors = np.array([1, 2, 4, 8], dtype=np.float32)
    plain, divided = build_rope(config, 64), build_rope(config, 64, factors)
    np.testing.assert_allclose(divided.inverse_frequency * factors, plain.inverse_frequency, rtol=1e-6)
