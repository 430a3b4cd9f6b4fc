"""The sampler against the float64 oracle: the support exactly, the frequencies by chi-squared, and the edge cases."""

import itertools
import os
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neuron.actors.errors import NanLogits
from neuron.actors.request import SamplingParams
from neuron.actors.sampling.params import ResolvedSampling, resolve_sampling
from neuron.actors.sampling.sampler import Sampler
from tests.actors.sampling.reference import distribution, edited

SIZE = 3000
DRAWS = 4000


def row_of(seed: int, spread: float, size: int = SIZE) -> npt.NDArray[np.float32]:
    return (np.random.default_rng(seed).normal(size=size) * spread).astype(np.float32)


def draws(params: ResolvedSampling, row: npt.NDArray[np.float32], count: int = DRAWS) -> npt.NDArray[np.int64]:
    sampler = Sampler(params, vocab_size=row.size)
    return np.bincount([sampler.sample(row).token_id for _ in range(count)], minlength=row.size)


def assert_same_distribution(counts: npt.NDArray[np.int64], expected: npt.NDArray[np.float64]) -> None:
    """Nothing outside the support, and a chi-squared statistic below its 99.99 % point (Wilson-Hilferty)."""
    assert not counts[expected == 0].any()
    wanted = expected * counts.sum()
    order = np.argsort(-wanted)
    groups = [
        (counts[part].sum(), wanted[part].sum()) for part in _groups(order[wanted[order] > 0], wanted) if len(part)
    ]
    statistic = sum((seen - hoped) ** 2 / hoped for seen, hoped in groups)
    freedom = max(1, len(groups) - 1)
    bound = freedom * (1 - 2 / (9 * freedom) + 3.719 * np.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < bound


def _groups(order: npt.NDArray[np.int64], wanted: npt.NDArray[np.float64]) -> list[list[int]]:
    """Cells of at least five expected draws."""
    groups: list[list[int]] = [[]]
    mass = 0.0
    for token in order:
        groups[-1].append(int(token))
        mass += wanted[token]
        if mass >= 5.0:
            groups.append([])
            mass = 0.0
    if len(groups) > 1:
        groups[-2].extend(groups.pop())
    return groups


CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_k": 5},
    {"top_k": 40, "temperature": 1.5},
    {"top_k": 2999},
    {"top_p": 0.9},
    {"top_p": 0.5, "temperature": 1.3},
    {"top_p": 0.999},
    {"min_p": 0.1},
    {"min_p": 0.002, "temperature": 1.5},
    {"top_k": 20, "top_p": 0.8},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.2},
    {"top_p": 0.8, "min_p": 0.05},
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("spread", [0.3, 4.0])
def test_distribution(case: dict[str, Any], spread: float) -> None:
    params = ResolvedSampling(**{"temperature": 1.0, "seed": 7, **case})
    row = row_of(1, spread)
    assert_same_distribution(draws(params, row), distribution(row.astype(np.float64), params))


def test_a_flat_row_past_the_sorting_limit_is_cut_the_same() -> None:
    row = row_of(3, 0.2, 20_000)
    params = ResolvedSampling(temperature=1.0, top_p=0.3, seed=1)
    expected = distribution(row.astype(np.float64), params)
    counts = draws(params, row, 2000)
    # float32 sums may move the boundary by a token or two, never more.
    outside = counts[expected == 0].sum()
    assert outside <= 2
    assert row[counts > 0].min() >= np.sort(row[expected > 0])[0] - 1e-4


def test_the_oracle_catches_a_wrong_sampler() -> None:
    row = row_of(1, 4.0)
    counts = draws(ResolvedSampling(temperature=1.1, seed=7), row)
    with pytest.raises(AssertionError):
        assert_same_distribution(counts, distribution(row.astype(np.float64), ResolvedSampling(temperature=1.0)))


