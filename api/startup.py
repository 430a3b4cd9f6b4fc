"""Settings of `serve`: file, environment, command line, in rising precedence; and checks that need no device."""

import math
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from neuron.actors.device.devices import parse_device
from neuron.actors.limits import BODIES_BYTES, MIB
from neuron.actors.settings import ModelSettings, Settings, SourceKind
from neuron.actors.sources.configured import check_sources
from neuron.actors.sources.ids import parse_model_id
from neuron.runtime.config import load_settings
from neuron.runtime.errors import ConfigError, NeuronError
from neuron.runtime.levels import parse_level

SYSTEM_FILE = Path("/etc/neuron/neuron.toml")
ENVIRONMENT = {
    "NEURON_PREFILL_CHUNK_TOKENS": "limits.prefill_chunk_tokens",
    "NEURON_MAX_PROMPT_TOKENS": "limits.max_prompt_tokens",
    "NEURON_MIN_FREE_VRAM_MB": "limits.min_free_vram_mb",
    "NEURON_USE_CHAT_TEMPLATE": "use_chat_template",
    "NEURON_DEFAULT_MAX_TOKENS": "limits.default_max_tokens",
    "NEURON_LOG": "logging.level",
    "NEURON_HOST": "server.host",
    "NEURON_PORT": "server.port",
}
#: Not keys of the file: set by the environment or the command line only.
_RESERVED = ("enable_scripted", "use_chat_template")


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; None and () mean: nothing."""

    config: Path | None = None
    host: str | None = None
    port: int | None = None
    models: tuple[str, ...] = ()
    log_level: str | None = None
    log_format: str | None = None
    enable_scripted: bool = False


def config_path(given: Path | None, environment: Mapping[str, str]) -> Path | None:
    """--config, else NEURON_CONFIG, else the system's file when it exists."""
    if given is not None:
        return given
    named = environment.get("NEURON_CONFIG", "").strip()
    if named:
        return Path(named)
    return SYSTEM_FILE if SYSTEM_FILE.exists() else None


def gather_settings(options: ServeOptions, environment: Mapping[str, str] | None = None) -> Settings:
    """Raises ConfigError with one line that names the file or variable and the key."""
    environment = os.environ if environment is None else environment
    path = config_path(options.config, environment)
    settings = load_settings(Settings, path, environment, ENVIRONMENT, reserved=_RESERVED)
    settings = _with_credentials(_with_options(settings, options), environment)
    check_settings(settings)
    return settings


def _with_options(settings: Settings, options: ServeOptions) -> Settings:
    replace = msgspec.structs.replace
    server = settings.server
    if options.host is not None:
        server = replace(server, host=options.host)
    if options.port is not None:
        server = replace(server, port=options.port)
    logging = settings.logging
    if options.log_level is not None:
        logging = replace(logging, level=options.log_level)
    if options.log_format is not None:
        logging = replace(logging, format=options.log_format)
    named = set(options.models)
    configured = tuple(
        replace(model, at_start=True) if model.id in named or named & set(model.aliases) else model
        for model in settings.models
    )
    known = {name for model in settings.models for name in (model.id, *model.aliases)}
    extra = tuple(ModelSettings(id=model) for model in options.models if model not in known)
    return replace(
        settings,
        server=server,
        logging=logging,
        models=configured + extra,
        enable_scripted=options.enable_scripted,
    )


def _with_credentials(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Under systemd the unit's credentials api-keys and admin-keys are the key files, unless the file names others."""
    folder = environment.get("CREDENTIALS_DIRECTORY", "")
    server = settings.server
    found = {
        key: Path(folder, name)
        for key, name in (("api_keys_file", "api-keys"), ("admin_keys_file", "admin-keys"))
        if folder and getattr(server, key) is None and Path(folder, name).is_file()
    }
    return msgspec.structs.replace(settings, server=msgspec.structs.replace(server, **found))


def check_settings(settings: Settings) -> None:
    """What the schema cannot say. Raises ConfigError."""
    parse_level(settings.logging.level)
    if settings.logging.format not in ("json", "console"):
        raise ConfigError("logging.format must be json or console.")
    if not 0 <= settings.server.port <= 65535:
        raise ConfigError("server.port must be between 0 and 65535.")
    check_sources(settings)
    for name, source in settings.sources.items():
        if source.kind is SourceKind.SCRIPTED and not settings.enable_scripted:
            raise ConfigError(f"sources.{name}: the scripted backend needs --enable-scripted.")
    _check_numbers(settings)
    _check_limits(settings)
    _check_names(settings)
    for model in settings.models:
        _check_model(model, settings)


def _check_model(model: ModelSettings, settings: Settings) -> None:
    """What no load could make good: found here, before anything is loaded."""
    try:
        parse_model_id(model.id, settings)
        for device in model.devices:
            parse_device(device, model_id=model.id)
    except NeuronError as error:
        raise ConfigError(f"model {model.id[:200]}: {error.message}") from error
    for name, value in (("tensor_parallel", model.tensor_parallel), ("max_context", model.max_context)):
        if value is not None and value < 1:
            raise ConfigError(f"model {model.id}: {name} must be at least 1.")
    if not math.isfinite(model.keep_alive_seconds or 0.0):
        raise ConfigError(f"model {model.id}: keep_alive_seconds must be a finite number.")


def _check_names(settings: Settings) -> None:
    """A name that means two models would mean the first one, silently."""
    taken: dict[str, str] = {}
    for model in settings.models:
        for name in (model.id, *model.aliases):
            other = taken.setdefault(name.casefold(), model.id)
            if other != model.id:
                raise ConfigError(f"models: the name '{name}' means both {other} and {model.id}.")
    residency = settings.residency
    if residency.keep_alive_seconds is not None and residency.keep_alive_seconds <= 0:
        raise ConfigError("residency.keep_alive_seconds must be more than 0; leave it out to keep models for ever.")
    if residency.budget_mb is not None and residency.budget_mb < 1:
        raise ConfigError("residency.budget_mb must be at least 1.")


def _check_numbers(settings: Settings) -> None:
    """TOML has words for numbers that no comparison holds back: nan and inf."""
    for section in ("server", "recovery", "limits", "residency"):
        values = getattr(settings, section)
        for name in values.__struct_fields__:
            value = getattr(values, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{section}.{name} must be a finite number.")
    if settings.server.shutdown_seconds < 0:
        raise ConfigError("server.shutdown_seconds must be at least 0.")
    if settings.recovery.restart_window_seconds <= 0:
        raise ConfigError("recovery.restart_window_seconds must be more than 0.")
    if settings.recovery.restart_budget < 0:
        raise ConfigError("recovery.restart_budget must be at least 0.")


def _check_limits(settings: Settings) -> None:
    limits = settings.limits
    for name in limits.__struct_fields__:
        value = getattr(limits, name)
        least = 0 if name in ("min_free_vram_mb", "per_principal", "queue_per_model", "queue_total") else 1
        if value is not None and value < (least if isinstance(value, int) else 0.01):
            raise ConfigError(f"limits.{name} must be at least {least}.")
    if limits.body_mb * MIB > BODIES_BYTES.value:
        raise ConfigError(f"limits.body_mb must be at most {BODIES_BYTES.value // MIB}.")
