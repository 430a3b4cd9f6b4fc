"""The configuration's schema and defaults (TOML sections of the contract). Reading and environment: runtime.config."""

from enum import StrEnum
from pathlib import Path

import msgspec


class ThinkingDefault(StrEnum):
    TEMPLATE = "template"
    HEADER = "header"


class RecoveryMode(StrEnum):
    MANUAL = "manual"
    AUTO = "auto"


class SourceKind(StrEnum):
    HUB = "hub"
    DIRECTORY = "directory"
    PACKAGE = "package"
    SCRIPTED = "scripted"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every section: unknown keys are refused."""


class ServerSettings(Section, frozen=True):
    host: str = "127.0.0.1"
    port: int = 13131
    api_keys_file: Path | None = None
    admin_keys_file: Path | None = None
    #: CIDR blocks exempt from keys and Host checks (a gateway's poller).
    trusted_peers: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    #: Refuse a non-loopback bind without keys unless this is set.
    allow_unauthenticated: bool = False
    shutdown_seconds: float = 20.0


class DefaultsSettings(Section, frozen=True):
    thinking: ThinkingDefault = ThinkingDefault.TEMPLATE


class RecoverySettings(Section, frozen=True):
    mode: RecoveryMode = RecoveryMode.MANUAL
    restart_budget: int = 3
    restart_window_seconds: float = 300.0


class LoggingSettings(Section, frozen=True):
    level: str = "info"
    format: str = "json"


class LimitSettings(Section, frozen=True):
    prefill_chunk_tokens: int = 512
    max_prompt_tokens: int | None = None
    #: Longest time that a prompt may take, at the speed measured when its model was loaded.
    prefill_seconds: float = 600.0
    min_free_vram_mb: int = 1500
    default_max_tokens: int = 8192
    queue_per_model: int = 32
    queue_total: int = 128
    queue_seconds: float = 120.0
    per_principal: int = 2
    body_mb: int = 32
    text_body_mb: int = 8
    step_seconds: float = 30.0
    load_stall_seconds: float = 300.0
    write_idle_seconds: float = 30.0


class PrefixCacheSettings(Section, frozen=True):
    """What is kept of earlier prompts, for each resident model, in the host's memory."""

    enabled: bool = True
    #: MiB at most; what was used longest ago goes first.
    budget_mb: int = 2048
    #: A long prompt's recurrent state is kept every so many tokens (hybrid models).
    every_tokens: int = 2048
    #: A prompt is cut after a turn once so many tokens are past since the last cut.
    spacing_tokens: int = 64


class ResidencySettings(Section, frozen=True):
    """Which models stay in a device's memory."""

    #: A request for a model of [[models]] that is not resident loads it and waits.
    load_on_request: bool = False
    #: Unload a model without requests after so many seconds; None: never.
    keep_alive_seconds: float | None = None
    #: Unload idle models, the least recently used first, when a load would not fit.
    evict: bool = False
    #: MiB that the models of one device may hold together; None: what the device has.
    budget_mb: int | None = None


class SourceSettings(Section, frozen=True):
    kind: SourceKind
    endpoint: str | None = None
    auth_env: str | None = None
    cache_dir: Path | None = None
    path: Path | None = None
    package: str | None = None


class ModelSettings(Section, frozen=True):
    """One [[models]] entry, loaded at start in order unless `at_start` is false."""

    id: str
    quant: str | None = None
    tensor_parallel: int | None = None
    devices: tuple[str, ...] = ()
    max_context: int | None = None
    chat_template_file: Path | None = None
    aliases: tuple[str, ...] = ()
    #: False: known under its names, but loaded only when asked for.
    at_start: bool = True
    #: Over residency.keep_alive_seconds; negative: for ever.
    keep_alive_seconds: float | None = None


class Settings(Section, frozen=True):
    server: ServerSettings = ServerSettings()
    defaults: DefaultsSettings = DefaultsSettings()
    recovery: RecoverySettings = RecoverySettings()
    logging: LoggingSettings = LoggingSettings()
    limits: LimitSettings = LimitSettings()
    prefix_cache: PrefixCacheSettings = PrefixCacheSettings()
    residency: ResidencySettings = ResidencySettings()
    default_source: str = "huggingface"
    sources: dict[str, SourceSettings] = {}
    models: tuple[ModelSettings, ...] = ()
    #: NEURON_USE_CHAT_TEMPLATE=false: the ChatML fallback for every model.
    use_chat_template: bool = True
    #: --enable-scripted only; not a key of the file.
    enable_scripted: bool = False
