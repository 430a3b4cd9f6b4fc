"""Settings: file, environment, and errors of one line that name what is wrong."""

import os
from enum import StrEnum
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron.runtime.config import MAX_FILE_BYTES, load_settings
from neuron.runtime.errors import ConfigError


class Mode(StrEnum):
    MANUAL = "manual"
    AUTO = "auto"


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 1
    keys: Path | None = None
    open: bool = True
    limit: int | None = None


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: str


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    server: Server = Server()
    mode: Mode = Mode.MANUAL
    models: tuple[Model, ...] = ()
    sources: dict[str, Server] = {}
    internal: bool = False


ENVIRONMENT = {
    "N_PORT": "server.port",
    "N_OPEN": "server.open",
    "N_LIMIT": "server.limit",
    "N_KEYS": "server.keys",
    "N_MODE": "mode",
    "N_HOST": "server.host",
}


def _load(text: str | None, tmp_path: Path, environment: dict[str, str] | None = None) -> Settings:
    path = None
    if text is not None:
        path = tmp_path / "neuron.toml"
        path.write_text(text, encoding="utf-8")
    return load_settings(Settings, path, environment or {}, ENVIRONMENT, reserved=["internal"])


def test_defaults_file_and_environment_in_this_order(tmp_path: Path) -> None:
    assert _load(None, tmp_path) == Settings()
    text = '[server]\nport = 2\nkeys = "~/k"\n[[models]]\nid = "a/b"\n[sources.x]\nhost = "h"\n'
    settings = _load(text, tmp_path)
    assert settings.server == Server(port=2, keys=Path("~/k").expanduser())
    assert settings.models == (Model(id="a/b"),)
    assert settings.sources["x"].host == "h"
    settings = _load(
        text, tmp_path, {"N_PORT": "3", "N_OPEN": "false", "N_LIMIT": "7", "N_KEYS": "/k", "N_MODE": "auto"}
    )
    assert settings.server == Server(port=3, open=False, limit=7, keys=Path("/k"))
    assert settings.mode is Mode.AUTO


def test_an_empty_variable_is_no_variable(tmp_path: Path) -> None:
    assert _load(None, tmp_path, {"N_PORT": "", "N_HOST": "  ", "OTHER": "x"}) == Settings()


def test_text_that_looks_like_a_number_stays_text(tmp_path: Path) -> None:
    assert _load(None, tmp_path, {"N_HOST": "10"}).server.host == "10"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nprot = 2\n", ["unknown key 'server.prot'", "did you mean 'port'"]),
        ("servers = 2\n", ["unknown key 'servers'", "'server'"]),
        ("internal = true\n", ["unknown key 'internal'"]),
        ("[[models]]\nid = 'a'\nidd = 1\n", ["unknown key", "models", "idd"]),
        ("[sources.x]\nzzz = 1\n", ["unknown key", "sources", "zzz"]),
        ('[server]\nport = "2"\n', ["server.port", "Expected `int`"]),
        ("[server]\nport = true\n", ["server.port"]),
        ("[[models]]\n", ["models", "missing required field `id`"]),
        ('mode = "never"\n', ["mode", "never"]),
        ("[server\n", ["not valid TOML", "line 1"]),
        ("a = 1\na = 2\n", ["not valid TOML"]),
        ("a = " + "[" * 10_000, ["not valid TOML"]),
        ('"new\\nline" = 1\n', ["unknown key", "new"]),
        ('[server]\nkeys = ""\n', ["server.keys", "path"]),
    ],
)
def test_errors_name_file_and_key_in_one_line(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(text, tmp_path)
    message = caught.value.message
    assert message.startswith(str(tmp_path / "neuron.toml") + ": ")
    assert message.isprintable()
    assert len(message) < 500
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("variable", "value"), [("N_PORT", "x"), ("N_PORT", "1.5"), ("N_OPEN", "maybe"), ("N_MODE", "x"), ("N_LIMIT", "-")]
)
def test_a_bad_variable_is_named(tmp_path: Path, variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"environment variable {variable}: "):
        _load(None, tmp_path, {variable: value})


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_settings(Settings, tmp_path / "absent", {}, {})
    with pytest.raises(ConfigError, match="not a regular file"):
        load_settings(Settings, tmp_path, {}, {})
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="not a regular file"):
        load_settings(Settings, tmp_path / "fifo", {}, {})
    (tmp_path / "latin").write_bytes(b'a = "\xe9"\n')
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_settings(Settings, tmp_path / "latin", {}, {})
    (tmp_path / "long").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="longer than"):
        load_settings(Settings, tmp_path / "long", {}, {})


def test_a_mapping_to_no_setting_is_our_own_mistake() -> None:
    with pytest.raises(KeyError):
        load_settings(Settings, None, {"X": "1"}, {"X": "server.prot"})


@given(st.text(max_size=200))
def test_any_text_gives_settings_or_a_config_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(text.encode("utf-8", "replace"))
    message = ""
    try:
        load_settings(Settings, path, {}, {})
    except ConfigError as error:
        message = error.message
    assert message.isprintable()
