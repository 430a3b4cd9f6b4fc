"""The GGUF reader: what it reads, what it refuses, and that nothing but its own error leaves."""

import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron.kernels.formats.errors import FormatError, HeaderIncomplete
from neuron.kernels.formats.gguf import GgufFile, open_gguf
from neuron.kernels.formats.gguf_header import parse_gguf_header
from tests.kernels.formats import gguf_files
from tests.kernels.formats.gguf_files import GgufBuilder, Tensor, tensor, text

KINDS = {"invalid_gguf"}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_reads_metadata_and_tensors(tmp_path: Path) -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    vector = np.arange(5, dtype=np.float32)
    values = {"u": 7, "f": 0.5, "s": "é", "b": True, "words": ["a", ""], "ints": [1, 2], "flags": [True, False]}
    path = write(tmp_path / "m.gguf", GgufBuilder(values, [tensor("m", matrix), tensor("v", vector)]).build())
    opened = GgufFile.open(path)
    assert dict(opened.metadata) == values
    assert list(opened.tensors) == ["m", "v"]
    assert opened.tensors["m"].shape == (3, 4)
    np.testing.assert_array_equal(opened.dequantised("m"), matrix)
    np.testing.assert_array_equal(opened.dequantised("v"), vector)
    assert not opened.data("m").flags.writeable
    assert opened.nbytes == 48 + 20


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [1, 8, 64])
def test_versions_and_alignments(tmp_path: Path, version: int, alignment: int) -> None:
    values = np.arange(3, dtype=np.float32)
    builder = GgufBuilder(
        {"general.alignment": alignment},
        [tensor("a", values), tensor("b", values)],
        version=struct.pack("<I", version),
        alignment=alignment,
    )
    opened = GgufFile.open(write(tmp_path / "m.gguf", builder.build()))
    np.testing.assert_array_equal(opened.dequantised("b"), values)


def test_trailing_bytes_are_no_fault(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", gguf_files.sound() + b"\0" * 100)
    assert list(GgufFile.open(path).tensors) == ["a.weight"]


@pytest.mark.parametrize("case", gguf_files.HOSTILE)
def test_hostile_files_are_refused_by_name(tmp_path: Path, case: str) -> None:
    path = write(tmp_path / "evil.gguf", gguf_files.HOSTILE[case]())
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            GgufFile.open(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.kind in KINDS
    assert "evil.gguf" in caught.value.message or "Tensor" in caught.value.message
    assert str(tmp_path) not in caught.value.message
    assert peak < 16 << 20


def test_big_endian_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", gguf_files.HOSTILE["big-endian"]())
    with pytest.raises(FormatError, match="big-endian"):
        GgufFile.open(path)


@pytest.mark.parametrize("case", gguf_files.UNSUPPORTED)
def test_known_types_that_are_not_read(tmp_path: Path, case: str) -> None:
    path = write(tmp_path / "m.gguf", gguf_files.UNSUPPORTED[case]())
    with pytest.raises(FormatError, match=case) as caught:
        GgufFile.open(path)
    assert caught.value.kind == "unsupported_model"


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.gguf"
    os.mkfifo(fifo)
    empty = write(tmp_path / "empty.gguf", b"")
    folder = tmp_path / "folder.gguf"
    folder.mkdir()
    for path in (fifo, empty, folder):
        with pytest.raises(FormatError) as caught:
            GgufFile.open(path)
        assert caught.value.kind == "invalid_gguf"
    with pytest.raises(FormatError) as caught:
        GgufFile.open(tmp_path / "absent.gguf")
    assert caught.value.kind == "missing_shard"
    link = tmp_path / "link.gguf"
    link.symlink_to(write(tmp_path / "real.gguf", gguf_files.sound()))
    assert GgufFile.open(link).tensors


def test_pickles_are_refused_by_name_and_by_magic(tmp_path: Path) -> None:
    for name, data in (
        ("w.bin", gguf_files.sound()),
        ("w.gguf", b"PK\x03\x04" + b"\0" * 50),
        ("x.gguf", b"\x80\x04K."),
    ):
        with pytest.raises(FormatError, match="pickle") as caught:
            GgufFile.open(write(tmp_path / name, data))
        assert caught.value.kind == "unsupported_model"


def test_header_from_its_first_bytes() -> None:
    data = gguf_files.sound()
    whole = parse_gguf_header(memoryview(data), len(data), "m")
    wanted = 1
    while True:
        try:
            header = parse_gguf_header(memoryview(data)[:wanted], len(data), "m")
            break
        except HeaderIncomplete as incomplete:
            needed = incomplete.needed
        assert wanted < needed <= whole.data_offset
        wanted = needed
    assert header == whole
    assert wanted <= whole.data_offset < len(data)


def test_a_file_cut_short_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Read, not mapped: a mapping would end the process here.
    words = GgufBuilder({"words": ["word"] * 200_000}).build()
    path = write(tmp_path / "m.gguf", words)

    def parse(head: memoryview, size: int, name: str) -> object:
        os.truncate(path, 100)
        return parse_gguf_header(head, size, name)

    monkeypatch.setattr("neuron.kernels.formats.gguf.parse_gguf_header", parse)
    with pytest.raises(FormatError, match="cut short") as caught:
        GgufFile.open(path)
    assert caught.value.kind == "invalid_gguf"


# -- split files -------------------------------------------------------------------------------


def part(number: int, count: int, total: int, name: str, **extra: object) -> bytes:
    keys = {"general.architecture": "llama", "split.no": number, "split.count": count, "split.tensors.count": total}
    return GgufBuilder(keys | extra, [Tensor(name, (8,), struct.pack("<8f", *[number] * 8))]).build()


def test_parts_are_one_model(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"m-{i}.gguf", part(i, 3, 3, f"t{i}")) for i in range(3)]
    opened = open_gguf(paths)
    assert [opened.dequantised(f"t{i}")[0] for i in range(3)] == [0.0, 1.0, 2.0]
    assert opened.tensors["t2"].part == 2


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (lambda: [part(0, 3, 3, "a"), part(1, 3, 3, "b")], "missing_shard"),
        (lambda: [part(0, 2, 2, "a")], "missing_shard"),
        (lambda: [part(1, 2, 2, "b"), part(0, 2, 2, "a")], "invalid_gguf"),
        (lambda: [part(0, 2, 2, "a"), part(0, 2, 2, "b")], "invalid_gguf"),
        (lambda: [part(0, 2, 2, "a"), part(1, 2, 2, "a")], "invalid_gguf"),
        (lambda: [part(0, 2, 2, "a"), part(1, 3, 2, "b")], "invalid_gguf"),
        (lambda: [part(0, 2, 5, "a"), part(1, 2, 5, "b")], "invalid_gguf"),
        (lambda: [part(0, 2, 2, "a"), part(1, 2, 2, "b", **{"general.architecture": "qwen3"})], "invalid_gguf"),
        (lambda: [part(0, 2, 2, "a"), gguf_files.sound()], "invalid_gguf"),
        (lambda: [gguf_files.sound(), gguf_files.sound()], "missing_shard"),
        (lambda: [], "invalid_gguf"),
    ],
)
def test_parts_that_do_not_belong_together(tmp_path: Path, build: object, kind: str) -> None:
    parts = build()  # type: ignore[operator]
    paths = [write(tmp_path / f"m-{i}.gguf", data) for i, data in enumerate(parts)]
    with pytest.raises(FormatError) as caught:
        open_gguf(paths)
    assert caught.value.kind == kind


