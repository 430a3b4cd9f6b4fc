"""Compiled functions over the rows of a matrix of any stored type: matrix-vector products and expansion.

Called by other compiled code. Pointers are integers; a kind is its GgmlType number.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

from typing import Any

from neuron.kernels.formats.ggml_types import GgmlType
from neuron.kernels.jit import compiled, inlined
from neuron.kernels.quant import rows, vector
from neuron.kernels.quant.activations import layout_of, quantise_row
from neuron.kernels.quant.memory import keep_apart, store_f32

_F32, _F16, _BF16 = int(GgmlType.F32), int(GgmlType.F16), int(GgmlType.BF16)
_Q4_0, _Q4_1, _Q5_0, _Q5_1 = int(GgmlType.Q4_0), int(GgmlType.Q4_1), int(GgmlType.Q5_0), int(GgmlType.Q5_1)
_Q8_0, _Q2_K, _Q3_K = int(GgmlType.Q8_0), int(GgmlType.Q2_K), int(GgmlType.Q3_K)
_Q4_K, _Q5_K, _Q6_K = int(GgmlType.Q4_K), int(GgmlType.Q5_K), int(GgmlType.Q6_K)


def _dot_rows(dot: Any) -> Any:
    """rows_of(weights, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step).

    Of the activations, x are float32, q and d the int16 groups and their scales in the layout of the row's kind.
    out[t, r] = dot(row r, activation t) for the rows first <= r < last (out is indexed from `first`) of n tokens;
    strides in bytes. The row is in the first-level cache from its second token on.
    """

    def blocks(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step):
        for r in range(first, last):
            for t in range(n):
                value = dot(w + r * row_bytes, q + t * q_step, d + t * d_step, cols)
                store_f32(out + t * out_step + (r - first) * 4, value)

    return inlined(blocks)


def _dot_rows_float(dot: Any) -> Any:
    def floats(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step):
        for r in range(first, last):
            for t in range(n):
                value = dot(w + r * row_bytes, x + t * x_step, 0, cols)
                store_f32(out + t * out_step + (r - first) * 4, value)

    return inlined(floats)


_f32, _f16, _bf16 = (_dot_rows_float(dot) for dot in (rows.dot_f32, rows.dot_f16, rows.dot_bf16))
_q4_0, _q4_1, _q5_0, _q5_1 = (_dot_rows(d) for d in (rows.dot_q4_0, rows.dot_q4_1, rows.dot_q5_0, rows.dot_q5_1))
_q8_0, _q2_k, _q3_k = (_dot_rows(dot) for dot in (rows.dot_q8_0, rows.dot_q2_k, rows.dot_q3_k))
_q4_k, _q5_k, _q6_k = (_dot_rows(dot) for dot in (rows.dot_q4_k, rows.dot_q5_k, rows.dot_q6_k))


@inlined
def multiply_rows(kind, w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step):
    """See _dot_rows; picks the row kernel of `kind`."""
    keep_apart()
    if kind == _Q4_1:
        _q4_1(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step)
    elif kind == _Q8_0:
        _q8_0(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step)
    elif kind == _Q4_K:
        _q4_k(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step)
    elif kind == _Q6_K:
        _q6_k(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step)
    elif kind == _Q5_K:
        _q5_k(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step)
    elif kind == _Q4_0:
        _q4_0(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step)
    elif kind == _BF16:
        _bf16(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step)
    elif kind == _F16:
        _f16(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step)
    elif kind == _F32:
        _f32(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step)
    elif kind == _Q5_0:
        _q5_0(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step)
    elif kind == _Q5_1:
        _q5_1(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step)
    elif kind == _Q2_K:
        _q2_k(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step)
    elif kind == _Q3_K:
        _q3_k(w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, out, out_step)


def _expander(to_bf16: bool) -> Any:
    kernels = [rows.EXPAND[kind, to_bf16] for kind in GgmlType]
    f32, f16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, bf16 = kernels

    def expand(kind, row, out, cols):
        keep_apart()
        if kind == _Q4_1:
            q4_1(row, out, cols)
        elif kind == _Q8_0:
            q8_0(row, out, cols)
        elif kind == _Q4_K:
            q4_k(row, out, cols)
        elif kind == _Q6_K:
            q6_k(row, out, cols)
        elif kind == _Q5_K:
            q5_k(row, out, cols)
        elif kind == _Q4_0:
            q4_0(row, out, cols)
        elif kind == _BF16:
            bf16(row, out, cols)
        elif kind == _F16:
            f16(row, out, cols)
        elif kind == _F32:
            f32(row, out, cols)
        elif kind == _Q5_0:
            q5_0(row, out, cols)
        elif kind == _Q5_1:
            q5_1(row, out, cols)
        elif kind == _Q2_K:
            q2_k(row, out, cols)
        elif kind == _Q3_K:
            q3_k(row, out, cols)

    return inlined(expand)


#: expand_row_*(kind, row, out, cols): one row as float32 or bfloat16.
expand_row_f32 = _expander(False)
expand_row_bf16 = _expander(True)


@inlined
def narrow_row(kind, x, out, cols):
    """`cols` float32 at `x` written as the float `kind`."""
    if kind == _F16:
        vector.narrow_f16(x, out, cols)
    elif kind == _BF16:
        vector.narrow_bf16(x, out, cols)
    else:
        vector.narrow_f32(x, out, cols)


@inlined
def dot_row(kind, row, x, cols):
    """Dot product of `cols` numbers of the float `kind` with float32 at `x`."""
    if kind == _F16:
        return rows.dot_f16(row, x, 0, cols)
    if kind == _BF16:
        return rows.dot_bf16(row, x, 0, cols)
    return rows.dot_f32(row, x, 0, cols)


@inlined
def add_scaled_row(kind, row, factor, out, cols):
    """float32 at `out` += factor * `cols` numbers of the float `kind`."""
    if kind == _F16:
        vector.add_scaled_f16(row, factor, out, cols)
    elif kind == _BF16:
        vector.add_scaled_bf16(row, factor, out, cols)
    else:
        vector.add_scaled_f32(row, factor, out, cols)


@compiled
def expand_matrix(thread, threads, kind, w, row_bytes, rows_, cols, out, out_row_bytes, to_bf16):
    """One thread's share of `rows_` rows as bfloat16 (to_bf16 = 1) or float32."""
    first, last = rows_ * thread // threads, rows_ * (thread + 1) // threads
    for r in range(first, last):
        if to_bf16 == 1:
            expand_row_bf16(kind, w + r * row_bytes, out + r * out_row_bytes, cols)
        else:
            expand_row_f32(kind, w + r * row_bytes, out + r * out_row_bytes, cols)


@compiled
def quantise_rows(kind, n, cols, x, x_step, q, q_step, d, d_step):
    """Activations of n tokens as rows of `kind` are multiplied with."""
    layout = layout_of(kind)
    for t in range(n):
        quantise_row(layout, x + t * x_step, q + t * q_step, d + t * d_step, cols)


@compiled
def multiply(thread, threads, kind, w, row_bytes, rows_, cols, n, x, q, d, x_step, q_step, d_step, out, out_step):
    """One thread's share of out[n, rows_] = x[n, cols] . w[rows_, cols]^T."""
    first, last = rows_ * thread // threads, rows_ * (thread + 1) // threads
    here = out + first * 4
    multiply_rows(kind, w, row_bytes, first, last, cols, n, x, q, d, x_step, q_step, d_step, here, out_step)


@compiled
def narrow_matrix(thread, threads, kind, x, rows_, cols, out, out_row_bytes):
    """One thread's share of float32 [rows_, cols] as rows of the float `kind`."""
    for r in range(rows_ * thread // threads, rows_ * (thread + 1) // threads):
        narrow_row(kind, x + r * cols * 4, out + r * out_row_bytes, cols)
