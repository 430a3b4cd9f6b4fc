"""InferenceRequest: what every front door maps its body to, validated once."""

from enum import StrEnum
from typing import Any

import msgspec


class Role(StrEnum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ImagePart(msgspec.Struct, frozen=True, tag="image"):
    """The URL as sent; only data URIs are ever decoded. `where` names the place for error messages."""

    url: str
    where: str


Part = TextPart | ImagePart


class ToolCall(msgspec.Struct, frozen=True):
    """`arguments` is a mapping where the client's text parsed to one, else that text."""

    id: str | None
    name: str
    arguments: dict[str, Any] | str


class Message(msgspec.Struct, frozen=True):
    role: Role
    content: str | tuple[Part, ...] = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class Tool(msgspec.Struct, frozen=True):
    """`parameters` is a JSON schema; `raw` is the tool as sent in chat form, for the template."""

    name: str
    description: str
    parameters: dict[str, Any]
    raw: dict[str, Any]


class ToolChoice(StrEnum):
    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    NAMED = "named"


class ResponseFormat(msgspec.Struct, frozen=True):
    """`kind`: "text", "json_object" or "json_schema" (then `schema` is set)."""

    kind: str = "text"
    schema: dict[str, Any] | None = None


class SamplingParams(msgspec.Struct, frozen=True):
    """None means: the model's generation_config, then the daemon's default (temperature 0.7, no truncation)."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


class Thinking(StrEnum):
    """What the request says about thinking; DEFAULT leaves it to the template."""

    DEFAULT = "default"
    ON = "on"
    OFF = "off"


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    req_id: str
    model: str
    messages: tuple[Message, ...]
    principal: str
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice.AUTO
    tool_choice_name: str | None = None
    parallel_tool_calls: bool = True
    response_format: ResponseFormat = ResponseFormat()
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    thinking: Thinking = Thinking.DEFAULT
    reasoning_effort: str | None = None
    template_kwargs: dict[str, Any] = {}
