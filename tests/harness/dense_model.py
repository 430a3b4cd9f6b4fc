"""A small random Qwen3 with a byte-level tokenizer in a folder: a real model that a daemon loads in a second or two."""

import json
import os
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.kernels.decoder.tiny import tiny

_WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.05, "vocab_size": 257}
_TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def write_dense_model(folder: Path) -> None:
    """config.json, model.safetensors and the tokenizer, ready for a source of kind directory."""
    folder.mkdir(parents=True)
    tiny(folder, "Qwen3", **_WIDE, bos_token_id=None, eos_token_id=256, pad_token_id=None)
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": _TEMPLATE, "eos_token": "<|end|>"}))


def directory_source(root: Path) -> str:
    """The configuration of `root` as the source "local"."""
    return f'[sources.local]\nkind = "directory"\npath = {json.dumps(str(root))}\n'


def compiled_code() -> dict[str, str]:
    """Environment of a daemon that takes kernels which other runs compiled: its home is its own."""
    return {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}


def byte_level() -> Tokenizer:
    """An id for each byte; 256 is the end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: index for index, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    return tokenizer
