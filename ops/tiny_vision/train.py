"""`python -m ops.tiny_vision.train`: trains the tiny vision model with transformers and writes its repository.

Some ten minutes of one core. The result (safetensors in bfloat16, config, tokenizer, template, preprocessor) is what is
committed beside this script; everything random is seeded.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from neuron.actors.images.geometry import smart_resize
from neuron.actors.images.patches import to_patches
from ops.tiny_vision.pictures import NO_PICTURE, NO_SQUARE, QUESTIONS, noise, random_picture
from ops.tiny_vision.vocabulary import CHAT_TEMPLATE, TARGET, build_tokenizer

PATCH, MERGE, TEMPORAL = 16, 2, 2
MIN_PIXELS, MAX_PIXELS = 96 * 96, 128 * 128
ROWS = 416
"""Embedding rows: more than the tokenizer has ids, as published checkpoints of this family have."""
BATCH = 20


def config(tokenizer: Tokenizer) -> Qwen3_5Config:
    token = tokenizer.token_to_id
    return Qwen3_5Config(
        architectures=["Qwen3_5ForConditionalGeneration"],
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
        text_config={
            "vocab_size": ROWS,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
            "initializer_range": 0.04,
            "eos_token_id": token("<|im_end|>"),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 4,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": TEMPORAL,
            "out_hidden_size": 128,
            "num_position_embeddings": 144,
            "initializer_range": 0.04,
        },
    )


class Sample:
    """One conversation as ids, the ids that are learned (-100 elsewhere), and its images' patches."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pad = tokenizer.token_to_id("<|image_pad|>")
        self.ids: list[int] = []
        self.labels: list[int] = []
        self.patches: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        self.grids: list[tuple[int, int, int]] = []

    def text(self, text: str, *, learned: bool = False) -> None:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        self.ids += ids
        self.labels += ids if learned else [-100] * len(ids)

    def image(self, image: Image.Image) -> None:
        height, width = smart_resize(
            image.height, image.width, factor=PATCH * MERGE, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS
        )
        rgb = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
        self.patches.append(to_patches(rgb, patch=PATCH, merge=MERGE))
        self.grids.append((1, height // PATCH, width // PATCH))
        count = height * width // (PATCH * MERGE) ** 2
        self.ids += [self._pad] * count
        self.labels += [-100] * count

    def turn(self, image: Image.Image | None, answer: str, rng: random.Random) -> None:
        self.text("<|im_start|>user\n")
        question = rng.choice(QUESTIONS)
        first = rng.random() < 0.7
        if image is None or not first:
            self.text(question)
        if image is not None:
            self.text("<|vision_start|>")
            self.image(image)
            self.text("<|vision_end|>")
            if first:
                self.text(question)
        self.text("<|im_end|>\n<|im_start|>assistant\n")
        self.text(answer + "<|im_end|>", learned=True)
        self.text("\n")


def conversation(tokenizer: Tokenizer, turns: int, rng: random.Random) -> Sample:
    """Mostly about squares; some turns about noise, few about nothing."""
    sample = Sample(tokenizer)
    if rng.random() < 0.2:
        sample.text("<|im_start|>system\nYou look at pictures.<|im_end|>\n")
    for _ in range(turns):
        draw = rng.random()
        if draw < 0.05 and not sample.grids:
            sample.turn(None, NO_PICTURE, rng)
        elif draw < 0.12:
            sample.turn(noise((rng.randint(96, 192), rng.randint(96, 192)), rng), NO_SQUARE, rng)
        else:
            picture = random_picture(rng)
            sample.turn(picture.image, picture.answer, rng)
    return sample


def batch(samples: list[Sample], pad: int, image: int) -> dict[str, torch.Tensor]:
    """Padded on the right, where a causal model does not see it."""
    longest = max(len(sample.ids) for sample in samples)
    ids = torch.tensor([sample.ids + [pad] * (longest - len(sample.ids)) for sample in samples])
    labels = torch.tensor([sample.labels + [-100] * (longest - len(sample.labels)) for sample in samples])
    pixels = np.concatenate([rows for sample in samples for rows in sample.patches]).astype(np.float32)
    normal = torch.from_numpy((pixels / 255 - 0.5) / 0.5).view(-1, 3, 1, PATCH * PATCH)
    return {
        "input_ids": ids,
        "labels": labels,
        "pixel_values": normal.expand(-1, -1, TEMPORAL, -1).reshape(len(pixels), -1),
        "image_grid_thw": torch.tensor([grid for sample in samples for grid in sample.grids]),
        "mm_token_type_ids": (ids == image).int(),
    }


def train(steps: int, seed: int, threads: int) -> tuple[Qwen3_5ForConditionalGeneration, Tokenizer]:
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    tokenizer = build_tokenizer()
    model = Qwen3_5ForConditionalGeneration(config(tokenizer)).train()
    pad, image = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|image_pad|>")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    started, mean = time.monotonic(), 0.0
    for step in range(steps):
        # Equal numbers of turns leave little to pad.
        turns = rng.choice((1, 1, 1, 1, 2, 2, 3))
        samples = [conversation(tokenizer, turns, rng) for _ in range(BATCH)]
        if not any(sample.grids for sample in samples):
            continue
        loss = model(**batch(samples, pad, image)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.item() if step == 0 else 0.97 * mean + 0.03 * loss.item()
        if step % 50 == 0 or step == steps - 1:
            sys.stdout.write(f"step {step}: loss {mean:.4f}, {time.monotonic() - started:.0f} s\n")
            sys.stdout.flush()
    return model.eval(), tokenizer


def write(model: Qwen3_5ForConditionalGeneration, tokenizer: Tokenizer, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save(str(target / "tokenizer.json"))
    token = tokenizer.token_to_id
    files: dict[str, dict[str, Any]] = {
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        "generation_config.json": {
            "eos_token_id": [token("<|im_end|>"), token("<|endoftext|>")],
            "do_sample": False,
        },
        "preprocessor_config.json": {
            "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
            "patch_size": PATCH,
            "temporal_patch_size": TEMPORAL,
            "merge_size": MERGE,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "image_processor_type": "Qwen2VLImageProcessorFast",
        },
    }
    for name, content in files.items():
        (target / name).write_text(json.dumps(content, indent=2) + "\n")
    (target / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.tiny_vision.train")
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--target", type=Path, default=TARGET)
    options = parser.parse_args()
    model, tokenizer = train(options.steps, options.seed, options.threads)
    write(model, tokenizer, options.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
