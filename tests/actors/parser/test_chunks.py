"""Whatever the text and however it is cut, the folded answer is the same, and nothing is lost."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from neuron.actors.request import ToolChoice
from tests.actors.parser.harness import BARE, CALL, CLOSE, END_CALL, OPEN, Mark, Model, run

FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "<function=say>",
    "<function=frob>",
    "</function>",
    "<parameter=t>",
    "<parameter=",
    "</parameter>",
    "<think>",
    "</think>",
    '{"name":"say","arguments":{"t":"x"}}',
    '{"name": "say',
    '{"a":[{}',
    "}",
    "]",
    '"',
    "\\",
    "\n",
    " ",
    "<",
    ">",
    "END",
    "E",
    "text",
    "é\u2028\U0001f98a",
    "<tool_call>\n<function=edit>\n<parameter=old>\na\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
]
MARKS = [OPEN, CLOSE, CALL, END_CALL]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)
pieces = st.lists(st.sampled_from(MARKS) | texts, max_size=8)
stops = st.lists(st.sampled_from(["END", "E", "xt<", "\n\n", "</"]), max_size=2)


def cut_at(items: Sequence[str], sizes: Sequence[int]) -> list[str]:
    out: list[str] = []
    step = 0
    for item in items:
        if isinstance(item, Mark):
            out.append(item)
            continue
        start = 0
        while start < len(item):
            size = sizes[step % len(sizes)]
            step += 1
            out.append(item[start : start + size])
            start += size
    return out


def joined(items: Sequence[str]) -> list[str]:
    out: list[str] = []
    for item in items:
        if out and not isinstance(item, Mark) and not isinstance(out[-1], Mark):
            out[-1] += item
        else:
            out.append(item)
    return out


@settings(max_examples=1500, deadline=None)
@given(
    items=pieces,
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    stop=stops,
    opens=st.booleans(),
    truncated=st.booleans(),
    ids=st.booleans(),
    parallel=st.booleans(),
)
def test_any_cut_gives_the_same(
    items: list[str],
    sizes: list[int],
    stop: list[str],
    opens: bool,
    truncated: bool,
    ids: bool,
    parallel: bool,
) -> None:
    model = Model() if ids else BARE
    sources = joined(items if ids else [str.__str__(item) for item in items])
    whole = run(sources, model, stop=stop, opens=opens, truncated=truncated, parallel=parallel)
    cut = run(cut_at(sources, sizes), model, stop=stop, opens=opens, truncated=truncated, parallel=parallel)
    assert cut.same(whole)


@settings(max_examples=300, deadline=None)
@given(text=texts, choice=st.sampled_from([ToolChoice.NONE, ToolChoice.AUTO]))
def test_without_tools_or_calls_every_character_arrives(text: str, choice: ToolChoice) -> None:
    text = "." + text
    out = run(text, BARE, tools=(), choice=choice)
    assert (out.content, out.reasoning, out.calls) == (text, "", [])


@settings(max_examples=300, deadline=None)
@given(text=texts)
def test_a_cut_answer_without_whole_calls_is_verbatim(text: str) -> None:
    text = "." + text
    out = run(text, BARE, truncated=True)
    if not out.calls:
        assert out.content == text
