"""Tool calls, both forms, from ids and from text (TOOL-02 to TOOL-13)."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron.actors.events import ToolCallArguments, ToolCallStart
from neuron.actors.request import Tool, ToolChoice
from neuron.actors.text.types import Markers
from tests.actors.parser.harness import BARE, CALL, END_CALL, Model, cut, fold, parser, run, run_all
from tests.actors.parser.harness import IDS as MARKER_IDS

IDS = Model()


def xml(name: str, *parameters: tuple[str, str]) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


@pytest.mark.parametrize("arguments", ['{"id":42}', '{"ok":true}', '{"a":{"b":{"c":[]}}}', '{"s":"}{\\"}"}', "{}"])
@pytest.mark.parametrize("tail", ["}\n</tool_call>", "}</tool_call>", "}\n</tool_call>\n"])
def test_nested_and_closing_pieces(arguments: str, tail: str) -> None:
    out = run_all(["<tool_call>", '\n{"name":"f","arguments":', arguments, tail], BARE)
    assert len(out.calls) == 1
    assert json.loads(out.calls[0][1]) == json.loads(arguments)
    assert out.content == ""


@pytest.mark.parametrize(
    "text", ['<tool_call>{"name":"now","arguments":{}}</tool_call>', '<tool_call>{"name":"now"}</tool_call>']
)
def test_no_arguments(text: str) -> None:
    assert run_all(text, BARE).calls == [("now", "{}")]
    assert run_all("<tool_call>\n<function=now>\n</function>\n</tool_call>", BARE).calls == [("now", "{}")]


def test_arguments_as_a_json_string() -> None:
    assert run_all('<tool_call>{"name":"f","arguments":"{\\"a\\": 1}"}</tool_call>', BARE).calls == [("f", '{"a": 1}')]
    assert run_all('<tool_call>{"name":"f","arguments":""}</tool_call>', BARE).calls == [("f", "{}")]


def test_whitespace_of_values_is_kept() -> None:
    out = run_all(xml("edit", ("old", "    if x:\n        return 1\n")), BARE)
    assert json.loads(out.calls[0][1]) == {"old": "    if x:\n        return 1\n"}


def test_the_line_break_of_the_form_may_be_that_of_windows() -> None:
    form = xml("edit", ("old", "a\n b"), ("n", "7")).replace("\n", "\r\n")
    assert json.loads(run_all(form, BARE).calls[0][1]) == {"old": "a\r\n b", "n": 7}
    assert json.loads(run_all(xml("edit", ("old", "a\r\n")), BARE).calls[0][1]) == {"old": "a\r\n"}


@pytest.mark.parametrize("quote", ['"', "'"])
def test_quoted_names(quote: str) -> None:
    text = xml(f"{quote}edit{quote}", (f"{quote}n{quote}", "7"))
    assert run_all(text, BARE).calls == [("edit", '{"n": 7}')]


def test_types_from_the_schema() -> None:
    out = run_all(xml("edit", ("n", "7"), ("old", "007")), BARE)
    assert json.loads(out.calls[0][1]) == {"n": 7, "old": "007"}


def test_types_behind_a_reference_and_of_arguments_without_a_name() -> None:
    schema = {
        "$defs": {"Args": {"properties": {"path": {"type": "string"}}, "additionalProperties": {"type": "string"}}},
        "$ref": "#/$defs/Args",
    }
    tools = (Tool(name="edit", description="", parameters=schema, raw={}),)
    out = run_all(xml("edit", ("path", "007"), ("other", "3")), BARE, tools=tools)
    assert json.loads(out.calls[0][1]) == {"path": "007", "other": "3"}


def test_a_number_that_json_cannot_say_leaves_the_call() -> None:
    out = run_all(xml("edit", ("extra", '{"a": 1e999}')), BARE)
    assert json.loads(out.calls[0][1]) == {"extra": '{"a": 1e999}'}


def test_missing_opening_tag() -> None:
    text = "I will look.\n\n<function=glob>\n<parameter=pattern>\n*.md\n</parameter>\n</function>\n</tool_call>"
    out = run_all(text, BARE)
    assert (out.content.strip(), out.calls) == ("I will look.", [("glob", '{"pattern": "*.md"}')])
    assert run_all([text.removesuffix("</tool_call>"), END_CALL], IDS).same(run_all(text, BARE))
    undeclared = text.replace("glob", "frob")
    assert (run_all(undeclared, BARE).content, run_all(undeclared, BARE).calls) == (undeclared, [])
    assert run_all(text, BARE, tools=()).content == text


def test_text_after_a_call_without_tags() -> None:
    text = "<function=glob>\n<parameter=pattern>\nx\n</parameter>\n</function>\n\nthen"
    out = run_all(text, BARE)
    assert (out.content, len(out.calls)) == ("\n\nthen", 1)


def test_text_around_calls() -> None:
    call = '<tool_call>\n{"name":"say","arguments":{}}\n</tool_call>'
    out = run_all("First Tokyo." + call + "Then Paris." + call + "\n", BARE)
    assert out.content == "First Tokyo.Then Paris."
    assert len(out.calls) == 2
    starts = [delta for delta in out.deltas if isinstance(delta, ToolCallStart)]
    assert [start.index for start in starts] == [0, 1]
    assert starts[0].call_id != starts[1].call_id


def test_ids_are_distinct() -> None:
    call = '<tool_call>{"name":"say"}</tool_call>'
    ids = {d.call_id for _ in range(100) for d in run(call, BARE).deltas if isinstance(d, ToolCallStart)}
    assert len(ids) == 100


@pytest.mark.parametrize("options", [{"tools": ()}, {"choice": ToolChoice.NONE}])
def test_markup_is_text_when_calls_are_off(options: dict[str, object]) -> None:
    pieces = ["Write ", CALL, '\n{"name":"say","arguments":{}}\n', END_CALL, " like this."]
    out = run_all(pieces, IDS, **options)
    assert (out.content, out.calls) == ("".join(pieces), [])
    assert run_all("".join(pieces), BARE, **options).content == "".join(pieces)


def test_a_special_marker_that_gives_no_text_is_shown_all_the_same() -> None:
    machine = parser(IDS, tools=())
    deltas = machine.feed(MARKER_IDS["<tool_call>"], "") + machine.finish(truncated=False)
    assert fold(deltas).content == "<tool_call>"


def test_escapes_and_lone_surrogates() -> None:
    body = r'{"name":"say","arguments":{"t":"\ud83c\udf78 caf\u00e9\n\"q\" \\ tab\t","l":"\ud83c"}}'
    ((_, arguments),) = run_all(f"<tool_call>{body}</tool_call>", BARE).calls
    assert arguments.encode()
    assert json.loads(arguments) == {"t": '\U0001f378 café\n"q" \\ tab\t', "l": "\ufffd"}


def test_close_tags_inside_values() -> None:
    out = run_all(xml("edit", ("content", "ends with </parameter> here.")), BARE)
    assert json.loads(out.calls[0][1]) == {"content": "ends with </parameter> here."}
    value = "a </function> b </tool_call> c\n<tool_call> d < e <parameter"
    out = run_all(xml("edit", ("content", value), ("n", "1")), BARE)
    assert json.loads(out.calls[0][1]) == {"content": value, "n": 1}
    out = run_all('<tool_call>{"name":"say","arguments":{"t":"</tool_call>"}}</tool_call>', BARE)
    assert json.loads(out.calls[0][1]) == {"t": "</tool_call>"}
    out = run_all([CALL, '{"name":"say","arguments":{"t":"', END_CALL, '"}}', END_CALL], IDS)
    assert json.loads(out.calls[0][1]) == {"t": "</tool_call>"}


def test_missing_close_tags() -> None:
    text = "<tool_call>\n<function=edit>\n<parameter=old>\na\n<parameter=n>\n3\n</function>\n</tool_call>"
    assert run_all(text, BARE).calls == [("edit", '{"old": "a", "n": 3}')]
    text = "<tool_call>\n<function=edit>\n<parameter=old>\na\n</parameter>\n</tool_call>"
    assert run_all(text, BARE).calls == [("edit", '{"old": "a"}')]
    text = "<tool_call>\n<function=edit>\n<parameter=old>\na\n</parameter>\n</function>"
    assert run_all(text, BARE).calls == [("edit", '{"old": "a"}')]
    assert run_all('<tool_call>{"name":"say"}', BARE).calls == [("say", "{}")]


def test_two_calls_in_one_block_or_without_a_close() -> None:
    inner = "<function=say>\n<parameter=t>\n{}\n</parameter>\n</function>\n"
    out = run_all("<tool_call>\n" + inner.format(1) + inner.format(2) + "</tool_call>", BARE)
    assert [json.loads(a)["t"] for _, a in out.calls] == ["1", "2"]
    out = run_all("<tool_call>\n" + inner.format(1) + "<tool_call>\n" + inner.format(2) + "</tool_call>", BARE)
    assert [json.loads(a)["t"] for _, a in out.calls] == ["1", "2"]
    json_call = '<tool_call>\n{"name":"say"}\n'
    assert len(run_all(json_call * 3 + "</tool_call>", BARE).calls) == 3


UNPARSABLE = [
    '<tool_call>{"name":"a","arguments":{}}}</tool_call>',
    '<tool_call>{"name":"a","arguments":[1]}</tool_call>',
    '<tool_call>{"name":"a","arguments":{"x":NaN}}</tool_call>',
    '<tool_call>{"name":"a","arguments":{"x":1e999}}</tool_call>',
    '<tool_call>{"name":7}</tool_call>',
    '<tool_call>{"arguments":{}}</tool_call>',
    "<tool_call>{'name': 'a'}</tool_call>",
    "<tool_call>hello</tool_call>",
    "<tool_call></tool_call>",
    "<tool_call>\n<function=>\n</function>\n</tool_call>",
    "<tool_call>\n<function=say>\nloose text\n</function>\n</tool_call>",
    "<tool_call>\n<function=say",
    "</tool_call>",
    "text with <tool_call> in prose, and <function=nothing> too",
]


@pytest.mark.parametrize("text", UNPARSABLE)
def test_what_does_not_parse_is_verbatim(text: str) -> None:
    out = run_all("a " + text + " b", BARE)
    assert (out.content, out.calls) == ("a " + text + " b", [])


@pytest.mark.parametrize("text", UNPARSABLE)
def test_verbatim_also_with_marker_ids(text: str) -> None:
    marks = {str(CALL): CALL, str(END_CALL): END_CALL}
    pieces = [marks.get(part, part) for part in re.split("(</?tool_call>)", "a " + text) if part]
    out = run_all(pieces, IDS)
    assert (out.content, out.calls) == ("a " + text, [])


@pytest.mark.parametrize(
    "text", ["Use <function=say> to talk.", "A <tool_call> tag.", "<tool_call>{ x", "<tool_call>\n<function=say>\nx"]
)
def test_prose_about_calls_is_not_withheld(text: str) -> None:
    machine = parser(BARE)
    deltas = [delta for piece in cut(text + " More.", 1) for delta in machine.feed(0, piece)]
    assert fold(deltas).content == text + " More."


def test_calls_behind_a_broken_block_are_found() -> None:
    broken = '<tool_call>{"name": "say, "arguments": {}}</tool_call>\n'
    good = '<tool_call>{"name":"say"}</tool_call>'
    out = run_all(broken + good, BARE)
    assert (out.content, out.calls) == (broken, [("say", "{}")])


@pytest.mark.parametrize("text", ['<tool_call>{"name":"say","arguments":{"t":"ab', xml("edit", ("old", "ab"))[:-14]])
def test_a_cut_call_is_content(text: str) -> None:
    out = run_all("Well. " + text, BARE, truncated=True)
    assert (out.content, out.calls) == ("Well. " + text, [])


def test_a_cut_call_after_a_whole_one() -> None:
    call = '<tool_call>{"name":"say"}</tool_call>'
    out = run_all(call + "\n" + call[:-5], BARE, truncated=True)
    assert (out.content, out.calls) == ("\n" + call[:-5], [("say", "{}")])


def test_parallel_calls_off_ends_with_the_first() -> None:
    call = '<tool_call>{"name":"say"}</tool_call>'
    out = run_all(call + "\n" + call, BARE, parallel=False)
    assert (len(out.calls), out.stopped, out.stop) == (1, True, None)


def test_spelled_tags_beside_marker_ids_need_a_declared_tool() -> None:
    known = '<tool_call>{"name":"say"}</tool_call>'
    assert run_all(known, IDS).calls == [("say", "{}")]
    unknown = known.replace("say", "frob")
    assert (run_all(unknown, IDS).content, run_all(unknown, IDS).calls) == (unknown, [])
    assert run_all([CALL, '{"name":"frob"}', END_CALL], IDS).calls == [("frob", "{}")]


def test_long_arguments_come_in_fragments() -> None:
    text = "x" * 5000
    out = run(f'<tool_call>{{"name":"say","arguments":{{"t":"{text}"}}}}</tool_call>', BARE)
    fragments = [d.fragment for d in out.deltas if isinstance(d, ToolCallArguments)]
    assert len(fragments) == 5
    assert json.loads("".join(fragments)) == {"t": text}


def test_a_model_with_tags_of_its_own() -> None:
    model = Model(None, Markers(3, 4, "<seed:tool_call>", "</seed:tool_call>"))
    text = "<function=say>\n<parameter=t>\nhi </tool_call>\n</parameter>\n</function>\n</seed:tool_call>"
    assert run_all(["<seed:tool_call>\n" + text], model).calls == [("say", '{"t": "hi </tool_call>"}')]


values = st.text(st.sampled_from('ab \n\t<>/{}"\\é\U0001f98a=')) | st.text()


@given(old=values, content=values, size=st.integers(1, 9))
def test_values_written_by_a_template_come_back(old: str, content: str, size: int) -> None:
    """What the template's XML form writes for two string parameters is read back unchanged."""
    if any(tag in old + content for tag in ("</", "<parameter=", "<function=")):
        return
    text = xml("edit", ("old", old), ("content", content))
    out = run(cut(text, size), BARE)
    ((name, arguments),) = out.calls
    assert (name, json.loads(arguments)) == ("edit", {"old": old, "content": content})


@given(arguments=st.dictionaries(st.text(), st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text()))
def test_json_arguments_come_back(arguments: dict[str, Any]) -> None:
    for ascii_only in (True, False):
        text = json.dumps({"name": "say", "arguments": arguments}, ensure_ascii=ascii_only)
        out = run(cut(f"<tool_call>\n{text}\n</tool_call>", 3), BARE)
        ((_, read),) = out.calls
        assert json.loads(read) == arguments
