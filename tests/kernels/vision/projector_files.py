"""Towers of transformers as llama.cpp's converter writes them: mmproj files, made by the `gguf` package."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np

from tests.kernels.decoder.tiny import VOCAB, Floats
from tests.kernels.hybrid.converted import write
from tests.kernels.vision.tiny import IMAGE_TOKEN, SCALE

_NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
#: What the package's map does not say: the converter names these itself.
_MERGER = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}


def write_text(model: Any, path: Path, *, pad: bool = True) -> Path:
    """The text side of a Qwen3_5ForConditionalGeneration."""
    language, head = "model.language_model.", "lm_head.weight"
    state = {
        name.replace(language, "model."): value
        for name, value in model.state_dict().items()
        if name.startswith(language) or name == head
    }
    tokens = [f"t{index}" for index in range(VOCAB)]
    if pad:
        tokens[IMAGE_TOKEN] = "<|image_pad|>"
    return write(SimpleNamespace(config=model.config.text_config, state_dict=lambda: state), path, tokens=tokens)


def write_projector(
    model: Any,
    path: Path,
    *,
    kind: str = gguf.VisionProjectorType.QWEN3VL,
    stored: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    stacked: bool = False,
    without: str = "",
    also: str = "",
) -> Path:
    """`stored`: the type of matrices whose rows it fits. `without` leaves a tensor out, `also` adds one."""
    vision = model.config.vision_config
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(kind)
    writer.add_vision_block_count(vision.depth)
    writer.add_vision_embedding_length(vision.hidden_size)
    writer.add_vision_feed_forward_length(vision.intermediate_size)
    writer.add_vision_head_count(vision.num_heads)
    writer.add_vision_patch_size(vision.patch_size)
    writer.add_vision_projection_dim(vision.out_hidden_size)
    writer.add_vision_spatial_merge_size(vision.spatial_merge_size)
    writer.add_vision_image_mean(list(SCALE.mean))
    writer.add_vision_image_std(list(SCALE.std))
    writer.add_vision_use_gelu(True)
    writer.add_vision_is_deepstack_layers([stacked] * vision.depth)
    tensors: dict[str, Floats] = {}
    for name, value in model.model.visual.state_dict().items():
        array: Floats = value.float().numpy()
        if name == "patch_embed.proj.weight":
            tensors["v.patch_embd.weight"] = np.ascontiguousarray(array[:, :, 0])
            tensors["v.patch_embd.weight.1"] = np.ascontiguousarray(array[:, :, 1])
            continue
        tensors[_target(name)] = array
    tensors.pop(without, None)
    if also:
        tensors[also] = np.zeros(4, dtype=np.float32)
    for name, array in tensors.items():
        block = gguf.GGML_QUANT_SIZES[stored][0]
        fits = array.ndim == 2 and array.shape[1] % block == 0 and name != "v.position_embd.weight"
        if fits and stored is not gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, gguf.quantize(array, stored), raw_dtype=stored)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _target(name: str) -> str:
    if name.startswith("merger."):
        _, part, kind = name.split(".")
        return f"{_MERGER[part]}.{kind}"
    found = _NAMES.get_name(f"visual.{name}", try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return str(found)
