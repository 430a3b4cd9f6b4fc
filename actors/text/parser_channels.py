"""The two channels of an answer, content and reasoning: blank text at their edges, and content's stop strings."""

from dataclasses import dataclass

from neuron.actors.text.parser_output import DeltaSink
from neuron.actors.text.parser_stops import StopFilter

#: Newlines withheld at the end of reasoning; more are shown.
MAX_NEWLINES = 64
#: Blank characters withheld between calls; more are content.
MAX_BLANK = 1024


@dataclass(slots=True)
class ContentChannel:
    """Content: newlines right after reasoning are dropped; blank text after a call waits for what follows it."""

    sink: DeltaSink
    stops: StopFilter
    _skip_newlines: bool = False
    _after_call: bool = False
    _blank: str = ""

    def push(self, text: str) -> None:
        if self._skip_newlines:
            text = text.lstrip("\n")
            self._skip_newlines = not text
        if self._after_call:
            self._blank += text
            if not self._blank or (self._blank.isspace() and len(self._blank) <= MAX_BLANK):
                return
            text, self._blank, self._after_call = self._blank, "", False
        self.sink.text(self.stops.push(text))

    def after_reasoning(self) -> None:
        self._skip_newlines = True

    def pause(self) -> None:
        """Something else begins, or the answer ends: no stop string can reach across."""
        self.sink.text(self.stops.release())

    def after_call(self) -> None:
        self._blank, self._after_call, self._skip_newlines = "", True, False


@dataclass(slots=True)
class ReasoningChannel:
    """Reasoning: newlines at both ends belong to the markers."""

    sink: DeltaSink
    #: The next character begins a line.
    line_start: bool = True
    _skip_newlines: bool = True
    _newlines: str = ""

    def begin(self) -> None:
        self.line_start, self._skip_newlines, self._newlines = True, True, ""

    def push(self, text: str) -> None:
        if self._skip_newlines:
            text = text.lstrip("\n")
            self._skip_newlines = not text
        if not text:
            return
        whole = self._newlines + text
        held = min(len(whole) - len(whole.rstrip("\n")), MAX_NEWLINES)
        shown = len(whole) - held
        self._newlines = whole[shown:]
        self.line_start = held > 0
        self.sink.text(whole[:shown], reasoning=True)

    def end(self) -> None:
        self._newlines = ""
