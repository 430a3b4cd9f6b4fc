"""The compiled step: a few tokens through the whole model in one call per thread, threads meeting at barriers.

Rows may belong to different sequences: each has a position and a cache of its own. Rows of one sequence must be
consecutive positions in order. float32 throughout, except what weights and cache store.
"""
# mypy: allow-untyped-defs, allow-untyped-decorators

from neuron.kernels.attention.step import (
    attend,
    combine,
    prepare_head,
    root_mean_square,
    write_row,
)
from neuron.kernels.decoder import plan
from neuron.kernels.gdn.decode.cpu import mix_rows
from neuron.kernels.gdn.vector import sigmoid_product
from neuron.kernels.jit import compiled, spliced
from neuron.kernels.quant.activations import FLOAT, NONE, layout_of, quantise_row
from neuron.kernels.quant.memory import load_i64
from neuron.kernels.quant.products import expand_row_f32, multiply_rows
from neuron.kernels.quant.vector import add_to, narrow_f32, scaled_product, silu_product
from neuron.kernels.threads import barrier

LAYER_KIND, Q, K, V, O = plan.LAYER_KIND, plan.Q, plan.K, plan.V, plan.O  # noqa: E741
GATE, UP, DOWN = plan.GATE, plan.UP, plan.DOWN
ATTN_NORM, FFN_NORM, Q_NORM, K_NORM = plan.ATTN_NORM, plan.FFN_NORM, plan.Q_NORM, plan.K_NORM
Q_BIAS, K_BIAS, V_BIAS, O_BIAS = plan.Q_BIAS, plan.K_BIAS, plan.V_BIAS, plan.O_BIAS
GATE_BIAS, UP_BIAS, DOWN_BIAS, CACHE_LAYER = plan.GATE_BIAS, plan.UP_BIAS, plan.DOWN_BIAS, plan.CACHE_LAYER
EMBEDDING, HEAD, FINAL_NORM, FULL = plan.EMBEDDING, plan.HEAD, plan.FINAL_NORM, plan.FULL
LINEAR_QKV, LINEAR_Z, LINEAR_A = plan.LINEAR_QKV, plan.LINEAR_Z, plan.LINEAR_A
LINEAR_B, LINEAR_OUT, Q_GATE, Q_GATE_BIAS = plan.LINEAR_B, plan.LINEAR_OUT, plan.Q_GATE, plan.Q_GATE_BIAS


