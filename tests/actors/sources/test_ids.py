"""Model ids: the grammar, and that no malformed id reaches the disk or the network."""

import builtins
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron.actors.errors import InvalidModelId, PreflightError, UnknownSource
from neuron.actors.settings import Settings, SourceKind, SourceSettings
from neuron.actors.sources.configured import cache_directory, check_sources, configured_sources, token
from neuron.actors.sources.ids import ModelId, parse_model_id
from neuron.runtime.errors import ConfigError

SETTINGS = Settings(
    sources={"local-2": SourceSettings(kind=SourceKind.DIRECTORY, path=Path("/srv/models"))}, default_source="local-2"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", ModelId("local-2", "org", "name")),
        ("huggingface:Qwen/Qwen3-0.6B", ModelId("huggingface", "Qwen", "Qwen3-0.6B")),
        ("demo:huggingfacetb/smollm2-135m-instruct", ModelId("demo", "huggingfacetb", "smollm2-135m-instruct")),
        ("a/b", ModelId("local-2", "a", "b")),
        ("_x/1.5-y_z", ModelId("local-2", "_x", "1.5-y_z")),
    ],
)
def test_forms(text: str, expected: ModelId) -> None:
    parsed = parse_model_id(text, SETTINGS)
    assert parsed == expected
    assert parsed.qualified == f"{parsed.scheme}:{parsed.bare}"
    assert parse_model_id(parsed.qualified, SETTINGS) == parsed


MALFORMED = [
    "", "name", ":org/name", "org/", "/name", "/", "org//name", "org/name/more", "../../etc/x", "huggingface:../x",
    "a/../../b", "org/..", "org/.", "org/name/../../x", "/etc/passwd", "file:/etc/passwd", "org/na%2e%2e", "org/n\0",
    "o" * 10_000, "org/" + "n" * 97, "org/name\nfoo", "org/name\n", "org/na me", "org/n\u00e4me", "org/.hidden",
    "org/-dash", "-dash/name", "a:b:org/name", "sch/eme:org/name", "huggingface:org/na:me", "org/na:me", "~/name",
    "org/name.", "org/na..me", "org\\name", "org/na\\me", "C:/name", "\u202eorg/name", "org/name?x", "org/name#x",
    " org/name", "org/name ", "$HOME/name", "org/*", "\uff0e\uff0e/name",
]  # fmt: skip


@pytest.fixture
def no_io(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    touched: list[str] = []

    def refuse(*arguments: Any, **_: Any) -> Any:
        touched.append(repr(arguments))
        raise AssertionError(f"touched {arguments}")

    for module, name in ((builtins, "open"), (os, "open"), (os, "stat"), (os, "scandir"), (socket.socket, "connect")):
        monkeypatch.setattr(module, name, refuse)
    return touched


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: ascii(text)[:40])
def test_malformed_ids_are_refused_without_io(text: str, no_io: list[str]) -> None:
    with pytest.raises(PreflightError) as caught:
        parse_model_id(text, SETTINGS)
    assert isinstance(caught.value, InvalidModelId | UnknownSource)
    assert 400 <= caught.value.status < 500
    assert len(str(caught.value.extra["model_id"])) <= 256
    assert "/etc" not in caught.value.message
    assert no_io == []


def test_an_unknown_scheme_lists_what_there_is() -> None:
    with pytest.raises(UnknownSource) as caught:
        parse_model_id("nowhere:org/name", SETTINGS)
    assert "huggingface" in str(caught.value.extra["suggestion"])
    with pytest.raises(UnknownSource):
        parse_model_id("org/name", Settings(default_source="gone"))


@given(text=st.text(max_size=40) | st.from_regex(r"[a-z:/.%~\\-]{1,20}"))
def test_whatever_parses_stays_in_its_place(text: str) -> None:
    try:
        parsed = parse_model_id(text, SETTINGS)
    except PreflightError:
        return
    root = "/srv/models"
    assert os.path.normpath(os.path.join(root, parsed.org, parsed.name)) == f"{root}/{parsed.org}/{parsed.name}"


# -- configured sources ------------------------------------------------------------------------


def test_scripted_sources_need_their_switch() -> None:
    scripted = {"scripted": SourceSettings(kind=SourceKind.SCRIPTED, path=Path("/srv/scripts"))}
    assert "scripted" not in configured_sources(Settings(sources=scripted))
    assert "scripted" in configured_sources(Settings(sources=scripted, enable_scripted=True))
    with pytest.raises(UnknownSource):
        parse_model_id("scripted:test/x", Settings(sources=scripted))


def test_caches_are_the_sources_own(tmp_path: Path) -> None:
    hub = SourceSettings(kind=SourceKind.HUB)
    environment = {"HF_HUB_CACHE": "/c/hub", "HF_HOME": "/c/home", "XDG_CACHE_HOME": "/c/xdg"}
    assert cache_directory("huggingface", hub, environment) == Path("/c/hub")
    del environment["HF_HUB_CACHE"]
    assert cache_directory("huggingface", hub, environment) == Path("/c/home/hub")
    assert cache_directory("mirror", hub, environment) == Path("/c/xdg/neuron/sources/mirror")
    del environment["HF_HOME"]
    assert cache_directory("huggingface", hub, environment) == Path("/c/xdg/huggingface/hub")
    own = SourceSettings(kind=SourceKind.HUB, cache_dir=tmp_path)
    assert cache_directory("huggingface", own, environment) == tmp_path


def test_tokens_come_from_the_named_variable_only() -> None:
    environment = {"HF_TOKEN": "hf", "MIRROR": "m", "EMPTY": ""}
    assert token(SourceSettings(kind=SourceKind.HUB), environment) is None
    assert token(SourceSettings(kind=SourceKind.HUB, auth_env="MIRROR"), environment) == "m"
    assert token(SourceSettings(kind=SourceKind.HUB, auth_env="EMPTY"), environment) is None
    assert token(configured_sources(Settings())["huggingface"], environment) == "hf"


@pytest.mark.parametrize(
    "sources",
    [
        {"a b": SourceSettings(kind=SourceKind.HUB)},
        {"a:b": SourceSettings(kind=SourceKind.HUB)},
        {"m": SourceSettings(kind=SourceKind.HUB, endpoint="ftp://host")},
        {"m": SourceSettings(kind=SourceKind.HUB, endpoint="host/path")},
        {"m": SourceSettings(kind=SourceKind.HUB, endpoint="https://user:secret@host")},
        {"m": SourceSettings(kind=SourceKind.DIRECTORY)},
        {"m": SourceSettings(kind=SourceKind.SCRIPTED)},
        {"m": SourceSettings(kind=SourceKind.PACKAGE)},
        {"m": SourceSettings(kind=SourceKind.PACKAGE, package="os.path")},
        {name: SourceSettings(kind=SourceKind.HUB, cache_dir=Path("/c")) for name in ("m", "n")},
        {"m": SourceSettings(kind=SourceKind.HUB, cache_dir=Path("/hub"))},
    ],
)
def test_sources_that_cannot_work(sources: dict[str, SourceSettings]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_sources(Settings(sources=sources), {"HF_HUB_CACHE": "/hub"})
    assert "secret" not in caught.value.message


def test_sources_that_work() -> None:
    check_sources(SETTINGS, {})
    check_sources(Settings(), {})
    with pytest.raises(ConfigError):
        check_sources(Settings(default_source="gone"), {})
