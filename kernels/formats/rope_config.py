"""Rope settings of a config.json, under every name that published files use. Used by hf_config only."""

from typing import Any

from neuron.kernels.formats.errors import shown
from neuron.kernels.formats.fields import (
    MAX_HEAD_DIM,
    MAX_POSITION,
    MAX_THETA,
    MAX_TURNS,
    MIN_THETA,
    MIN_TURNS,
    Fields,
    check_rotary,
    unsupported,
)
from neuron.kernels.formats.model_config import RopeConfig, RopeScaling

_SCALING = {
    "default": RopeScaling.NONE,
    "mrope": RopeScaling.NONE,
    "linear": RopeScaling.LINEAR,
    "llama3": RopeScaling.LLAMA3,
    "yarn": RopeScaling.YARN,
}
#: DeepSeek's variants of yarn, which compute another attention factor.
_UNSUPPORTED_KEYS = ("mscale", "mscale_all_dim")
#: What the hybrid turns where its file does not say: a quarter of the head, its pairs shared out among three axes.
_HYBRID_PARTIAL, _HYBRID_SECTION = 0.25, (11, 11, 10)


def parse_rope(fields: Fields, where: str, *, head_dim: int, max_position: int, hybrid: bool) -> RopeConfig:
    """RopeConfig from rope_parameters, rope_scaling, rope_theta and partial_rotary_factor of one text config.

    `rope_scaling` (type or rope_type) wins over `rope_parameters` where both speak; theta and the partial factor come
    from either, else from the top level; what the hybrid leaves out is as transformers has it. Raises FormatError:
    unsupported_model for an unknown scaling type.
    """
    merged: dict[str, Any] = {**fields.table("rope_parameters"), **fields.table("rope_scaling")}
    if any(isinstance(value, dict) for value in merged.values()):
        raise unsupported(where, "rope settings that differ between layers are not supported.")
    rope = Fields(merged, f"{where} (rope)")
    scaling = _scaling(rope, where)
    outer_theta = fields.number("rope_theta", MIN_THETA, MAX_THETA, 10_000.0)
    theta = rope.number("rope_theta", MIN_THETA, MAX_THETA, outer_theta)
    outer = fields.number("partial_rotary_factor", 0.0, 1.0, _HYBRID_PARTIAL if hybrid else 1.0)
    rotary_dim = int(head_dim * rope.number("partial_rotary_factor", 0.0, 1.0, outer))
    section = _section(rope)
    if section is None and hybrid and rotary_dim == 2 * sum(_HYBRID_SECTION):
        section = _HYBRID_SECTION
    check_rotary(rope, rotary_dim, head_dim, section)
    common = RopeConfig(
        theta=theta,
        rotary_dim=rotary_dim,
        scaling=scaling,
        mrope_section=section,
        mrope_interleaved=rope.flag("mrope_interleaved", hybrid),
    )
    return _scaled(common, rope, fields, where, max_position)


def _scaling(rope: Fields, where: str) -> RopeScaling:
    # Old files say "type"; where both are there, transformers reads rope_type.
    name = rope.text("rope_type", rope.text("type", "default"))
    scaling = _SCALING.get(name)
    if scaling is None:
        raise unsupported(where, f"the rope scaling type {shown(name)} is not supported.")
    return scaling


def _section(rope: Fields) -> tuple[int, int, int] | None:
    section = rope.integers("mrope_section", 0, MAX_HEAD_DIM, 3)
    if not section:
        return None
    if len(section) != 3:
        raise rope.fault("mrope_section must hold three numbers.")
    return (section[0], section[1], section[2])


def _scaled(common: RopeConfig, rope: Fields, fields: Fields, where: str, max_position: int) -> RopeConfig:
    if common.scaling is RopeScaling.NONE:
        return common
    factor = rope.number("factor", 1.0, 4096.0)
    original = rope.integer(
        "original_max_position_embeddings",
        1,
        MAX_POSITION,
        fields.integer("original_max_position_embeddings", 1, MAX_POSITION, max_position),
    )
    low, high = 1.0, 4.0
    if common.scaling is RopeScaling.LLAMA3:
        low = rope.number("low_freq_factor", MIN_TURNS, MAX_TURNS)
        high = rope.number("high_freq_factor", MIN_TURNS, MAX_TURNS)
        if high <= low:
            raise rope.fault("high_freq_factor must be larger than low_freq_factor.")
    attention: float | None = None
    if common.scaling is RopeScaling.YARN:
        if any(rope.has(key) for key in _UNSUPPORTED_KEYS) or not rope.flag("truncate", True):
            raise unsupported(where, "this variant of yarn (mscale, truncate) is not supported.")
        attention = rope.number("attention_factor", 0.0, 1e3) if rope.has("attention_factor") else None
    return RopeConfig(
        theta=common.theta,
        rotary_dim=common.rotary_dim,
        scaling=common.scaling,
        factor=factor,
        original_max_position=original,
        low_freq_factor=low,
        high_freq_factor=high,
        beta_fast=rope.number("beta_fast", MIN_TURNS, MAX_TURNS, 32.0),
        beta_slow=rope.number("beta_slow", MIN_TURNS, MAX_TURNS, 1.0),
        attention_factor=attention,
        mrope_section=common.mrope_section,
        mrope_interleaved=common.mrope_interleaved,
    )