@pytest.mark.parametrize(
    "params",
    [
        ResolvedSampling(temperature=0.0),
        ResolvedSampling(temperature=1e-4),
        ResolvedSampling(temperature=1e-40),
        ResolvedSampling(top_p=1e-4),
        ResolvedSampling(top_p=0.0),
        ResolvedSampling(temperature=0.0, top_p=0.5),
        ResolvedSampling(top_k=1),
        ResolvedSampling(min_p=1.0),
    ],
    ids=str,
)
def test_degenerate_settings_take_the_largest(params: ResolvedSampling) -> None:
    row = row_of(2, 3.0)
    row[11] = -np.inf
    picks = {Sampler(params, vocab_size=SIZE).sample(row).token_id for _ in range(20)}
    assert picks == {int(row.argmax())}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1023, 1024, SIZE - 1])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_unhealthy_logit_is_noticed(bad: float, place: int, temperature: float) -> None:
    row = row_of(2, 3.0)
    row[place] = bad
    sampler = Sampler(ResolvedSampling(temperature=temperature), vocab_size=SIZE)
    with pytest.raises(NanLogits):
        sampler.sample(row)


@pytest.mark.parametrize("value", [np.nan, -np.nan, -np.inf])
@pytest.mark.parametrize("case", [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
def test_a_row_without_a_distribution_is_refused(value: float, case: dict[str, Any]) -> None:
    row = np.full(SIZE, value, np.float32)
    with pytest.raises(NanLogits):
        Sampler(ResolvedSampling(**case), vocab_size=SIZE).sample(row)


def test_padding_past_the_vocabulary_is_never_chosen_nor_looked_at() -> None:
    row = row_of(4, 1.0)
    row[2500:] = np.nan
    cases: list[dict[str, Any]] = [{"temperature": 0.0}, {}, {"top_k": 50}, {"top_p": 0.99}]
    for case in cases:
        sampler = Sampler(ResolvedSampling(**case), vocab_size=2500, top_logprobs=3)
        assert all(sampler.sample(row).token_id < 2500 for _ in range(50))


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, -5])
def test_a_seed_repeats_the_answer(seed: int) -> None:
    rows = [row_of(i, 2.0) for i in range(30)]
    params = ResolvedSampling(temperature=1.0, seed=seed)
    first, second = (
        [sampler.sample(row).token_id for row in rows] for sampler in (Sampler(params, vocab_size=SIZE) for _ in "ab")
    )
    assert first == second


def test_without_a_seed_answers_differ() -> None:
    rows = [row_of(i, 2.0) for i in range(30)]
    answers = {
        tuple(sampler.sample(row).token_id for row in rows)
        for sampler in (Sampler(ResolvedSampling(temperature=1.0), vocab_size=SIZE) for _ in range(3))
    }
    assert len(answers) == 3


PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 1.3, "repeat_last_n": 3},
    {"repetition_penalty": 1.3, "repeat_last_n": 0},
    {"repetition_penalty": 1.3, "repeat_last_n": -1},
    {"presence_penalty": 1.5},
    {"frequency_penalty": -0.7},
    {"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 0.8},
    {"logit_bias": ((5, 3.0), (9, -100.0))},
    {"logit_bias": ((5, 2.0),), "presence_penalty": 2.0},
]


@pytest.mark.parametrize("case", PENALTIES, ids=str)
def test_penalties_and_bias(case: dict[str, Any]) -> None:
    prompt, answer = [1, 5, 5, 7, 100], [5, 9, 9, 9, 42]
    params = ResolvedSampling(**{"temperature": 1.0, "seed": 3, **case})
    row = row_of(6, 1.0, 120)
    sampler = Sampler(params, vocab_size=row.size, prompt=prompt)
    for token in answer:
        sampler.accept(token)
    before = row.copy()
    counts = np.bincount([sampler.sample(row).token_id for _ in range(DRAWS)], minlength=row.size)
    assert np.array_equal(row, before)
    assert_same_distribution(counts, distribution(edited(row, params, prompt, answer), params))


def test_greedy_feels_the_penalties_too() -> None:
    row = np.array([1.0, 2.0, 1.9], np.float32)
    sampler = Sampler(ResolvedSampling(temperature=0.0, repetition_penalty=1.2), vocab_size=3)
    assert sampler.sample(row).token_id == 1
    sampler.accept(1)
    assert sampler.sample(row).token_id == 2


