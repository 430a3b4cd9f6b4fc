"""TextModel: everything the daemon knows about a model's text side, built once at load (blocking)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuron.actors.errors import InvalidTokenizer
from neuron.actors.request import SamplingParams
from neuron.actors.scripted import ScriptError, read_script
from neuron.actors.sources.artifact import Format, ModelArtifact
from neuron.actors.text.content_forms import ContentForms
from neuron.actors.text.generation_defaults import read_generation_defaults, read_object
from neuron.actors.text.gguf_tokenizer import gguf_tokenizer
from neuron.actors.text.hf_tokenizer import hf_tokenizer, token_text
from neuron.actors.text.markers import REASONING_PAIRS, TOOL_CALL_PAIRS, find_markers
from neuron.actors.text.scripted_tokenizer import scripted_tokenizer
from neuron.actors.text.template import CHATML, ChatTemplate, find_template, gguf_template, script_template
from neuron.actors.text.tokenizer import SegmentTokenizer
from neuron.actors.text.types import Markers
from neuron.kernels.formats.errors import FormatError
from neuron.kernels.formats.gguf import open_gguf

#: What models from files can do: no front end for images is served yet.
TEXT_ONLY = ("text",)


@dataclass(slots=True, frozen=True)
class TextModel:
    """`own_template` is false when the ChatML fallback renders. `defaults`: the model's generation_config."""

    model_id: str
    tokenizer: SegmentTokenizer
    template: ChatTemplate
    reasoning: Markers | None
    tool_call: Markers | None
    defaults: SamplingParams
    own_template: bool
    capabilities: tuple[str, ...]
    #: Variables that templates expect beside the conversation: bos_token, eos_token, ...
    special_tokens: Mapping[str, str]
    #: Content forms by template source; filled by the renderer on first need.
    forms: dict[str, ContentForms] = field(default_factory=dict)


def load_text_model(artifact: ModelArtifact, *, use_chat_template: bool) -> TextModel:
    """Read tokenizer, template and defaults of `artifact`. Blocking; runs in a thread.

    `use_chat_template` false: the ChatML fallback, whatever the model has. Raises PreflightError subclasses.
    """
    match artifact.format:
        case Format.SCRIPTED:
            return _scripted(artifact, use_chat_template)
        case Format.GGUF:
            return _gguf(artifact, use_chat_template)
        case Format.SAFETENSORS:
            return _safetensors(artifact, use_chat_template)


def _assemble(
    artifact: ModelArtifact,
    tokenizer: SegmentTokenizer,
    template: ChatTemplate | None,
    defaults: SamplingParams,
    capabilities: tuple[str, ...],
    special_tokens: Mapping[str, str] | None = None,
) -> TextModel:
    chosen = CHATML if template is None else template
    return TextModel(
        model_id=artifact.model_id,
        tokenizer=tokenizer,
        template=chosen,
        reasoning=find_markers(tokenizer, REASONING_PAIRS),
        tool_call=find_markers(tokenizer, TOOL_CALL_PAIRS),
        defaults=defaults,
        own_template=template is not None,
        capabilities=capabilities,
        special_tokens={
            "bos_token": tokenizer.bos_token,
            "eos_token": tokenizer.eos_token,
            **(special_tokens or {}),
        },
    )


def _scripted(artifact: ModelArtifact, use_chat_template: bool) -> TextModel:
    try:
        script = read_script(artifact.weight_files[0])
    except ScriptError as error:
        raise InvalidTokenizer(str(error), model_id=artifact.model_id) from error
    own = ChatTemplate(default=script.chat_template) if script.chat_template is not None else None
    template = script_template(artifact, own) if use_chat_template else None
    return _assemble(artifact, scripted_tokenizer(script), template, SamplingParams(), script.capabilities)


def _gguf(artifact: ModelArtifact, use_chat_template: bool) -> TextModel:
    try:
        metadata = open_gguf(artifact.weight_files).metadata
    except FormatError as error:
        raise InvalidTokenizer(error.message, model_id=artifact.model_id) from error
    template = find_template(artifact, gguf_template(metadata)) if use_chat_template else None
    defaults = read_generation_defaults(artifact.directory, artifact.model_id)
    tokenizer = gguf_tokenizer(
        metadata,
        model_id=artifact.model_id,
        template_texts=template.texts if template else CHATML.texts,
        eos_ids=defaults.eos_ids if _same_vocabulary(artifact) else frozenset(),
    )
    return _assemble(artifact, tokenizer, template, defaults.sampling, TEXT_ONLY)


def _same_vocabulary(artifact: ModelArtifact) -> bool:
    return (artifact.directory / "generation_config.json").is_file()


def _safetensors(artifact: ModelArtifact, use_chat_template: bool) -> TextModel:
    template = find_template(artifact, None) if use_chat_template else None
    defaults = read_generation_defaults(artifact.directory, artifact.model_id)
    tokenizer = hf_tokenizer(
        artifact.directory,
        model_id=artifact.model_id,
        template_texts=template.texts if template else CHATML.texts,
        eos_ids=defaults.eos_ids,
    )
    config = read_object(artifact.directory / "tokenizer_config.json", artifact.model_id)
    named = {name: token_text(config.get(name)) for name in ("unk_token", "pad_token", "cls_token", "sep_token")}
    special_tokens = {name: text for name, text in named.items() if text}
    return _assemble(artifact, tokenizer, template, defaults.sampling, TEXT_ONLY, special_tokens)