@spliced
def share(total, unit, thread, threads):
    """First and last of this thread's part of `total`, in whole units."""
    units = (total + unit - 1) // unit
    return min(total, units * thread // threads * unit), min(total, units * (thread + 1) // threads * unit)


@spliced
def arrange(thread, n, cols, kind, held, b):
    """This thread's `normed` in the layout that `kind` is multiplied with; `held` is the layout that is there."""
    layout = layout_of(kind)
    if layout != held and layout != FLOAT:
        for t in range(n):
            quantise_row(
                layout,
                b.normed + thread * b.private_normed + t * b.normed_step,
                b.quants + thread * b.private_quants + t * b.quants_step,
                b.scales + thread * b.private_scales + t * b.scales_step,
                cols,
            )
        return layout
    return held


@spliced
def norm_rows(thread, n, weight, shape, b):
    """RMSNorm of x into this thread's `normed`. Every thread does all rows: cheaper than a barrier."""
    for t in range(n):
        x = b.x + t * shape.hidden * 4
        factor = root_mean_square(x, shape.hidden, shape.epsilon)
        scaled_product(x, weight, factor, b.normed + thread * b.private_normed + t * b.normed_step, shape.hidden)


@spliced
def project(thread, threads, n, layer, column, cols, held, out, out_step, bias, b):
    """This thread's rows of one matrix times its private activations, plus `bias` (address or 0), to `out`.

    `held` is the layout that the activations are in (NONE: only as floats); returns the one they are in now.
    """
    held = arrange(thread, n, cols, layer[column], held, b)
    first, last = share(layer[column + 3], 32, thread, threads)
    multiply_rows(
        layer[column],
        layer[column + 1],
        layer[column + 2],
        first,
        last,
        cols,
        n,
        b.normed + thread * b.private_normed,
        b.quants + thread * b.private_quants,
        b.scales + thread * b.private_scales,
        b.normed_step,
        b.quants_step,
        b.scales_step,
        out + first * 4,
        out_step,
    )
    if bias != 0:
        for t in range(n):
            add_to(bias + first * 4, out + t * out_step + first * 4, last - first)
    return held


@spliced
def project_residual(thread, threads, n, layer, column, cols, bias, shape, b):
    """x += private activations . matrix^T (+ bias), this thread's part of hidden."""
    step = shape.hidden * 4
    project(thread, threads, n, layer, column, cols, NONE, b.product, step, bias, b)
    first, last = share(shape.hidden, 32, thread, threads)
    for t in range(n):
        add_to(b.product + t * step + first * 4, b.x + t * step + first * 4, last - first)


@spliced
def write_heads(thread, threads, n, layer, shape, b):
    """Norm and rope of q and k heads, keys and values into each row's cache; heads are dealt out to threads."""
    dim = shape.head_dim
    for unit in range(thread, n * (shape.heads + shape.kv_heads), threads):
        t, h = unit // (shape.heads + shape.kv_heads), unit % (shape.heads + shape.kv_heads)
        table = b.rope + t * shape.rotary_dim * 4
        if h < shape.heads:
            prepare_head(b.query + (t * shape.heads + h) * dim * 4, layer[Q_NORM], table, shape)
            continue
        h -= shape.heads
        place = (t * shape.kv_heads + h) * dim * 4
        prepare_head(b.key + place, layer[K_NORM], table, shape)
        cache = load_i64(b.caches + 8 * t) + layer[CACHE_LAYER] * shape.kv_layer_bytes
        offset = h * shape.kv_head_bytes + load_i64(b.positions + 8 * t) * dim * shape.kv_size
        write_row(b.key + place, cache + offset, shape)
        write_row(b.value + place, cache + shape.kv_heads * shape.kv_head_bytes + offset, shape)


@spliced
def attend_rows(thread, threads, n, splits, layer, shape, b):
    """Partial attention: units of (row, kv head, split of the positions) are dealt out to threads."""
    group = shape.heads // shape.kv_heads
    part = (shape.head_dim + 2) * 4
    for unit in range(thread, n * shape.kv_heads * splits, threads):
        split = unit % splits
        h = unit // splits % shape.kv_heads
        t = unit // (splits * shape.kv_heads)
        length = load_i64(b.positions + 8 * t) + 1
        cache = load_i64(b.caches + 8 * t) + layer[CACHE_LAYER] * shape.kv_layer_bytes
        keys = cache + h * shape.kv_head_bytes
        values = keys + shape.kv_heads * shape.kv_head_bytes
        first, last = length * split // splits, length * (split + 1) // splits
        head = t * shape.heads + h * group
        attend(
            b.query + head * shape.head_dim * 4,
            group,
            keys,
            values,
            first,
            last,
            shape,
            b.scores + thread * b.private_scores,
            b.partial + (head * splits + split) * part,
            splits * part,
        )


@spliced
def attention_layer(thread, threads, n, splits, layer, shape, b):
    """x += attention(norm(x))."""
    dim = shape.head_dim
    norm_rows(thread, n, layer[ATTN_NORM], shape, b)
    wide, narrow = shape.heads * dim * 4, shape.kv_heads * dim * 4
    held = project(thread, threads, n, layer, Q, shape.hidden, NONE, b.query, wide, layer[Q_BIAS], b)
    held = project(thread, threads, n, layer, K, shape.hidden, held, b.key, narrow, layer[K_BIAS], b)
    held = project(thread, threads, n, layer, V, shape.hidden, held, b.value, narrow, layer[V_BIAS], b)
    if layer[Q_GATE + 1] != 0:
        project(thread, threads, n, layer, Q_GATE, shape.hidden, held, b.query_gate, wide, layer[Q_GATE_BIAS], b)
    barrier(b.barrier, threads)
    write_heads(thread, threads, n, layer, shape, b)
    barrier(b.barrier, threads)
    attend_rows(thread, threads, n, splits, layer, shape, b)
    barrier(b.barrier, threads)
    part = (dim + 2) * 4
    for t in range(n):
        for h in range(shape.heads):
            out = b.normed + thread * b.private_normed + t * b.normed_step + h * dim * 4
            combine(b.partial + (t * shape.heads + h) * splits * part, splits, part, dim, out)
            if layer[Q_GATE + 1] != 0:
                sigmoid_product(out, b.query_gate + (t * shape.heads + h) * dim * 4, out, dim)
    project_residual(thread, threads, n, layer, O, shape.heads * dim, layer[O_BIAS], shape, b)


@spliced
def linear_layer(thread, threads, n, layer, shape, b):
    """x += out(gated norm(delta rule(conv(qkv(norm(x))))))."""
    heads, width = shape.linear_value_heads, shape.linear_value_heads * shape.linear_value_dim
    channels = 2 * shape.linear_key_heads * shape.linear_key_dim + width
    norm_rows(thread, n, layer[ATTN_NORM], shape, b)
    held = project(thread, threads, n, layer, LINEAR_QKV, shape.hidden, NONE, b.mixed, channels * 4, 0, b)
    held = project(thread, threads, n, layer, LINEAR_Z, shape.hidden, held, b.z, width * 4, 0, b)
    held = project(thread, threads, n, layer, LINEAR_A, shape.hidden, held, b.alpha, heads * 4, 0, b)
    project(thread, threads, n, layer, LINEAR_B, shape.hidden, held, b.beta, heads * 4, 0, b)
    barrier(b.barrier, threads)
    mix_rows(thread, threads, n, layer, shape, b)
    barrier(b.barrier, threads)
    for t in range(n):
        narrow_f32(b.linear_out + t * width * 4, b.normed + thread * b.private_normed + t * b.normed_step, width)
    project_residual(thread, threads, n, layer, LINEAR_OUT, width, 0, shape, b)


@spliced
def mlp(thread, threads, n, layer, shape, b):
    """x += down(silu(gate(norm(x))) * up(norm(x)))."""
    step = shape.intermediate * 4
    norm_rows(thread, n, layer[FFN_NORM], shape, b)
    held = project(thread, threads, n, layer, GATE, shape.hidden, NONE, b.gate, step, layer[GATE_BIAS], b)
    project(thread, threads, n, layer, UP, shape.hidden, held, b.up, step, layer[UP_BIAS], b)
    first, last = share(shape.intermediate, 32, thread, threads)
    for t in range(n):
        place = t * step + first * 4
        silu_product(b.gate + place, b.up + place, b.gate + place, last - first)
    barrier(b.barrier, threads)
    for t in range(n):
        narrow_f32(b.gate + t * step, b.normed + thread * b.private_normed + t * b.normed_step, shape.intermediate)
    project_residual(thread, threads, n, layer, DOWN, shape.intermediate, layer[DOWN_BIAS], shape, b)


@compiled
def run_step(thread, threads, n, splits, layers, tokens, table, shape, b, logits, logits_rows):
    """n tokens int32 [n] through all layers; logits of the last `logits_rows` rows to float32 [rows, vocab].

    With `layers` 0 only the head is run, for rows of x that prefill has computed.
    """
    top = table[shape.layers]
    if layers > 0:
        for t in range(thread, n, threads):
            row = top[EMBEDDING + 1] + tokens[t] * top[EMBEDDING + 2]
            expand_row_f32(top[EMBEDDING], row, b.x + t * shape.hidden * 4, shape.hidden)
        barrier(b.barrier, threads)
    for index in range(layers):
        layer = table[index]
        if layer[LAYER_KIND] == FULL:
            attention_layer(thread, threads, n, splits, layer, shape, b)
        else:
            linear_layer(thread, threads, n, layer, shape, b)
        barrier(b.barrier, threads)
        mlp(thread, threads, n, layer, shape, b)
        barrier(b.barrier, threads)
    if logits_rows > 0:
        head_rows(thread, threads, n, top, shape, b, logits, logits_rows)


@spliced
def head_rows(thread, threads, n, top, shape, b, logits, logits_rows):
    """Final norm and head of the last `logits_rows` rows of x, straight into `logits` (address)."""
    skipped = n - logits_rows
    for t in range(logits_rows):
        x = b.x + (skipped + t) * shape.hidden * 4
        factor = root_mean_square(x, shape.hidden, shape.epsilon)
        out = b.normed + thread * b.private_normed + t * b.normed_step
        scaled_product(x, top[FINAL_NORM], factor, out, shape.hidden)
    project(thread, threads, logits_rows, top, HEAD, shape.hidden, NONE, logits, shape.vocab * 4, 0, b)
