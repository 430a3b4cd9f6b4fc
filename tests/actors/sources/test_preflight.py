"""The memory budget and the report: sums that can be done by hand, and what does not fit or divide."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from neuron.actors.daemon import LoadRequest
from neuron.actors.errors import DoesNotFit, IndivisibleHeads, InvalidConfig, TpRequiresSafetensors
from neuron.actors.loading import Loader, LoadPlan
from neuron.actors.settings import LimitSettings, Settings
from neuron.actors.sources.artifact import Format, ModelArtifact
from neuron.actors.sources.budget import largest_context, make_budget, workspace_bytes
from neuron.actors.sources.ids import ModelId
from neuron.actors.sources.preflight import PreflightReport, preflight
from neuron.kernels.formats import in_situ
from neuron.kernels.formats.hf_config import parse_config
from tests.kernels.formats import models
from tests.kernels.formats.safetensors_files import from_arrays

HYBRID = parse_config(models.config_json(models.HYBRID))


def dense(tmp_path: Path, config: dict[str, Any] = models.LLAMA, **changes: Any) -> ModelArtifact:
    (tmp_path / "config.json").write_bytes(models.config_json(config, **changes))
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(models.dense_file(config, **changes))
    return artifact(tmp_path, Format.SAFETENSORS, weights)


def artifact(directory: Path, format: Format, *weights: Path, quant: str | None = None) -> ModelArtifact:
    return ModelArtifact(
        model_id="org/name",
        source_id="local:org/name",
        format=format,
        directory=directory,
        weight_files=weights,
        quant=quant,
    )


def test_a_budget_by_hand() -> None:
    budget = make_budget(HYBRID, matrix_bytes=1000, vector_bytes=10, context_length=100, free_bytes=1 << 30)
    # One full-attention layer of four: K and V of 2 heads of 64, two bytes each.
    assert budget.kv_bytes_per_token == 2 * 2 * 64 * 2
    assert budget.kv_bytes == 100 * 512
    assert budget.state_bytes == HYBRID.state_bytes
    assert budget.weights_bytes == 1010
    assert budget.total_bytes == 1010 + 51_200 + budget.state_bytes + budget.workspace_bytes
    assert workspace_bytes(HYBRID, 2) - workspace_bytes(HYBRID, 1) == 4 * (3 * 32 + (2 * 4 + 2 * 2) * 64 + 2 * 64)


def test_ranks_share_matrices_and_not_vectors() -> None:
    one = make_budget(HYBRID, matrix_bytes=1001, vector_bytes=10, context_length=100)
    two = make_budget(HYBRID, matrix_bytes=1001, vector_bytes=10, context_length=100, ranks=2)
    assert two.weights_bytes == 501 + 10
    assert two.kv_bytes * 2 == one.kv_bytes
    assert two.state_bytes * 2 == one.state_bytes
    tied = make_budget(HYBRID, matrix_bytes=1001, embedding_bytes=401, vector_bytes=10, context_length=100, ranks=2)
    assert tied.weights_bytes == 300 + 401 + 10
    # Two key-value heads for four ranks: each holds a whole one.
    four = make_budget(HYBRID, matrix_bytes=1001, vector_bytes=10, context_length=100, ranks=4)
    assert four.kv_bytes == two.kv_bytes


def test_the_largest_context_is_the_last_that_fits() -> None:
    empty = make_budget(HYBRID, matrix_bytes=1000, vector_bytes=0, context_length=0)
    room = empty.total_bytes + 7 * empty.kv_bytes_per_token + 1
    assert largest_context(msgspec.structs.replace(empty, free_bytes=room), 512) == 7
    assert largest_context(msgspec.structs.replace(empty, free_bytes=empty.total_bytes - 1), 512) == 0
    assert largest_context(msgspec.structs.replace(empty, free_bytes=1 << 40), 512) == 512
    assert largest_context(empty, 512) == 512


def test_a_report(tmp_path: Path) -> None:
    model = dense(tmp_path)
    report = preflight(model, free_bytes=1 << 30)
    assert (report.architecture, report.context_length, report.vocab_size) == ("llama", 512, 96)
    assert report.budget is not None
    size = model.weight_files[0].stat().st_size
    assert size - 8192 < report.budget.weights_bytes <= size
    assert report.files == ("model.safetensors",)
    assert report.stored_quant == "f32"
    assert preflight(model, max_context=100).context_length == 100
    assert preflight(model, max_context=10_000).context_length == 512
    decoded = msgspec.json.decode(msgspec.json.encode(report), type=PreflightReport)
    assert decoded == report


def test_in_situ_quantisation_counts(tmp_path: Path) -> None:
    model = dense(tmp_path)
    half = preflight(msgspec.structs.replace(model, quant="bf16")).budget
    exact = preflight(msgspec.structs.replace(model, quant="f32")).budget
    whole = preflight(model).budget
    assert whole is not None
    assert half is not None
    assert exact is not None
    vectors = 5 * 32 * 4
    assert (half.weights_bytes - vectors) * 2 == whole.weights_bytes - vectors
    # So small a model is float32 unless something else is asked for.
    assert exact == whole
    assert exact.kv_bytes == 2 * half.kv_bytes


def test_small_models_count_as_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dense(tmp_path)
    small = preflight(model).budget
    weights = parse_config(models.config_json(models.LLAMA)).matrix_weights
    monkeypatch.setattr(in_situ, "SMALL_WEIGHTS", weights)
    assert preflight(model).budget == small
    monkeypatch.setattr(in_situ, "SMALL_WEIGHTS", weights - 1)
    large = preflight(model).budget
    assert small is not None
    assert large is not None
    assert small.kv_bytes == 2 * large.kv_bytes


@pytest.mark.parametrize(("quant", "bits"), [("q8_0", 8.5), ("q4_0", 4.5), ("q4_k", 5.5), ("q6_k", 8.5)])
def test_in_situ_blocks_count(quant: str, bits: float, tmp_path: Path) -> None:
    """Rows of 32 and 64 get blocks of 32 where superblocks of 256 were asked for."""
    model = dense(tmp_path)
    whole, blocks = preflight(model).budget, preflight(msgspec.structs.replace(model, quant=quant)).budget
    assert whole is not None
    assert blocks is not None
    kept = 5 * 32 * 4 + 96 * 32 * 4
    assert (blocks.weights_bytes - kept) / (whole.weights_bytes - kept) == bits / 32


def test_a_context_that_nobody_asked_for_shrinks_to_what_fits(tmp_path: Path) -> None:
    model = dense(tmp_path)
    needed = preflight(model).budget
    assert needed is not None
    short = needed.total_bytes - 100 * needed.kv_bytes_per_token
    loader = Loader(Settings())
    plan = LoadPlan(ModelId("local", "org", "name"), LoadRequest(model_id="org/name"), None)
    assert loader._preflight(model, plan, short).context_length == 412
    asked = msgspec.structs.replace(plan, spec=LoadRequest(model_id="org/name", max_context=500))
    with pytest.raises(DoesNotFit):
        loader._preflight(model, asked, short)


def test_the_budget_counts_the_configured_chunk(tmp_path: Path) -> None:
    model = dense(tmp_path)
    plan = LoadPlan(ModelId("local", "org", "name"), LoadRequest(model_id="org/name"), None)
    small, large = (
        Loader(Settings(limits=LimitSettings(prefill_chunk_tokens=chunk)))._preflight(model, plan, None).budget
        for chunk in (512, 4096)
    )
    assert small is not None
    assert large is not None
    assert large.workspace_bytes > small.workspace_bytes


def test_what_does_not_fit(tmp_path: Path) -> None:
    model = dense(tmp_path)
    needed = preflight(model).budget
    assert needed is not None
    with pytest.raises(DoesNotFit) as caught:
        preflight(model, free_bytes=needed.weights_bytes)
    extra = caught.value.extra
    assert extra["free_bytes"] == needed.weights_bytes
    assert extra["largest_context"] == 0
    short = needed.total_bytes - 100 * needed.kv_bytes_per_token
    assert preflight(model, free_bytes=short).context_length == 412
    assert preflight(model, max_context=412, free_bytes=short).context_length == 412
    assert preflight(model, default_context=450, free_bytes=short).context_length == 412
    assert preflight(model, default_context=400, free_bytes=short).context_length == 400
    with pytest.raises(DoesNotFit) as caught:
        preflight(model, max_context=413, free_bytes=short)
    assert caught.value.extra["suggestion"] == "max_context: 412"
    assert "412" not in caught.value.message


@pytest.mark.parametrize(("ranks", "what", "nearest"), [(3, "query heads", 2), (8, "query heads", 4)])
def test_heads_that_do_not_divide(tmp_path: Path, ranks: int, what: str, nearest: int) -> None:
    with pytest.raises(IndivisibleHeads, match=what) as caught:
        preflight(dense(tmp_path), tensor_parallel=ranks)
    assert caught.value.extra["suggestion"] == f"tensor_parallel: {nearest}"


def test_fewer_key_value_heads_than_ranks_are_held_by_several(tmp_path: Path) -> None:
    assert preflight(dense(tmp_path), tensor_parallel=4).tensor_parallel == 4


def test_linear_heads_count_too(tmp_path: Path) -> None:
    config = models.HYBRID | {"linear_num_key_heads": 1, "linear_num_value_heads": 3}
    with pytest.raises(IndivisibleHeads, match="linear value heads"):
        preflight(dense(tmp_path, config), tensor_parallel=2)
    assert preflight(dense(tmp_path, models.HYBRID), tensor_parallel=2).tensor_parallel == 2


def test_gguf(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(models.gguf_file())
    model = artifact(tmp_path, Format.GGUF, path)
    report = preflight(model)
    assert (report.architecture, report.stored_quant) == ("llama", "F32")
    with pytest.raises(TpRequiresSafetensors):
        preflight(model, tensor_parallel=2)
    hybrid = tmp_path / "h.gguf"
    hybrid.write_bytes(models.gguf_file(models.GGUF_HYBRID, models.gguf_shapes(models.HYBRID)))
    state = preflight(artifact(tmp_path, Format.GGUF, hybrid)).budget
    assert state is not None
    assert state.state_bytes == HYBRID.state_bytes


def test_no_config(tmp_path: Path) -> None:
    model = dense(tmp_path)
    (tmp_path / "config.json").write_bytes(b"")
    with pytest.raises(InvalidConfig):
        preflight(model)


def test_fp8_is_counted_as_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = models.dense_arrays(models.LLAMA)
    dtypes = {}
    for name in [name for name, array in arrays.items() if ".mlp." in name]:
        arrays[name + "_scale_inv"] = np.ones((1, 1), dtype=np.float32)
        arrays[name] = np.zeros(arrays[name].shape, dtype=np.uint8)
        dtypes[name] = "F8_E4M3"
    monkeypatch.setattr(in_situ, "SMALL_WEIGHTS", 0)
    model = dense(tmp_path)
    plain = preflight(model).budget
    model.weight_files[0].write_bytes(from_arrays(arrays, dtypes))
    fp8 = preflight(model).budget
    assert plain is not None
    assert fp8 is not None
    assert plain.weights_bytes - fp8.weights_bytes == 2 * 3 * 32 * 64 * 2