# -- mutations ---------------------------------------------------------------------------------

_SEED = GgufBuilder(
    {"general.architecture": "llama", "x": [1, 2, 3], "words": ["one", "two"], "f": 1.5},
    [Tensor("a.weight", (32, 2), b"\1" * 36, kind=2), Tensor("b", (8,), b"\2" * 32)],
).build()


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    changes=st.lists(st.tuples(st.integers(0, len(_SEED) - 1), st.integers(0, 255)), max_size=8),
    cut=st.integers(0, len(_SEED)),
    insert=st.tuples(st.integers(0, len(_SEED)), st.binary(max_size=16)),
)
def test_any_damage_ends_typed(changes: list[tuple[int, int]], cut: int, insert: tuple[int, bytes]) -> None:
    data = bytearray(_SEED)
    for place, value in changes:
        data[place] = value
    data[insert[0] : insert[0]] = insert[1]
    mutated = bytes(data[: cut or None])
    try:
        header = parse_gguf_header(memoryview(mutated), len(mutated), "fuzz.gguf")
    except FormatError:
        return
    for entry in header.tensors.values():
        assert entry.offset + entry.nbytes <= len(mutated)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(value=st.integers(0, (1 << 64) - 1), place=st.integers(0, len(_SEED) - 8))
def test_any_64_bit_number_anywhere_ends_typed(value: int, place: int) -> None:
    mutated = _SEED[:place] + struct.pack("<Q", value) + _SEED[place + 8 :]
    try:
        parse_gguf_header(memoryview(mutated), len(mutated), "fuzz.gguf")
    except FormatError:
        return


def test_caps_hold_at_the_limit_and_break_one_beyond(tmp_path: Path) -> None:
    keys = b"".join(text(f"k{i}") + gguf_files.typed(1) for i in range(64 * 1024))
    full = GgufBuilder(raw_kv=keys, raw_kv_count=64 * 1024).build()
    assert len(parse_gguf_header(memoryview(full), len(full), "m").metadata) == 64 * 1024
    names = [Tensor(f"t{i}", (8,), b"", offset=32 * i) for i in range(1000)]
    many = GgufBuilder(tensors=names, trailing=b"\0" * 32_000).build()
    assert len(parse_gguf_header(memoryview(many), len(many), "m").tensors) == 1000
