"""Loading holds one copy of the weights: mapped pages go once they are copied."""

import mmap
from pathlib import Path

import numpy as np

from neuron.kernels.formats.safetensors import SafetensorsSet
from tests.kernels.formats.safetensors_files import from_arrays

_FIELD = "Rss:"


def _resident(path: Path) -> int:
    """Bytes of mappings of `path` that are in this process's memory."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith(_FIELD):
            total += int(line.split()[1]) * 1024
    return total


def test_a_released_tensor_leaves_memory_and_can_be_read_again(tmp_path: Path) -> None:
    values = np.arange(1 << 20, dtype=np.float32)
    path = tmp_path / "model.safetensors"
    path.write_bytes(from_arrays({"a": values, "b": values[:4]}))
    opened = SafetensorsSet.open((path,))
    first = opened.data("a").copy()
    assert _resident(path) >= values.nbytes // 2
    opened.release("a")
    assert _resident(path) <= 2 * 16 * mmap.PAGESIZE + values.nbytes // 16
    np.testing.assert_array_equal(opened.data("a"), first)
    opened.release("b")
    np.testing.assert_array_equal(opened.data("b").view(np.float32), values[:4])
