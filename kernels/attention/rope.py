"""Rotary embedding: frequencies of every form of RopeConfig, and the cosines and sines of given positions."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuron.kernels.formats.model_config import RopeConfig, RopeScaling

Floats = npt.NDArray[np.float32]


@dataclass(slots=True, frozen=True)
class Rope:
    """`inverse_frequency` float32 [rotary_dim / 2]; cosines and sines are multiplied by `magnitude`.

    `axis` int64 [rotary_dim / 2]: which of the positions (t, h, w) turns a pair; zeros without M-RoPE.
    """

    inverse_frequency: Floats
    magnitude: float
    axis: npt.NDArray[np.int64]

    def table(self, positions: npt.NDArray[np.int64], out: Floats) -> None:
        """Write cosines, then sines, of `positions` [n] or [3, n] to `out` float32 [n, 2, rotary_dim / 2].

        The angle is rounded to float32 before the cosine, as the models were trained and are run elsewhere.
        """
        if positions.ndim == 2:
            chosen = positions[self.axis].T.astype(np.float32)
        else:
            chosen = positions.astype(np.float32)[:, None]
        angle = chosen * self.inverse_frequency
        np.multiply(np.cos(angle), self.magnitude, out=out[:, 0], casting="same_kind")
        np.multiply(np.sin(angle), self.magnitude, out=out[:, 1], casting="same_kind")


def build_rope(config: RopeConfig, max_position: int, factors: Floats | None = None) -> Rope:
    """Frequencies of `config`; `factors` are GGUF's rope_freqs, which divide them.

    Formulas: linear (https://arxiv.org/abs/2306.15595), llama3 (Llama 3.1 model card code), YaRN
    (https://arxiv.org/abs/2309.00071), all as transformers computes them.
    """
    half = config.rotary_dim // 2
    base = 1.0 / config.theta ** (np.arange(half, dtype=np.float64) * 2 / config.rotary_dim)
    magnitude = 1.0
    if config.scaling is RopeScaling.LINEAR:
        base = base / config.factor
    elif config.scaling is RopeScaling.LLAMA3:
        base = _llama3(base, config)
    elif config.scaling is RopeScaling.YARN:
        base = _yarn(base, config, max_position)
        magnitude = config.attention_factor if config.attention_factor is not None else _yarn_magnitude(config.factor)
    if factors is not None:
        base = base / factors
    return Rope(base.astype(np.float32), magnitude, _axes(config, half))


def _llama3(base: npt.NDArray[np.float64], config: RopeConfig) -> npt.NDArray[np.float64]:
    wavelength = 2 * math.pi / base
    low, high = config.low_freq_factor, config.high_freq_factor
    original = config.original_max_position
    smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    blended = (1 - smooth) * base / config.factor + smooth * base
    scaled = np.where(wavelength > original / low, base / config.factor, base)
    middle = (wavelength <= original / low) & (wavelength >= original / high)
    return np.where(middle, blended, scaled)


def _yarn(base: npt.NDArray[np.float64], config: RopeConfig, max_position: int) -> npt.NDArray[np.float64]:
    original = config.original_max_position or max_position

    def turning(rotations: float) -> float:
        return config.rotary_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))

    low = max(math.floor(turning(config.beta_fast)), 0)
    high = min(math.ceil(turning(config.beta_slow)), config.rotary_dim - 1)
    ramp = np.clip((np.arange(len(base)) - low) / max(high - low, 0.001), 0.0, 1.0)
    return base / config.factor * ramp + base * (1 - ramp)


def _yarn_magnitude(factor: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0


def _axes(config: RopeConfig, half: int) -> npt.NDArray[np.int64]:
    axis = np.zeros(half, dtype=np.int64)
    if config.mrope_section is None:
        return axis
    if config.mrope_interleaved:
        # t h w t h w ..., until the sections of h and w are used up; the rest is t.
        for which in (1, 2):
            axis[which : 3 * config.mrope_section[which] : 3] = which
        return axis
    start = 0
    for which, size in enumerate(config.mrope_section):
        axis[start : start + size] = which
        start += size
    return axis
