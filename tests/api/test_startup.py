"""Settings from file, environment and command line; every mistake is one line that names its place."""

from pathlib import Path

import pytest

from neuron.actors.settings import Settings
from neuron.api.access import Access, Role
from neuron.api.startup import ServeOptions, config_path, gather_settings
from neuron.runtime.errors import ConfigError


def gather(tmp_path: Path, config: str = "", environment: dict[str, str] | None = None, **options: object) -> Settings:
    path = tmp_path / "neuron.toml"
    path.write_text(config)
    return gather_settings(ServeOptions(config=path, **options), environment or {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[server]\nprot = 1\n", "server.prot"),
        ("[serve]\nport = 1\n", "serve"),
        ("[server]\nport = 'x'\n", "port"),
        ("[server]\nport = 70000\n", "port"),
        ("[server]\nhost = '0.0.0.0'\n", "allow_unauthenticated"),
        ("[server]\napi_keys_file = '/nonexistent'\n", "keys"),
        ("[server]\ncors_origins = ['*']\n", "cors_origins"),
        ("[server]\ntrusted_peers = ['x']\n", "trusted_peers"),
        ("[limits]\nqueue_seconds = -1.0\n", "queue_seconds"),
        ("[limits]\nqueue_seconds = nan\n", "limits.queue_seconds"),
        ("[limits]\nstep_seconds = inf\n", "limits.step_seconds"),
        ("[server]\nshutdown_seconds = inf\n", "shutdown_seconds"),
        ("[server]\nshutdown_seconds = -5.0\n", "shutdown_seconds"),
        ("[recovery]\nrestart_window_seconds = 0.0\n", "restart_window_seconds"),
        ("[recovery]\nrestart_budget = -1\n", "restart_budget"),
        ("[residency]\nkeep_alive_seconds = nan\n", "keep_alive_seconds"),
        ("[limits]\nprefill_chunk_tokens = 0\n", "prefill_chunk_tokens"),
        ("[logging]\nlevel = 'loud'\n", "loud"),
        ("[logging]\nformat = 'xml'\n", "format"),
        ("default_source = 'nope'\n", "nope"),
        ("enable_scripted = true\n", "enable_scripted"),
        ("[sources.s]\nkind = 'scripted'\npath = '/x'\n", "scripted"),
        ("[sources.s]\nkind = 'ftp'\n", "ftp"),
        ("[[models]]\nid = 'demo:a/b'\ndevices = ['cuda:9']\n", "cuda:9"),
        ("[[models]]\nid = 'nope'\n", "org/name"),
        ("[[models]]\nid = 'a/../b'\n", "a/../b"),
        ("[[models]]\nid = 'other:a/b'\n", "'other' is not configured"),
        ("[[models]]\nid = 'demo:a/b'\ntensor_parallel = 0\n", "tensor_parallel"),
        ("[[models]]\nid = 'demo:a/b'\nkeep_alive_seconds = nan\n", "keep_alive_seconds"),
        ("[[models]]\nid = 'demo:a/b'\nmax_context = -1\n", "max_context"),
        ("[[models]]\nquant = 'q8'\n", "id"),
        ("not toml", "TOML"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, config: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Access(gather(tmp_path, config).server)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NEURON_PORT", "x"),
        ("NEURON_PREFILL_CHUNK_TOKENS", "0"),
        ("NEURON_MAX_PROMPT_TOKENS", "many"),
        ("NEURON_LOG", "loud"),
        ("NEURON_USE_CHAT_TEMPLATE", "maybe"),
    ],
)
def test_mistakes_in_the_environment(tmp_path: Path, variable: str, value: str) -> None:
    with pytest.raises(ConfigError):
        gather(tmp_path, environment={variable: value})


def test_the_command_line_beats_the_environment_beats_the_file(tmp_path: Path) -> None:
    config = "[server]\nhost = '127.0.0.2'\nport = 1\n[logging]\nlevel = 'error'\n"
    assert gather(tmp_path, config).server.port == 1
    assert gather(tmp_path, config, {"NEURON_PORT": "2"}).server.port == 2
    settings = gather(tmp_path, config, {"NEURON_PORT": "2", "NEURON_LOG": "debug"}, port=3, log_level="trace")
    assert (settings.server.host, settings.server.port, settings.logging.level) == ("127.0.0.2", 3, "trace")


def test_every_variable_of_the_contract(tmp_path: Path) -> None:
    settings = gather(
        tmp_path,
        environment={
            "NEURON_PREFILL_CHUNK_TOKENS": "64",
            "NEURON_MAX_PROMPT_TOKENS": "1000",
            "NEURON_MIN_FREE_VRAM_MB": "0",
            "NEURON_USE_CHAT_TEMPLATE": "false",
            "NEURON_DEFAULT_MAX_TOKENS": "99",
            "NEURON_LOG": "debug",
            "NEURON_HOST": "127.0.0.3",
            "NEURON_PORT": "5",
        },
    )
    limits = settings.limits
    assert (limits.prefill_chunk_tokens, limits.max_prompt_tokens, limits.default_max_tokens) == (64, 1000, 99)
    assert (limits.min_free_vram_mb, settings.use_chat_template, settings.logging.level) == (0, False, "debug")
    assert (settings.server.host, settings.server.port) == ("127.0.0.3", 5)


def test_models_of_the_command_line_follow_those_of_the_file(tmp_path: Path) -> None:
    settings = gather(tmp_path, "[[models]]\nid = 'demo:a/b'\nquant = 'q8_0'\n", models=("demo:a/b", "demo:c/d"))
    assert [(model.id, model.quant) for model in settings.models] == [("demo:a/b", "q8_0"), ("demo:c/d", None)]


def test_which_file_is_read(tmp_path: Path) -> None:
    assert config_path(tmp_path, {"NEURON_CONFIG": "/x"}) == tmp_path
    assert config_path(None, {"NEURON_CONFIG": "/x"}) == Path("/x")
    with pytest.raises(ConfigError):
        gather_settings(ServeOptions(config=tmp_path / "absent"), {})


def test_credentials_of_the_unit_are_the_key_files(tmp_path: Path) -> None:
    for name in ("api-keys", "admin-keys"):
        (tmp_path / name).write_text(f"{name}-secret\n")
    environment = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    server = gather_settings(ServeOptions(), environment).server
    assert (server.api_keys_file, server.admin_keys_file) == (tmp_path / "api-keys", tmp_path / "admin-keys")
    keys = Access(server).keys
    assert (keys.role("api-keys-secret"), keys.role("admin-keys-secret")) == (Role.INFER, Role.ADMIN)
    other = tmp_path / "other"
    other.write_text("x\n")
    config = tmp_path / "neuron.toml"
    config.write_text(f'[server]\napi_keys_file = "{other}"\n')
    assert gather_settings(ServeOptions(config=config), environment).server.api_keys_file == other
    assert gather_settings(ServeOptions(), {}).server.api_keys_file is None


def test_a_name_that_means_two_models_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "neuron.toml"
    config.write_text('[[models]]\nid = "demo:a/b"\naliases = ["x"]\n[[models]]\nid = "demo:c/d"\naliases = ["X"]\n')
    with pytest.raises(ConfigError, match="both demo:a/b and demo:c/d"):
        gather_settings(ServeOptions(config=config), {})
    config.write_text("[residency]\nkeep_alive_seconds = 0\n")
    with pytest.raises(ConfigError, match="keep_alive_seconds"):
        gather_settings(ServeOptions(config=config), {})


def test_a_model_named_on_the_command_line_is_loaded_at_start_as_configured(tmp_path: Path) -> None:
    config = '[[models]]\nid = "demo:a/b"\naliases = ["small"]\nmax_context = 9\nat_start = false\n'
    for name in ("demo:a/b", "small"):
        (model,) = gather(tmp_path, config, models=(name,)).models
        assert (model.id, model.max_context, model.at_start) == ("demo:a/b", 9, True)
    assert [model.at_start for model in gather(tmp_path, config, models=("demo:c/d",)).models] == [False, True]
