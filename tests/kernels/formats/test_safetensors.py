"""The safetensors reader, the shard index and the FP8 pairing: strict, and typed whatever comes."""

import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from neuron.kernels.formats.errors import FormatError
from neuron.kernels.formats.safetensors import SafetensorsSet
from neuron.kernels.formats.safetensors_header import parse_safetensors_header
from neuron.kernels.formats.shard_index import check_index, missing_shards, parse_index
from tests.kernels.formats import safetensors_files
from tests.kernels.formats.safetensors_files import build, entry, from_arrays


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {
        "m": np.arange(12, dtype=np.float32).reshape(3, 4),
        "h": np.arange(4, dtype=np.float16),
        "scalar": np.array(3.0, dtype=np.float32),
        "none": np.empty((0, 4), dtype=np.float32),
    }
    save_file(arrays, tmp_path / "model.safetensors")
    opened = SafetensorsSet.open([tmp_path / "model.safetensors"])
    for name, array in arrays.items():
        assert opened.tensors[name].shape == array.shape
        np.testing.assert_array_equal(opened.data(name).view(array.dtype).reshape(array.shape), array)
    assert opened.nbytes == sum(array.nbytes for array in arrays.values())


@pytest.mark.parametrize("case", safetensors_files.HOSTILE)
def test_hostile_files_are_refused_by_name(tmp_path: Path, case: str) -> None:
    path = write(tmp_path / "evil.safetensors", safetensors_files.HOSTILE[case]())
    size = path.stat().st_size
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            SafetensorsSet.open([path])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.kind == "corrupt_weights"
    assert "evil.safetensors" in caught.value.message or case == "no tensor"
    assert str(tmp_path) not in caught.value.message
    # A megabyte beside what a JSON text of this size becomes as objects.
    assert peak < (1 << 20) + 60 * size


def test_zero_bytes_and_pickles(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="empty") as caught:
        SafetensorsSet.open([write(tmp_path / "m.safetensors", b"")])
    assert caught.value.kind == "corrupt_weights"
    for name in ("pytorch_model.bin", "model.pt", "model.ckpt", "model.pth"):
        with pytest.raises(FormatError) as caught:
            SafetensorsSet.open([write(tmp_path / name, b"PK\x03\x04")])
        assert caught.value.kind == "unsupported_model"
    with pytest.raises(FormatError) as caught:
        SafetensorsSet.open([write(tmp_path / "renamed.safetensors", b"PK\x03\x04" + b"\0" * 100)])
    assert caught.value.kind == "unsupported_model"


def test_a_header_whose_length_looks_like_a_pickle(tmp_path: Path) -> None:
    # 0x280 = 640: the file begins with the bytes 80 02, as a pickle of protocol 2 does.
    header = json.dumps({"a": entry(0, 16)}).encode().ljust(0x280)
    path = write(tmp_path / "m.safetensors", safetensors_files.raw_file(header, b"\0" * 16))
    assert list(SafetensorsSet.open([path]).tensors) == ["a"]


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    one = write(tmp_path / "one.safetensors", safetensors_files.sound())
    two = write(tmp_path / "two.safetensors", safetensors_files.sound())
    with pytest.raises(FormatError, match=r"two\.safetensors.*one\.safetensors") as caught:
        SafetensorsSet.open([one, two])
    assert caught.value.kind == "corrupt_weights"


_SEED = safetensors_files.sound()


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    changes=st.lists(st.tuples(st.integers(0, len(_SEED) - 1), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, len(_SEED)),
    insert=st.tuples(st.integers(0, len(_SEED)), st.binary(max_size=8)),
)
def test_any_damage_ends_typed(changes: list[tuple[int, int]], cut: int, insert: tuple[int, bytes]) -> None:
    data = bytearray(_SEED)
    for place, value in changes:
        data[place] = value
    data[insert[0] : insert[0]] = insert[1]
    mutated = bytes(data[: cut or None])
    try:
        tensors = parse_safetensors_header(memoryview(mutated), len(mutated), "fuzz")
    except FormatError:
        return
    for tensor in tensors.values():
        assert tensor.offset + tensor.nbytes <= len(mutated)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(shape=json_values, offsets=json_values, dtype=json_values, extra=json_values)
def test_any_json_in_any_field_ends_typed(shape: object, offsets: object, dtype: object, extra: object) -> None:
    header = {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}, "b": extra}
    data = build(header, b"\0" * 16)
    try:
        parse_safetensors_header(memoryview(data), len(data), "fuzz")
    except FormatError:
        return


# -- FP8 ---------------------------------------------------------------------------------------


def fp8_file(scale_shape: tuple[int, ...] | None, dtype: str = "F8_E4M3", shape: tuple[int, ...] = (130, 256)) -> bytes:
    arrays = {"w.weight": np.zeros(shape, dtype=np.uint8)}
    if scale_shape is not None:
        arrays["w.weight_scale_inv"] = np.ones(scale_shape, dtype=np.float32)
    return from_arrays(arrays, {"w.weight": dtype})


