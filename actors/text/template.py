"""ChatTemplate: a model's chat templates, found in every place where repositories keep them."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from neuron.actors.errors import PreflightError, SourceUnreadable
from neuron.actors.sources.artifact import ModelArtifact
from neuron.actors.text.generation_defaults import read_object
from neuron.runtime.logs import get_logger

log = get_logger(__name__)
MAX_TEMPLATE_BYTES = 256 << 10


class InvalidTemplate(PreflightError):
    """A chat template that cannot be used at all (too long, not text)."""

    code = "template_error"


class ChatTemplate(msgspec.Struct, frozen=True):
    """`tool_use` renders requests with tools when the model has a template of its own for them."""

    default: str
    tool_use: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.default,) if self.tool_use is None else (self.default, self.tool_use)

    def source(self, *, with_tools: bool) -> str:
        return self.tool_use if with_tools and self.tool_use is not None else self.default


#: For models without a template, and for NEURON_USE_CHAT_TEMPLATE=false.
CHATML = ChatTemplate(
    default="{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text }}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def find_template(artifact: ModelArtifact, built_in: ChatTemplate | None) -> ChatTemplate | None:
    """The model's template; None (with one warning) when it has none.

    Precedence: the operator's file, chat_template.jinja (and additional_chat_templates/tool_use.jinja),
    chat_template.json, `built_in` (GGUF metadata, script), then tokenizer_config.json. A file that is there and
    cannot be used is an error, not a reason to take the next: raises InvalidTemplate, InvalidConfig, SourceUnreadable.
    """
    found = (
        operator_template(artifact)
        or _template_files(artifact)
        or _from_json(artifact, "chat_template.json")
        or built_in
        or _from_json(artifact, "tokenizer_config.json")
    )
    return _checked(artifact, found)


def script_template(artifact: ModelArtifact, own: ChatTemplate | None) -> ChatTemplate | None:
    """The operator's file or the script's own template; a script's folder holds other models too."""
    return _checked(artifact, operator_template(artifact) or own)


def _checked(artifact: ModelArtifact, found: ChatTemplate | None) -> ChatTemplate | None:
    if found is None:
        log.warning("the model has no chat template: falling back to ChatML", model=artifact.model_id)
        return None
    for text in found.texts:
        if len(text.encode(errors="replace")) > MAX_TEMPLATE_BYTES:
            raise InvalidTemplate(
                f"The chat template is longer than {MAX_TEMPLATE_BYTES >> 10} KiB.", model_id=artifact.model_id
            )
    return found


def gguf_template(metadata: Mapping[str, object]) -> ChatTemplate | None:
    """The template in GGUF metadata, with `tokenizer.chat_template.tool_use` where the file has one."""
    default = metadata.get("tokenizer.chat_template")
    tool_use = metadata.get("tokenizer.chat_template.tool_use")
    tools = tool_use if isinstance(tool_use, str) and tool_use else None
    if isinstance(default, str) and default:
        return ChatTemplate(default=default, tool_use=tools)
    return None if tools is None else ChatTemplate(default=tools)


def operator_template(artifact: ModelArtifact) -> ChatTemplate | None:
    """The file that the configuration names for this model. Raises InvalidTemplate when it cannot be read."""
    if artifact.chat_template_file is None:
        return None
    text = _read(artifact.chat_template_file, artifact.model_id, required=True)
    return None if text is None else ChatTemplate(default=text)


def _template_files(artifact: ModelArtifact) -> ChatTemplate | None:
    text = _read(artifact.directory / "chat_template.jinja", artifact.model_id)
    if text is None:
        return None
    tools = _read(artifact.directory / "additional_chat_templates" / "tool_use.jinja", artifact.model_id)
    return ChatTemplate(default=text, tool_use=tools)


def _read(path: Path, model_id: str, *, required: bool = False) -> str | None:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(content) > MAX_TEMPLATE_BYTES:
            raise InvalidTemplate(
                f"The chat template is longer than {MAX_TEMPLATE_BYTES >> 10} KiB.", model_id=model_id
            )
        return content.decode()
    except OSError as error:
        if required:
            raise InvalidTemplate("The configured chat template file cannot be read.", model_id=model_id) from error
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return None
        raise SourceUnreadable(f"{path.name} cannot be read: {error.strerror}.", model_id=model_id) from error
    except UnicodeDecodeError as error:
        raise InvalidTemplate("The chat template is not UTF-8 text.", model_id=model_id) from error


def _from_json(artifact: ModelArtifact, name: str) -> ChatTemplate | None:
    return _named(read_object(artifact.directory / name, artifact.model_id, strict=True).get("chat_template"))


def _named(value: object) -> ChatTemplate | None:
    """A template given as a string, or as a list of {name, template}, or as a mapping of names."""
    if isinstance(value, str):
        return ChatTemplate(default=value) if value else None
    names: dict[str, str] = {}
    if isinstance(value, list):
        for entry in value:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                names[str(entry.get("name"))] = entry["template"]
    elif isinstance(value, dict):
        names = {str(name): text for name, text in value.items() if isinstance(text, str)}
    if not names:
        return None
    default = names.get("default") or next(iter(names.values()))
    return ChatTemplate(default=default, tool_use=names.get("tool_use"))
