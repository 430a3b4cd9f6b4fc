"""The CPU forms of the five operations against the float64 references, at any length and any split."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neuron.kernels.gdn.chunk.cpu import CHUNK, chunk_space, chunked
from neuron.kernels.gdn.chunk.naive import chunked as chunked_naive
from neuron.kernels.gdn.conv_full.cpu import conv_full
from neuron.kernels.gdn.conv_full.naive import conv_full as conv_full_naive
from neuron.kernels.gdn.conv_update.cpu import conv_update
from neuron.kernels.gdn.conv_update.naive import conv_update as conv_update_naive
from neuron.kernels.gdn.gating.cpu import gating
from neuron.kernels.gdn.gating.naive import gating as gating_naive
from neuron.kernels.gdn.recurrent.cpu import recurrent
from neuron.kernels.gdn.recurrent.naive import Array
from neuron.kernels.gdn.recurrent.naive import recurrent as recurrent_naive
from neuron.kernels.threads import Team
from tests.kernels.gdn import inputs
from tests.kernels.gdn.inputs import Rule, worst

pytestmark = pytest.mark.timeout(300)

LENGTHS = (1, 2, 3, 4, 5, 63, 64, 65, 127, 130)
Floats = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    made = Team(3)
    yield made
    made.close()


def _single(values: npt.NDArray[Any]) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float32)


def _by_head(values: Array) -> Floats:
    """[T, heads, ...] as [heads, T, ...]."""
    return _single(np.swapaxes(values, 0, 1))


def run_rule(made: Rule, team: Team, split: int) -> tuple[Floats, Floats]:
    """Outputs [T, Hv, V] and state, `split` tokens at a time: chunks from CHUNK on, the recurrence below."""
    state = _single(made.state)
    parts = []
    for start in range(0, len(made.q), split):
        part = slice(start, start + split)
        q = _by_head(made.q[part] * made.q.shape[2] ** -0.5)
        k, v, g, beta = (_by_head(value[part]) for value in (made.k, made.v, made.g, made.beta))
        out = np.full_like(v, np.nan)
        n, whole = q.shape[1], q.shape[1] // CHUNK * CHUNK
        heads, width, columns = state.shape
        addresses = [value.ctypes.data for value in (q, k, v, g, beta, state)]
        ratio = heads // len(k)
        if whole:
            space = np.full((team.threads, chunk_space(width, columns)), np.nan, np.float32)
            shape = (width, columns, space.ctypes.data, out.ctypes.data)
            team.run(chunked, heads, ratio, whole, n, *addresses, *shape)
        team.run(recurrent, heads, ratio, whole, n, n, *addresses, width, columns, out.ctypes.data)
        parts.append(np.swapaxes(out, 0, 1))
    return np.concatenate(parts), state


@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_and_split_equals_the_recurrence(length: int, team: Team) -> None:
    made = inputs.rule(length, key_heads=2, ratio=3, key_width=20, value_width=36)
    wanted, after = recurrent_naive(*made.arguments())
    for split in (length, 64, 7, 1):
        found, state = run_rule(made, team, split)
        assert max(worst(found, wanted), worst(state, after)) < 1e-5, split


@pytest.mark.parametrize("split", [1, 64, 130])
def test_real_widths(split: int, team: Team) -> None:
    made = inputs.rule(130, key_heads=2, ratio=1, key_width=128, value_width=128)
    wanted, after = recurrent_naive(*made.arguments())
    found, state = run_rule(made, team, split)
    assert max(worst(found, wanted), worst(state, after)) < 1e-5


@pytest.mark.parametrize("make", [inputs.alike, inputs.forgetful])
def test_adversarial_inputs(make: Any, team: Team) -> None:
    made = make(130)
    wanted, after = recurrent_naive(*made.arguments())
    for split in (130, 64, 1):
        found, state = run_rule(made, team, split)
        assert max(worst(found, wanted), worst(state, after)) < 2e-4, split
    assert worst(chunked_naive(*made.arguments())[0], wanted) < 1e-9


def test_powers_of_the_chunk_matrix_would_fail_on_like_keys() -> None:
    """What the adversarial test guards against: a doubling product of powers, exact on paper, is useless in float32."""
    made = inputs.alike(CHUNK)
    key = made.k[:, 0].astype(np.float32)
    strict = np.tril(made.beta[:, 0, None].astype(np.float32) * (key @ key.T), -1)
    inverse, power = np.eye(CHUNK, dtype=np.float32) - strict, strict @ strict
    for _ in range(5):
        inverse, power = inverse + inverse @ power, power @ power
    residual = inverse @ (np.eye(CHUNK, dtype=np.float32) + strict) - np.eye(CHUNK)
    assert not np.abs(residual).max() < 1.0


def test_an_unmasked_exponential_would_fail_on_strong_decay() -> None:
    total = np.cumsum(inputs.forgetful(CHUNK).g[:, 0]).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        product = (
            np.tril(np.exp(total[:, None] - total[None, :])) * 0 + np.exp(total)[:, None] * np.exp(-total)[None, :]
        )
    assert not np.isfinite(product).all()


@pytest.mark.parametrize("mutation", ["no decay", "beta of one", "keys not normalised", "heads tiled"])
def test_the_tolerance_sees_a_wrong_rule(mutation: str, team: Team) -> None:
    made = inputs.rule(65)
    wanted, _ = recurrent_naive(*made.arguments())
    if mutation == "no decay":
        made.g = np.zeros_like(made.g)
    elif mutation == "beta of one":
        made.beta = np.ones_like(made.beta)
    elif mutation == "keys not normalised":
        made.k = made.k * 1.01
    else:
        made.v = made.v[:, [0, 2, 1, 3]]
    assert worst(run_rule(made, team, 65)[0], wanted) > 1e-3


@pytest.mark.parametrize("tiled", [0, 1])
def test_gating(tiled: int, team: Team) -> None:
    random = np.random.default_rng(0)
    keys, heads, tokens = 2, 6, 5
    a, b = (random.standard_normal((tokens, heads)) * 6 for _ in range(2))
    a[0, 0], a[1, 1], a[2, 2], b[3, 3] = 19.9, 800.0, -800.0, -800.0
    decay, bias = -np.exp(random.standard_normal(heads)), random.standard_normal(heads)
    order = np.arange(heads).reshape(-1, keys).T.reshape(-1) if tiled else np.arange(heads)
    wanted = gating_naive(a, b, decay, bias)
    held = [_single(value) for value in (a, b, decay, bias)]
    g, beta = np.zeros((heads, tokens), np.float32), np.zeros((heads, tokens), np.float32)
    addresses = [value.ctypes.data for value in held]
    team.run(gating, tokens, heads, keys, tiled, *addresses, tokens, g.ctypes.data, beta.ctypes.data)
    np.testing.assert_allclose(g.T, wanted[0][:, order], rtol=1e-6)
    np.testing.assert_allclose(beta.T, wanted[1][:, order], rtol=1e-6, atol=1e-30)
    assert np.abs(g.T - gating_naive(a, b, decay, 0 * bias)[0][:, order]).max() > 1e-2


@pytest.mark.parametrize("kernel", [2, 4, 7])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 30])
def test_conv_full_from_any_position(tokens: int, kernel: int, team: Team) -> None:
    random = np.random.default_rng(1)
    channels, position = 37, 9
    x, ring = random.standard_normal((tokens, channels)), random.standard_normal((kernel, channels))
    weight = random.standard_normal((kernel, channels))
    wanted, after = conv_full_naive(x, weight, ring, position)
    held, ring_held, taps = _single(x), _single(ring), _single(weight)
    out = np.zeros_like(held)
    scratch = np.zeros((3, kernel, channels), np.float32)
    team.run(
        conv_full,
        team.barrier_state,
        tokens,
        held.ctypes.data,
        0,
        ring_held.ctypes.data,
        taps.ctypes.data,
        position,
        kernel,
        channels,
        scratch.ctypes.data,
        out.ctypes.data,
    )
    assert worst(out, wanted) < 1e-5
    np.testing.assert_array_equal(ring_held, _single(after))
    assert worst(out, conv_full_naive(x, weight[::-1], ring, position)[0]) > 1e-2
    assert worst(out, conv_full_naive(x, weight, ring, position + 1)[0]) > 1e-2


def test_conv_update_of_several_sequences(team: Team) -> None:
    random = np.random.default_rng(2)
    kernel, channels, slots, positions = 4, 41, np.array([2, 0]), np.array([0, 11])
    x, rings = random.standard_normal((2, channels)), random.standard_normal((3, kernel, channels))
    weight = random.standard_normal((kernel, channels))
    wanted, after = conv_update_naive(x, weight, rings, slots, positions)
    held, rings_held, taps = _single(x), _single(rings), _single(weight)
    addresses = np.array([rings_held[slot].ctypes.data for slot in slots])
    out = np.zeros_like(held)
    arguments = (held, addresses, taps, positions)
    team.run(conv_update, 2, *(value.ctypes.data for value in arguments), kernel, channels, out.ctypes.data)
    assert worst(out, wanted) < 1e-5
    np.testing.assert_array_equal(rings_held, _single(after))


def test_conv_full_is_conv_update_repeated() -> None:
    random = np.random.default_rng(3)
    x, weight = random.standard_normal((9, 5)), random.standard_normal((4, 5))
    rings: Array = np.zeros((1, 4, 5))
    wanted, after = conv_full_naive(x, weight, rings[0], 0)
    for t in range(9):
        found, rings = conv_update_naive(x[t : t + 1], weight, rings, np.array([0]), np.array([t]))
        np.testing.assert_allclose(found[0], wanted[t])
    np.testing.assert_array_equal(rings[0], after)
