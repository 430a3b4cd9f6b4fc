"""ModelArtifact: a model's files, found and checked. What sources hand to preflight, tokenizers and device jobs."""

from enum import StrEnum
from pathlib import Path

import msgspec


class Format(StrEnum):
    GGUF = "gguf"
    SAFETENSORS = "safetensors"
    SCRIPTED = "scripted"


class ModelArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """`model_id` is bare (`org/name`), `source_id` qualified (`scheme:org/name`). Paths stay inside the source."""

    model_id: str
    source_id: str
    format: Format
    directory: Path
    weight_files: tuple[Path, ...]
    #: What the files hold ("Q4_1", "bf16"), for display.
    stored_quant: str | None = None
    #: In-situ quantisation to apply while loading; None keeps what is stored.
    quant: str | None = None
    projector: Path | None = None
    chat_template_file: Path | None = None
