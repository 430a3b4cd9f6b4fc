"""A template is found wherever repositories keep it."""

import json
from pathlib import Path

import pytest

from neuron.actors.errors import InvalidConfig, SourceUnreadable
from neuron.actors.sources.artifact import Format, ModelArtifact
from neuron.actors.text.template import ChatTemplate, InvalidTemplate, find_template, gguf_template


def artifact(directory: Path, override: Path | None = None) -> ModelArtifact:
    return ModelArtifact(
        model_id="test/model",
        source_id="dir:test/model",
        format=Format.SAFETENSORS,
        directory=directory,
        weight_files=(),
        chat_template_file=override,
    )


def put(directory: Path, **files: object) -> None:
    for name, content in files.items():
        path = directory / name.replace("__", ".")
        path.write_text(content if isinstance(content, str) else json.dumps(content))


NAMED = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chat_template__jinja": "file"}, ChatTemplate(default="file")),
        ({"chat_template__json": {"chat_template": "json"}}, ChatTemplate(default="json")),
        ({"tokenizer_config__json": {"chat_template": "string"}}, ChatTemplate(default="string")),
        ({"tokenizer_config__json": {"chat_template": NAMED}}, ChatTemplate(default="d", tool_use="t")),
        (
            {"chat_template__jinja": "file", "tokenizer_config__json": {"chat_template": "string"}},
            ChatTemplate(default="file"),
        ),
        (
            {"chat_template__json": {"chat_template": "json"}, "tokenizer_config__json": {"chat_template": "string"}},
            ChatTemplate(default="json"),
        ),
    ],
)
def test_places(tmp_path: Path, files: dict[str, object], expected: ChatTemplate) -> None:
    put(tmp_path, **files)
    assert find_template(artifact(tmp_path), None) == expected


def test_the_operators_file_wins(tmp_path: Path) -> None:
    put(tmp_path, chat_template__jinja="file", mine__jinja="mine")
    assert find_template(artifact(tmp_path, tmp_path / "mine.jinja"), None) == ChatTemplate(default="mine")
    with pytest.raises(InvalidTemplate):
        find_template(artifact(tmp_path, tmp_path / "absent.jinja"), None)


def test_named_template_files(tmp_path: Path) -> None:
    put(tmp_path, chat_template__jinja="file")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert find_template(artifact(tmp_path), None) == ChatTemplate(default="file", tool_use="tools")


def test_gguf_metadata() -> None:
    assert gguf_template({}) is None
    assert gguf_template({"tokenizer.chat_template": "x"}) == ChatTemplate(default="x")
    both = {"tokenizer.chat_template": "x", "tokenizer.chat_template.tool_use": "t"}
    assert gguf_template(both) == ChatTemplate(default="x", tool_use="t")
    assert gguf_template({"tokenizer.chat_template": 3}) is None


def test_none_is_one_warning_that_names_the_fallback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, tokenizer_config__json={})
    assert find_template(artifact(tmp_path), None) is None
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("falling back to ChatML") == 1


@pytest.mark.parametrize("name", ["chat_template.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"{", b'"text"', b"[" * 100_000, b"\xff"])
def test_a_file_that_cannot_be_used_is_not_passed_over(tmp_path: Path, name: str, content: bytes) -> None:
    """Another template would answer, and nobody would know why the answers are bad."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidConfig):
        find_template(artifact(tmp_path), None)


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"])
def test_a_file_that_cannot_be_read_is_not_passed_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(SourceUnreadable):
        find_template(artifact(tmp_path), None)


def test_templates_over_the_cap_are_refused(tmp_path: Path) -> None:
    put(tmp_path, chat_template__jinja="x" * (256 << 10))
    assert find_template(artifact(tmp_path), None) is not None
    put(tmp_path, chat_template__jinja="x" * ((256 << 10) + 1))
    with pytest.raises(InvalidTemplate):
        find_template(artifact(tmp_path), None)
    (tmp_path / "chat_template.jinja").unlink()
    put(tmp_path, tokenizer_config__json={"chat_template": "x" * ((256 << 10) + 1)})
    with pytest.raises(InvalidTemplate):
        find_template(artifact(tmp_path), None)