def test_fp8_with_its_scale(tmp_path: Path) -> None:
    opened = SafetensorsSet.open([write(tmp_path / "m.safetensors", fp8_file((2, 2)))])
    assert opened.tensors["w.weight"].dtype == "F8_E4M3"


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (fp8_file(None), "corrupt_weights", "weight_scale_inv"),
        (fp8_file((1, 2)), "corrupt_weights", "scale"),
        (fp8_file((2, 2), "F8_E5M2"), "unsupported_model", "F8_E5M2"),
        (fp8_file((1,), shape=(128,)), "unsupported_model", "FP8"),
    ],
)
def test_fp8_without_a_fitting_scale(tmp_path: Path, data: bytes, kind: str, words: str) -> None:
    with pytest.raises(FormatError, match=words) as caught:
        SafetensorsSet.open([write(tmp_path / "m.safetensors", data)])
    assert caught.value.kind == kind


def test_a_scale_in_another_shard_counts(tmp_path: Path) -> None:
    weight = write(tmp_path / "1.safetensors", fp8_file(None))
    scale = write(tmp_path / "2.safetensors", from_arrays({"w.weight_scale_inv": np.ones((2, 2))}))
    assert len(SafetensorsSet.open([weight, scale]).tensors) == 2


# -- the index ---------------------------------------------------------------------------------


def index(weight_map: object, **metadata: object) -> bytes:
    return json.dumps({"metadata": metadata, "weight_map": weight_map}).encode()


def shards(tmp_path: Path, held: dict[str, list[str]]) -> SafetensorsSet:
    zeros = np.zeros((2, 2), dtype=np.float32)
    return SafetensorsSet.open(
        [write(tmp_path / name, from_arrays(dict.fromkeys(names, zeros))) for name, names in held.items()]
    )


def test_an_index_that_agrees(tmp_path: Path) -> None:
    parsed = parse_index(index({"a": "1.safetensors", "b": "2.safetensors"}, total_size=32))
    assert parsed.shards == ("1.safetensors", "2.safetensors")
    missing_shards(parsed, {"1.safetensors", "2.safetensors", "extra.safetensors"})
    opened = shards(tmp_path, {"1.safetensors": ["a"], "2.safetensors": ["b"]})
    assert check_index(parsed, opened.tensors) == ()
    wrong = parse_index(index({"a": "1.safetensors", "b": "2.safetensors"}, total_size=31))
    assert "32" in check_index(wrong, opened.tensors)[0]


def test_a_shard_that_is_not_there() -> None:
    parsed = parse_index(index({"a": "1.safetensors", "b": "2.safetensors"}))
    with pytest.raises(FormatError, match=r"2\.safetensors is missing.*incomplete") as caught:
        missing_shards(parsed, {"1.safetensors"})
    assert caught.value.kind == "missing_shard"


@pytest.mark.parametrize(
    "held",
    [
        {"1.safetensors": ["a"], "2.safetensors": ["c"]},
        {"1.safetensors": ["b"], "2.safetensors": ["a"]},
        {"1.safetensors": ["a"], "2.safetensors": ["b", "c"]},
        {"1.safetensors": ["a"]},
    ],
)
def test_shards_that_disagree_with_the_index(tmp_path: Path, held: dict[str, list[str]]) -> None:
    parsed = parse_index(index({"a": "1.safetensors", "b": "2.safetensors"}))
    with pytest.raises(FormatError, match="tensor") as caught:
        check_index(parsed, shards(tmp_path, held).tensors)
    assert caught.value.kind == "corrupt_weights"


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "a\\b.safetensors", "a\0.safetensors", "", "..",
     "a\n.safetensors", "x.bin", "x" * 300 + ".safetensors", 7, None, ["x.safetensors"]],
)  # fmt: skip
def test_shard_names_stay_in_their_folder(name: object) -> None:
    with pytest.raises(FormatError, match=r"model\.safetensors\.index\.json") as caught:
        parse_index(index({"a": name}))
    assert caught.value.kind == "corrupt_weights"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"nonsense",
        b'{"weight_map": {}}',
        b'{"weight_map": []}',
        index({"a": "x.safetensors"}, total_size=-1),
        index({"a": "x.safetensors"}, total_size="9"),
        b'{"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}}',
    ],
)
def test_what_is_no_index(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        parse_index(data)
    assert caught.value.kind == "corrupt_weights"


def test_length_field_is_little_endian() -> None:
    data = safetensors_files.sound()
    swapped = struct.pack(">Q", struct.unpack("<Q", data[:8])[0]) + data[8:]
    with pytest.raises(FormatError):
        parse_safetensors_header(memoryview(swapped), len(swapped), "m")
