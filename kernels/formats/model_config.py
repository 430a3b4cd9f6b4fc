"""ModelConfig: the shape of a model, whatever file described it. Parsers: hf_config (config.json), gguf_config."""

from enum import StrEnum

import msgspec


class Architecture(StrEnum):
    LLAMA = "llama"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    QWEN3_5 = "qwen3_5"


class LayerKind(StrEnum):
    FULL = "full_attention"
    LINEAR = "linear_attention"


class RopeScaling(StrEnum):
    NONE = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`rotary_dim` = head_dim * partial_rotary_factor, applied once. Sections are in pairs (t, h, w)."""

    theta: float
    rotary_dim: int
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    original_max_position: int = 0
    #: llama3
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    #: yarn
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mrope_section: tuple[int, int, int] | None = None
    mrope_interleaved: bool = False
    #: GGUF of arch `llama` stores q/k rows permuted for adjacent-pair rotation.
    adjacent_pairs: bool = False
    #: GGUF `rope_freqs.weight` divides the frequencies; present as a tensor of the file.
    has_frequency_factors: bool = False


class LinearAttentionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Gated DeltaNet layers. `tiled_value_heads`: value head h uses key head h % key_heads (GGUF), else h // ratio."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    tiled_value_heads: bool = False
    #: The file holds -exp(A_log) (GGUF), not A_log.
    decay_is_stored: bool = False


class VisionConfig(msgspec.Struct, frozen=True, kw_only=True):
    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    num_position_embeddings: int
    out_hidden_size: int


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    architecture: Architecture
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    max_position: int
    rope: RopeConfig
    layer_kinds: tuple[LayerKind, ...]
    #: None: decided by whether a head tensor is present.
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    #: RMSNorm of q and k per head before rope.
    qk_norm: bool = False
    #: Norm weights are stored as w and applied as 1 + w (safetensors of the hybrid; its GGUF stores 1 + w).
    zero_centred_norms: bool = False
    #: q_proj holds query and gate interleaved per head; the output is multiplied by sigmoid(gate).
    attn_output_gate: bool = False
    linear: LinearAttentionConfig | None = None
    vision: VisionConfig | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    image_token_id: int | None = None
    vision_start_token_id: int | None = None
    vision_end_token_id: int | None = None

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers of K and V that one token adds, over all full-attention layers."""
        full = sum(kind is LayerKind.FULL for kind in self.layer_kinds)
        return full * 2 * self.num_kv_heads * self.head_dim

    @property
    def matrix_weights(self) -> int:
        """Numbers in all matrices; a head that is not said to be tied counts as one of its own."""
        hidden, linear = self.hidden_size, 0
        query = self.num_heads * self.head_dim
        attention = hidden * (query * (3 if self.attn_output_gate else 2) + 2 * self.num_kv_heads * self.head_dim)
        if self.linear is not None:
            shape = self.linear
            values = shape.value_heads * shape.value_dim
            linear = hidden * (2 * shape.key_heads * shape.key_dim + 3 * values + 2 * shape.value_heads)
        layers = sum(attention if kind is LayerKind.FULL else linear for kind in self.layer_kinds)
        tables = 1 if self.tie_word_embeddings else 2
        return layers + hidden * (3 * self.intermediate_size * self.num_layers + tables * self.vocab_size)

    @property
    def state_bytes(self) -> int:
        """Bytes of float32 recurrent and conv state of one sequence."""
        if self.linear is None:
            return 0
        layers = sum(kind is LayerKind.LINEAR for kind in self.layer_kinds)
        shape = self.linear
        recurrent = shape.value_heads * shape.key_dim * shape.value_dim
        channels = 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim
        # The convolution's ring also holds the newest input.
        return layers * 4 * (recurrent + channels * shape.conv_kernel)
