"""Names of the tensors of both file formats by their role in a layer, so that nothing else speaks file names."""

from neuron.kernels.formats.expected import GGUF, HEAD
from neuron.kernels.formats.model_config import ModelConfig

_LAYER = {
    "attn_norm": ("input_layernorm.weight", "attn_norm.weight"),
    "ffn_norm": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "q": ("self_attn.q_proj.weight", "attn_q.weight"),
    "k": ("self_attn.k_proj.weight", "attn_k.weight"),
    "v": ("self_attn.v_proj.weight", "attn_v.weight"),
    "o": ("self_attn.o_proj.weight", "attn_output.weight"),
    "q_bias": ("self_attn.q_proj.bias", "attn_q.bias"),
    "k_bias": ("self_attn.k_proj.bias", "attn_k.bias"),
    "v_bias": ("self_attn.v_proj.bias", "attn_v.bias"),
    "o_bias": ("self_attn.o_proj.bias", "attn_output.bias"),
    "q_norm": ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    "k_norm": ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    "gate": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "up": ("mlp.up_proj.weight", "ffn_up.weight"),
    "down": ("mlp.down_proj.weight", "ffn_down.weight"),
    "gate_bias": ("mlp.gate_proj.bias", "ffn_gate.bias"),
    "up_bias": ("mlp.up_proj.bias", "ffn_up.bias"),
    "down_bias": ("mlp.down_proj.bias", "ffn_down.bias"),
    "linear_qkv": ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight"),
    "linear_z": ("linear_attn.in_proj_z.weight", "attn_gate.weight"),
    "linear_a": ("linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
    "linear_b": ("linear_attn.in_proj_b.weight", "ssm_beta.weight"),
    "linear_conv": ("linear_attn.conv1d.weight", "ssm_conv1d.weight"),
    "linear_decay": ("linear_attn.A_log", "ssm_a"),
    "linear_dt_bias": ("linear_attn.dt_bias", "ssm_dt.bias"),
    "linear_norm": ("linear_attn.norm.weight", "ssm_norm.weight"),
    "linear_out": ("linear_attn.out_proj.weight", "ssm_out.weight"),
}
_TOP = {
    "embedding": ("embed_tokens.weight", "token_embd.weight"),
    "norm": ("norm.weight", "output_norm.weight"),
}


class Names:
    """Tensor names of one model's files. `prefix`: of the text model in safetensors."""

    def __init__(self, config: ModelConfig, format: str, prefix: str) -> None:
        self._gguf = format == GGUF
        self._format = format
        self._prefix = prefix
        self._hybrid = config.linear is not None

    def top(self, role: str) -> str:
        """`role`: embedding, norm or head."""
        if role == "head":
            return HEAD[self._format]
        dense, gguf = _TOP[role]
        return gguf if self._gguf else self._prefix + dense

    def layer(self, role: str, layer: int) -> str:
        dense, gguf = _LAYER[role]
        if not self._gguf:
            return f"{self._prefix}layers.{layer}.{dense}"
        # The hybrid's converter keeps the name that the norm has in its source.
        if role == "ffn_norm" and self._hybrid:
            gguf = "post_attention_norm.weight"
        return f"blk.{layer}.{gguf}"
