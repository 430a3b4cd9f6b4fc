"""Cuts a rendered prompt into control and data segments, and reads its reasoning state."""

from collections.abc import Sequence

from neuron.actors.text.build import TextModel
from neuron.actors.text.types import Segment

#: Characters a template may write after the open marker of its generation prompt.
_LONGEST_TAIL = 4096


def to_segments(text: str, data_spans: Sequence[tuple[int, int]]) -> tuple[Segment, ...]:
    """Everything is control text except the spans. Joined, the segments are `text`."""
    segments: list[Segment] = []
    done = 0
    for start, end in sorted(data_spans):
        begin = max(start, done)
        if end <= begin:
            continue
        if begin > done:
            segments.append(Segment(text=text[done:begin], control=True))
        segments.append(Segment(text=text[begin:end], control=False))
        done = end
    if done < len(text) or not segments:
        segments.append(Segment(text=text[done:], control=True))
    return tuple(segments)


def opens_reasoning(model: TextModel, segments: Sequence[Segment]) -> bool:
    """True when the prompt ends inside a think block: the last marker opens, and no turn ends after it.

    Only control segments count, so that markers typed by a user have no effect.
    """
    markers = model.reasoning
    if markers is None:
        return False
    stops = model.tokenizer.special_texts - {markers.open_text, markers.close_text}
    tail = ""
    for segment in reversed(segments):
        if segment.control:
            opened = segment.text.rfind(markers.open_text)
            if segment.text.rfind(markers.close_text) > opened:
                return False
            if opened >= 0:
                tail = segment.text[opened + len(markers.open_text) :] + tail
                return len(tail) <= _LONGEST_TAIL and not any(text in tail for text in stops)
            tail = segment.text + tail
        if len(tail) > _LONGEST_TAIL:
            return False
    return False
