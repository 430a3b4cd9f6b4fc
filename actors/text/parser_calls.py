"""Delivers whole tool calls as events: ids, indexes and argument fragments. Used by the output parser only."""

import secrets
from collections.abc import Callable, Sequence

from neuron.actors.events import ToolCallArguments, ToolCallEnd, ToolCallStart
from neuron.actors.text.parser_channels import ContentChannel
from neuron.actors.text.parser_output import DeltaSink
from neuron.actors.text.tool_calls import ParsedCall

#: Characters of one argument fragment.
FRAGMENT = 1024


def new_call_id() -> str:
    return "call_" + secrets.token_hex(12)


class CallDelivery:
    """`one_call`: the answer ends with its first call."""

    def __init__(self, sink: DeltaSink, content: ContentChannel, *, one_call: bool, call_id: Callable[[], str]) -> None:
        self._sink = sink
        self._content = content
        self._one_call = one_call
        self._call_id = call_id
        #: Calls delivered so far.
        self.count = 0

    def deliver(self, calls: Sequence[ParsedCall], *, logprobs: int) -> bool:
        """True when the answer ends here. `logprobs`: those noted before the block, which stay; markup has none."""
        self._content.pause()
        self._sink.forget(logprobs)
        self._content.after_call()
        for call in calls:
            index = self.count
            self._sink.event(ToolCallStart(index, self._call_id(), call.name))
            for start in range(0, len(call.arguments), FRAGMENT):
                self._sink.event(ToolCallArguments(index, call.arguments[start : start + FRAGMENT]))
            self._sink.event(ToolCallEnd(index, call.arguments))
            self.count += 1
            if self._one_call:
                return True
        return False
