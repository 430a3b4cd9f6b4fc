"""Matrix products of prefill for CPUs with wide vectors: weights are unpacked panel by panel as they are used.

A panel is 64 rows of a stored matrix, transposed: bfloat16 pairs of neighbouring columns, or float32. Sums are float32.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant.emit import host_features
from neuron.kernels.quant.products import expand_row_bf16, expand_row_f32
from neuron.kernels.quant.vector import add_to, narrow_bf16, narrow_f32, silu_product
from neuron.kernels.tiles import fetch, product_f32, product_pairs, transpose_words

#: Rows of a matrix in a panel; most columns that are unpacked at once (a multiple of every block size).
PANEL = 64
DEPTH = 512
#: Rows of activations between two looks ahead into the weights.
_STRIDE = 48
_BF16 = int(GgmlType.BF16)
_UNPACKED = 2 * PANEL * DEPTH * 4
#: What becomes of a product: written as float32, or added to float32.
STORE, ADD = 0, 1


def multiplies_here(*, exact: bool) -> bool:
    """Whether products written here beat the library's: wide vectors (and bfloat16 pairs), but no matrix tiles."""
    features = host_features()
    return "avx512f" in features and (exact or ("avx512bf16" in features and "amx-bf16" not in features))


def scratch_bytes(rows: int) -> int:
    """Of one thread, for products of `rows` activations: two sums, a panel, its rows before they are transposed."""
    return 2 * rows * PANEL * 4 + _UNPACKED


@inlined
def unpack_panel(exact, w, first, rows, start, count, unpacked, panel):
    """Columns start.. of `rows` <= PANEL matrix rows from `first` on, as pairs [count / 2][PANEL] at `panel`.

    With `exact` = 1 as float32 [count][PANEL]. `w`: kind, address, row bytes, block size, block bytes. Rows that are
    not there become garbage columns.
    """
    kind, address, row_bytes, block, block_bytes = w
    source = address + first * row_bytes + start // block * block_bytes
    step, words = row_bytes, count // 2
    if exact == 1:
        step, words = 4 * DEPTH, count
        for r in range(rows):
            expand_row_f32(kind, source + r * row_bytes, unpacked + r * step, count)
        source = unpacked
    elif kind != _BF16 or rows < PANEL or count % 32 != 0:
        step = 2 * DEPTH
        for r in range(rows):
            expand_row_bf16(kind, source + r * row_bytes, unpacked + r * step, count)
        source = unpacked
    for k in range(0, words, 16):
        for r in range(0, rows, 16):
            transpose_words(source + r * step + 4 * k, step, panel + (k * PANEL + r) * 4, PANEL * 4)


@inlined
def piece_of(cols, block):
    """Columns that are unpacked at once, so that no short piece is left over."""
    pieces, unit = (cols + DEPTH - 1) // DEPTH, max(block, 32)
    return ((cols + pieces - 1) // pieces + unit - 1) // unit * unit


@inlined
def multiply_panel(exact, n, x, x_row, w, first, rows, cols, scratch, sums):
    """sums float32 [n, PANEL] = x [n, cols] . matrix rows first..first + rows - 1; x bfloat16, float32 if `exact`."""
    panel = scratch + PANEL * DEPTH * 4
    wide = (rows + 15) // 16 * 16
    _, address, row_bytes, block, block_bytes = w
    depth = piece_of(cols, block)
    ahead, piece = address + first * row_bytes, depth // block * block_bytes
    for start in range(0, cols, depth):
        count = min(depth, cols - start)
        unpack_panel(exact, w, first, rows, start, count, scratch, panel)
        kept = 0.0 if start == 0 else 1.0
        # Meanwhile the rows of the next piece are asked for, a few at a time.
        following = ahead + start // block * block_bytes + piece
        if start + depth >= cols:
            following = ahead + PANEL * row_bytes
        asked = 0
        for t in range(0, n, _STRIDE):
            taken = min(_STRIDE, n - t)
            here, target = x + t * x_row, sums + t * PANEL * 4
            if exact == 1:
                product_f32(
                    taken, wide, count, here + 4 * start, x_row, 4, panel, PANEL * 4, target, PANEL * 4, 1.0, kept
                )
            else:
                product_pairs(
                    taken, wide, count // 2, here + 2 * start, x_row, 4, panel, PANEL * 4, target, PANEL * 4, 1.0, kept
                )
            wanted = min(PANEL, asked + 7)
            for r in range(asked, wanted):
                fetch(following + r * row_bytes, piece)
            asked = wanted


@inlined
def share_panels(thread, threads, panels, n, unit):
    """Panel and rows of x of this thread's work item `unit`: whole panels, then equal parts of the panels left over.

    Panel -1: there is no such item.
    """
    whole = panels // threads
    if unit < whole:
        return thread * whole + unit, 0, n
    panel = whole * threads + unit - whole
    return (panel if panel < panels else -1), n * thread // threads, n * (thread + 1) // threads


@compiled
def project(thread, threads, exact, n, x, x_row, w, rows, cols, bias, scratch, private, mode, out, out_row):
    """x [n, cols] . matrix^T (+ bias) to float32 `out` [n, rows]; x bfloat16, float32 with `exact` = 1.

    `w` as in unpack_panel; `scratch`: `private` >= scratch_bytes(n) for each thread.
    """
    panels = (rows + PANEL - 1) // PANEL
    sums = scratch + thread * private
    space = sums + 2 * n * PANEL * 4
    for unit in range(panels // threads + panels % threads):
        panel, begin, end = share_panels(thread, threads, panels, n, unit)
        if panel < 0 or begin == end:
            continue
        first = panel * PANEL
        width = min(PANEL, rows - first)
        multiply_panel(exact, end - begin, x + begin * x_row, x_row, w, first, width, cols, space, sums)
        for t in range(begin, end):
            found, target = sums + (t - begin) * PANEL * 4, out + t * out_row + first * 4
            if bias != 0:
                add_to(bias + first * 4, found, width)
            if mode == ADD:
                add_to(found, target, width)
            else:
                narrow_f32(found, target, width)


@compiled
def project_gated(thread, threads, exact, n, x, x_row, gate, up, rows, cols, biases, scratch, private, out, out_row):
    """silu(x . gate^T + bias) * (x . up^T + bias) to `out` [n, rows] in the type of x; otherwise as `project`."""
    panels = (rows + PANEL - 1) // PANEL
    gates = scratch + thread * private
    ups = gates + n * PANEL * 4
    space = ups + n * PANEL * 4
    for unit in range(panels // threads + panels % threads):
        panel, begin, end = share_panels(thread, threads, panels, n, unit)
        if panel < 0 or begin == end:
            continue
        first = panel * PANEL
        width = min(PANEL, rows - first)
        multiply_panel(exact, end - begin, x + begin * x_row, x_row, gate, first, width, cols, space, gates)
        multiply_panel(exact, end - begin, x + begin * x_row, x_row, up, first, width, cols, space, ups)
        for t in range(begin, end):
            a, b = gates + (t - begin) * PANEL * 4, ups + (t - begin) * PANEL * 4
            if biases[0] != 0:
                add_to(biases[0] + first * 4, a, width)
            if biases[1] != 0:
                add_to(biases[1] + first * 4, b, width)
            silu_product(a, b, a, width)
            if exact == 1:
                narrow_f32(a, out + t * out_row + first * 4, width)
            else:
                narrow_bf16(a, out + t * out_row + first * 2, width)
