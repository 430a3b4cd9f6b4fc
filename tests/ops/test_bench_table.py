"""The tables of the benches at a small scale: every line is there, and what they call work is counted right."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.threads import Team
from ops.bench import products, table
from ops.bench.engine import Engine, Neuron
from ops.bench.machine import Machine
from ops.bench.transformers_engine import Transformers
from tests.kernels.hybrid.converted import write
from tests.kernels.hybrid.tiny import BASE, tiny_hybrid

pytestmark = pytest.mark.timeout(300)


def test_each_prompt_and_the_depth_get_their_lines(tmp_path: Path) -> None:
    path = write(tiny_hybrid(tmp_path), tmp_path / "tiny.gguf")
    work = table.Work(path)
    whole = sum(parameter.nbytes for parameter in tiny_hybrid(tmp_path).parameters() if parameter.ndim > 1)
    embedding = 4 * BASE["vocab_size"] * BASE["hidden_size"]
    assert 0.9 * (whole - embedding) < work.nbytes <= whole - embedding
    assert work.flops == (work.nbytes - embedding) // 2
    engine = Neuron(path, 128, 1)
    machine = Machine(1, 1e9, 1e9)
    lines = list(table.rows([engine, engine], work, [20, 40], 60, 2, 1, machine, (3, BASE["vocab_size"])))
    engine.close()
    names = [line.split("|")[1].strip() for line in lines[2:]]
    assert names == ["prefill 20", "decode at 20", "prefill 40", "decode at 60"]
    assert all(line.count("|") == lines[0].count("|") for line in lines)


def test_transformers_runs_the_same_weights(tmp_path: Path) -> None:
    path = write(tiny_hybrid(tmp_path), tmp_path / "tiny.gguf")
    engines: list[Engine] = [Neuron(path, 64, 1), Transformers(tmp_path, 1)]
    found = []
    for engine in engines:
        engine.prefill([3, 5, 7, 11])
        engine.extend([13, 17])
        engine.decode([19, 23])
        found.append(engine.logits().astype(np.float64))
        engine.close()
    # One computes in float32, the other in bfloat16.
    assert np.corrcoef(found[0], found[1])[0, 1] > 0.999


@pytest.mark.parametrize("kind", [GgmlType.Q4_K, GgmlType.Q8_0, GgmlType.BF16])
def test_products_of_every_type_have_a_rate(kind: GgmlType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_BYTES", 1 << 20)
    team = Team(2)
    assert products.rate(team, kind, 96, 512, 2, 1) > 0
    team.close()


def test_a_type_whose_blocks_do_not_fit_a_shape_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_BYTES", 1 << 16)
    monkeypatch.setattr(products, "SHAPES", ((64, 256), (64, 576)))
    monkeypatch.setattr(products, "measure", lambda team: Machine(1, 1e9, 1e9))
    arguments = ["--types", "q6_k", "--rounds", "1", "--threads", "1"]
    output = CliRunner().invoke(products.main, arguments, catch_exceptions=False).output
    assert output.splitlines()[-1].split()[0] == "Q6_K"
    assert output.splitlines()[-1].split()[-1] == "-"
    assert np.isfinite(float(output.splitlines()[-1].split()[1]))
