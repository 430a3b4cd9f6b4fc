"""The `input` of a Responses request: a string, or items in the typed and the easy form, to chat messages.

Reasoning, message and function_call items that follow one another are one assistant turn, as templates expect it.
"""

from dataclasses import dataclass, field

from neuron.actors import limits
from neuron.actors.errors import ChainedConversationNotSupported, InvalidValue
from neuron.actors.request import Message, Part, Role, ToolCall
from neuron.api.validate.content import read_content
from neuron.api.validate.reader import Reader, as_object
from neuron.api.validate.tools import HOSTED, CallReader

_ROLES = ("system", "developer", "user", "assistant", "tool")
#: Records of tools that ran elsewhere; there is nothing in them for the model.
_HOSTED_CALLS = (*HOSTED, "custom_tool_call", "compaction")


@dataclass(slots=True)
class _Turn:
    """The assistant turn being put together."""

    reasoning: list[str] = field(default_factory=list)
    content: str | tuple[Part, ...] | None = None
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        return self.content is not None or bool(self.calls)


def read_input(reader: Reader) -> list[Message]:
    value = reader.get("input")
    if value is None:
        raise InvalidValue("'input' is missing.", param="input")
    if isinstance(value, str):
        return [Message(role=Role.USER, content=value)]
    items = reader.list("input", max_items=limits.MESSAGES.value) or []
    builder = _Builder()
    for index, item in enumerate(items):
        place = f"input[{index}]"
        builder.add(Reader(as_object(item, place), place))
    builder.close_turn()
    if not builder.messages:
        raise InvalidValue("'input' holds no message.", param="input")
    return builder.messages


class _Builder:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._turn: _Turn | None = None
        self._calls = CallReader()

    def add(self, reader: Reader) -> None:
        kind = reader.string("type")
        if kind is None and reader.get("role") is None:
            raise InvalidValue(f"'{reader.prefix}' has neither type nor role.", param=reader.prefix)
        if kind in (None, "message"):
            self._message(reader)
        elif kind == "function_call":
            turn = self._open()
            turn.calls.append(self._calls.call(reader, reader.string("call_id") or reader.string("id")))
        elif kind == "function_call_output":
            self.close_turn()
            self._output(reader)
        elif kind == "reasoning":
            self._reasoning(reader)
        elif kind == "item_reference":
            raise ChainedConversationNotSupported(
                f"'{reader.prefix}' refers to a stored item; this server stores none.", param=reader.prefix
            )
        elif not kind.startswith(_HOSTED_CALLS):
            raise InvalidValue(f"'{reader.prefix}' has the unknown type '{kind[:64]}'.", param=reader.at("type"))

    def close_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None or not (turn.answered or turn.reasoning):
            return
        self.messages.append(
            Message(
                role=Role.ASSISTANT,
                content=turn.content or "",
                reasoning="\n".join(turn.reasoning) or None,
                tool_calls=tuple(turn.calls),
            )
        )

    def _open(self) -> _Turn:
        if self._turn is None:
            self._turn = _Turn()
        return self._turn

    def _message(self, reader: Reader) -> None:
        role = Role(reader.choice("role", _ROLES) or "user")
        content = read_content(
            reader.get("content"), reader.at("content"), images=role is Role.USER, assistant=role is Role.ASSISTANT
        )
        if role is not Role.ASSISTANT:
            self.close_turn()
            call_id = reader.string("tool_call_id") if role is Role.TOOL else None
            self.messages.append(Message(role=role, content=content.body, tool_call_id=call_id))
            return
        if self._turn is not None and self._turn.answered:
            self.close_turn()
        turn = self._open()
        turn.content = content.body
        if content.reasoning:
            turn.reasoning.append(content.reasoning)

    def _output(self, reader: Reader) -> None:
        if reader.get("output") is None:
            raise InvalidValue(f"'{reader.at('output')}' is missing.", param=reader.at("output"))
        content = read_content(reader.get("output"), reader.at("output"), images=True)
        self.messages.append(Message(role=Role.TOOL, content=content.body, tool_call_id=reader.string("call_id")))

    def _reasoning(self, reader: Reader) -> None:
        if self._turn is not None and self._turn.answered:
            self.close_turn()
        texts = self._texts(reader, "content") or self._texts(reader, "summary")
        self._open().reasoning.extend(texts)

    @staticmethod
    def _texts(reader: Reader, key: str) -> list[str]:
        texts = []
        for index, item in enumerate(reader.list(key, max_items=limits.CONTENT_PARTS.value) or []):
            place = f"{reader.at(key)}[{index}]"
            text = Reader(as_object(item, place), place).string("text")
            if text:
                texts.append(text)
        return texts
