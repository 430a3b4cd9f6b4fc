"""`python -m ops.bench.products`: matrix-vector products of every stored type at real shapes: GB/s of weights, and the
fraction of what the machine reads."""

import time
from collections.abc import Sequence

import click
import numpy as np

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.jit import compiled
from neuron.kernels.quant.activations import quants_bytes, scales_bytes
from neuron.kernels.quant.products import multiply_rows, quantise_rows
from neuron.kernels.threads import Team, default_threads
from neuron.kernels.weights.matrix import Matrix, aligned_bytes, empty_matrix
from ops.bench.machine import measure, median

#: Bytes of the matrices of one shape together: more than any cache holds.
_BYTES = 256 << 20
#: (rows, cols): head, qkv, gate and down of the 0.8B hybrid; gate and down of SmolLM2.
SHAPES = ((248_320, 1024), (6144, 1024), (3584, 1024), (1024, 3584), (1536, 576), (576, 1536))
SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}


@compiled
def multiply_all(thread, threads, kind, w, row_bytes, rows, cols, copies, n, x, q, d, steps, out):  # type: ignore[no-untyped-def]
    """One thread's rows of `copies` matrices that lie one behind the other, one matrix after the other."""
    first, last = rows * thread // threads, rows * (thread + 1) // threads
    for copy in range(copies):
        here = w + (copy * rows + first) * row_bytes
        multiply_rows(kind, here, row_bytes, 0, last - first, cols, n, x, q, d, *steps, out + first * 4, rows * 4)


def matrices(kind: GgmlType, rows: int, cols: int, copies: int) -> Matrix:
    """Random blocks with scales near one, `copies` matrices as one."""
    some = np.random.default_rng(0).integers(0, 256, (64, kind.nbytes(cols)), dtype=np.uint8)
    if kind.block_size > 1:
        blocks = some.reshape(64, -1, kind.type_size)
        offsets = SCALES.get(kind.name, (0, 2) if kind.name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else (0,))
        for offset in offsets:
            blocks[:, :, offset : offset + 2] = np.frombuffer(np.float16(1.0).tobytes(), dtype=np.uint8)
    else:
        some = np.ones((64, cols), dtype={4: np.float32, 2: np.float16}[kind.type_size]).view(np.uint8)
    matrix = empty_matrix(kind, rows * copies, cols)
    for start in range(0, matrix.rows, 64):
        part = matrix.data[start : start + 64]
        part[:] = some[: len(part)]
    return matrix


def rate(team: Team, kind: GgmlType, rows: int, cols: int, n: int, rounds: int) -> float:
    """Bytes of weights a second, the median of `rounds`."""
    copies = max(1, _BYTES // (rows * kind.nbytes(cols)))
    matrix = matrices(kind, rows, cols, copies)
    x = np.random.default_rng(1).standard_normal((n, cols)).astype(np.float32)
    q, d = (aligned_bytes(n * size(cols)).reshape(n, size(cols)) for size in (quants_bytes, scales_bytes))
    out = np.zeros((n, rows), dtype=np.float32)
    addresses, steps = (x.ctypes.data, q.ctypes.data, d.ctypes.data), (cols * 4, q.shape[1], d.shape[1])
    quantise_rows(int(kind), n, cols, *(number for pair in zip(addresses, steps, strict=True) for number in pair))
    taken = []
    weights = (int(kind), matrix.address, matrix.row_bytes, rows, cols, copies)
    for _ in range(rounds + 1):
        start = time.perf_counter()
        team.run(multiply_all, *weights, n, *addresses, steps, out.ctypes.data)
        taken.append(time.perf_counter() - start)
    return matrix.nbytes / median(taken[1:])


@click.command()
@click.option("--types", default="", help="Names, separated by commas; all by default.")
@click.option("--tokens", default=1, show_default=True, help="Activations at once.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--threads", default=0, help="All cores by default.")
@click.option("--shapes", default=len(SHAPES), show_default=True, help="Only the first ones.")
def main(types: str, tokens: int, rounds: int, threads: int, shapes: int) -> None:
    kinds = [GgmlType[name.upper()] for name in types.split(",") if name] or list(GgmlType)
    team = Team(threads or default_threads())
    machine = measure(team)
    click.echo(f"machine: {team.threads} threads, reads {machine.bandwidth / 1e9:.1f} GB/s")
    click.echo("type   " + "".join(f"{f'{rows}x{cols}':>20s}" for rows, cols in SHAPES[:shapes]))
    for kind in kinds:
        cells = [_cell(team, kind, shape, tokens, rounds, machine.bandwidth) for shape in SHAPES[:shapes]]
        click.echo(f"{kind.name:6s} " + "".join(cells))
    team.close()


def _cell(team: Team, kind: GgmlType, shape: Sequence[int], tokens: int, rounds: int, bandwidth: float) -> str:
    rows, cols = shape
    if cols % kind.block_size:
        return f"{'-':>20s}"
    found = rate(team, kind, rows, cols, tokens, rounds)
    return f"{found / 1e9:10.1f} GB/s {found / bandwidth:4.0%}"


if __name__ == "__main__":
    main()