class OnlyOdd:
    """A grammar that allows odd ids, and notes what it is told."""

    def __init__(self) -> None:
        self.committed: list[int] = []

    def apply(self, logits: npt.NDArray[np.float32]) -> None:
        logits[::2] = -np.inf

    def commit(self, token_id: int) -> None:
        self.committed.append(token_id)


@pytest.mark.parametrize("case", [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
def test_a_grammar_masks_before_the_choice(case: dict[str, Any]) -> None:
    row, grammar = row_of(8, 2.0), OnlyOdd()
    before = row.copy()
    sampler = Sampler(ResolvedSampling(**case), vocab_size=SIZE, constraint=grammar)
    tokens = [sampler.sample(row).token_id for _ in range(50)]
    assert all(token % 2 == 1 for token in tokens)
    assert np.array_equal(row, before)
    sampler.accept(tokens[0])
    assert grammar.committed == [tokens[0]]


@pytest.mark.parametrize("count", [0, 1, 5, 20])
@pytest.mark.parametrize("case", [{"temperature": 0.0}, {"top_k": 3}, {"logit_bias": ((2, 9.0),)}], ids=str)
def test_logprobs_are_the_models_own(count: int, case: dict[str, Any]) -> None:
    row = row_of(9, 3.0)
    wide = row.astype(np.float64)
    expected = wide - (wide.max() + np.log(np.exp(wide - wide.max()).sum()))
    sampled = Sampler(ResolvedSampling(**case), vocab_size=SIZE, top_logprobs=count).sample(row)
    assert sampled.logprob == pytest.approx(expected[sampled.token_id], abs=1e-5)
    best = np.argsort(-expected, kind="stable")[:count]
    assert [token for token, _ in sampled.top] == best.tolist()
    assert [value for _, value in sampled.top] == pytest.approx(expected[best].tolist(), abs=1e-5)


def test_ties_take_the_smaller_id_and_top_k_keeps_exactly_k() -> None:
    row = np.zeros(2000, np.float32)
    counts = draws(ResolvedSampling(temperature=1.0, top_k=7, seed=1), row, 500)
    assert np.flatnonzero(counts).tolist() == list(range(7))
    assert Sampler(ResolvedSampling(temperature=0.0), vocab_size=2000).sample(row).token_id == 0


@pytest.mark.parametrize("size", [1, 2, 1023, 1024, 1025, 2048, 5000])
def test_every_row_length(size: int) -> None:
    row = row_of(5, 2.0, size)
    cases: list[dict[str, Any]] = [{}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2}, {"temperature": 0.0}]
    for case in cases:
        assert 0 <= Sampler(ResolvedSampling(**case), vocab_size=size).sample(row).token_id < size


def test_settings_come_from_the_request_then_the_model_then_the_default() -> None:
    names = ("temperature", "top_p", "top_k")
    model = SamplingParams(temperature=1.0, top_k=20)
    resolved = resolve_sampling(SamplingParams(temperature=0.0, seed=4), model)
    assert [getattr(resolved, name) for name in names] == [0.0, 1.0, 20]
    assert resolve_sampling(SamplingParams(), SamplingParams()).temperature == 0.7
    assert resolved.seed == 4
    assert list(itertools.chain(resolved.logit_bias)) == []


IMPORTS = """
import sys
from neuron.actors.registry import Registry
from neuron.actors.sampling.sampler import Sampler, warm_up
from neuron.actors.sampling.params import ResolvedSampling
import numpy as np
warm_up()
row = np.zeros(9, np.float32)
row[4] = 9.0
assert Sampler(ResolvedSampling(top_k=2, temperature=0.1), vocab_size=9).sample(row).token_id == 4
loaded = [name for name in sys.modules if name.split(".")[0] == "torch" or name.startswith("numba.cuda")]
assert not loaded, loaded
"""


def test_the_daemon_samples_without_torch_cuda_or_a_place_for_a_cache() -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": "/proc/nowhere", "HOME": "/proc/nowhere"}
    done = subprocess.run([sys.executable, "-c", IMPORTS], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
