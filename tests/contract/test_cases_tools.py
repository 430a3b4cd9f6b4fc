"""Field cases of section E over HTTP, streamed and not, each text cut in several ways. Named after the case."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.asking import SIZES, Answer, ask, cut, function, script
from tests.harness.daemon import DaemonProcess

STR: dict[str, Any] = {"type": "string"}
TOOLS = [
    function("rm"),
    function("now"),
    function("say", t=STR),
    function("glob", pattern=STR),
    function("edit", old=STR, content=STR, n={"type": "integer"}),
    function("set", id={"type": "integer"}, ok={"type": "boolean"}, a={"type": "object"}, s=STR),
    function(
        "typed",
        whole={"type": "integer"},
        date={"type": "integer"},
        number={"type": "number"},
        flag={"type": "boolean"},
        code=STR,
        word=STR,
        quoted=STR,
        obj={"type": "object"},
        arr={"type": "array"},
        maybe={"anyOf": [STR, {"type": "null"}]},
    ),
]
NESTED = [{"id": 42}, {"ok": True}, {"a": {"b": {"c": []}}}, {"s": '}{"}'}]
XML = "<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def call(name: str, arguments: Any) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def xml(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return XML.format(name=name, parameters=parameters)


INDENTED = "    if x:\n        return 1\n"
TYPED = {
    "whole": "7",
    "date": "2026-01-15",
    "number": "1e3",
    "flag": "True",
    "code": "007",
    "word": "null",
    "quoted": '"q"',
    "obj": '{"a": 1}',
    "arr": "[1, 2]",
    "maybe": "null",
    "extra": "5",
}
MISSING = "I will look.\n\n<function=glob>\n<parameter=pattern>\n*.md\n</parameter>\n</function>\n</tool_call>"
UNDECLARED = MISSING.replace("glob", "frob").removesuffix("\n</tool_call>")
FENCED = "```\n" + MISSING.removesuffix("\n</tool_call>") + "\n```"
LITERAL = "ends with </parameter> here."
ESCAPED = r'{"name":"say","arguments":{"t":"\ud83c\udf78 caf\u00e9\n\"q\" \\ tab\t"}}'
LONE = r'{"name":"say","arguments":{"t":"\ud83c"}}'
#: name -> what the model says
TEXTS = {
    **{f"nested {index}": call("set", arguments) for index, arguments in enumerate(NESTED)},
    "no arguments": call("now", {}),
    "no arguments key": '<tool_call>\n{"name": "now"}\n</tool_call>',
    "no parameters": XML.format(name="now", parameters=""),
    "whitespace": xml("edit", old=INDENTED),
    "blank lines": xml("edit", old="\n\n a\n\n"),
    "empty value": xml("edit", old=""),
    "types": xml("typed", **TYPED),
    "missing tag": MISSING,
    "undeclared": UNDECLARED,
    "fenced": FENCED,
    "around": "First Tokyo." + call("rm", {}) + "Then Paris." + call("now", {}) + "\n",
    "explained": "Write " + call("rm", {}) + " to call.",
    "escapes": f"<tool_call>\n{ESCAPED}\n</tool_call>",
    "lone": f"<tool_call>\n{LONE}\n</tool_call>",
    "literal": xml("edit", content=LITERAL),
    "literal two": xml("edit", content=LITERAL, n="3"),
    "cut": call("rm", {"path": "a"}),
}
SPELLED = ["Write ", "<", "tool", "_call>", '{"name": "rm", "arguments": {}}', "</", "tool_call>", " to call."]


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    cases = {f"{name} by {size}": cut(text, size) for name, text in TEXTS.items() for size in SIZES}
    with DaemonProcess({"tools": script({**cases, "spelled": SPELLED})}) as daemon:
        yield daemon


def all_cuts(daemon: DaemonProcess, name: str, **fields: Any) -> Answer:
    """The same answer for every cut, streamed and not."""
    fields.setdefault("tools", TOOLS)
    answers = [ask(daemon, "tools", f"{name} by {size}", **fields) for size in SIZES]
    first = answers[0]
    for other in answers[1:]:
        assert other.shown()[:4] == first.shown()[:4]
    return first


@pytest.mark.parametrize("index", range(len(NESTED)))
def test_tool_02_nested_braces(daemon: DaemonProcess, index: int) -> None:
    answer = all_cuts(daemon, f"nested {index}")
    assert answer.calls == [("set", NESTED[index])]
    assert (answer.content, answer.finish) == ("", "tool_calls")


@pytest.mark.parametrize("name", ["no arguments", "no arguments key", "no parameters"])
def test_tool_03_no_arguments(daemon: DaemonProcess, name: str) -> None:
    assert all_cuts(daemon, name).calls == [("now", {})]


@pytest.mark.parametrize(
    ("name", "value"), [("whitespace", INDENTED), ("blank lines", "\n\n a\n\n"), ("empty value", "")]
)
def test_tool_04_whitespace_of_xml_values(daemon: DaemonProcess, name: str, value: str) -> None:
    assert all_cuts(daemon, name).calls == [("edit", {"old": value})]


def test_tool_05_types_from_the_schema(daemon: DaemonProcess) -> None:
    [(name, arguments)] = all_cuts(daemon, "types").calls
    assert name == "typed"
    assert arguments == {
        "whole": 7,
        "date": "2026-01-15",
        "number": 1000.0,
        "flag": True,
        "code": "007",
        "word": "null",
        "quoted": '"q"',
        "obj": {"a": 1},
        "arr": [1, 2],
        "maybe": None,
        "extra": 5,
    }


def test_tool_07_missing_opening_tag(daemon: DaemonProcess) -> None:
    answer = all_cuts(daemon, "missing tag")
    assert (answer.content.rstrip(), answer.calls) == ("I will look.", [("glob", {"pattern": "*.md"})])
    undeclared = all_cuts(daemon, "undeclared")
    assert (undeclared.content, undeclared.calls, undeclared.finish) == (UNDECLARED, [], "stop")
    fenced = all_cuts(daemon, "fenced", tools=None)
    assert (fenced.content, fenced.calls) == (FENCED, [])


def test_tool_08_text_around_calls(daemon: DaemonProcess) -> None:
    answer = all_cuts(daemon, "around")
    assert answer.calls == [("rm", {}), ("now", {})]
    assert answer.content.rstrip("\n") == "First Tokyo.Then Paris."
    assert answer.finish == "tool_calls"
    assert len(set(answer.ids)) == 2


@pytest.mark.parametrize("fields", [{"tools": None}, {"tool_choice": "none"}])
def test_tool_10_choice_none_eats_no_text(daemon: DaemonProcess, fields: dict[str, Any]) -> None:
    answer = all_cuts(daemon, "explained", **fields)
    assert (answer.content, answer.calls, answer.finish) == (TEXTS["explained"], [], "stop")
    spelled = ask(daemon, "tools", "spelled", **{"tools": TOOLS, **fields})
    assert (spelled.content, spelled.calls, spelled.finish) == ("".join(SPELLED), [], "stop")


def test_tool_11_ids_and_history(daemon: DaemonProcess) -> None:
    ids: set[str] = set()
    for _ in range(25):
        answer = ask(daemon, "tools", "around by 0", tools=TOOLS)
        assert all(answer.ids)
        ids.update(answer.ids)
    assert len(ids) == 50
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "list"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": None, "type": "function", "function": {"name": "rm", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": None, "content": "done"},
        {"role": "user", "content": "case around by 0!"},
    ]
    assert len(ask(daemon, "tools", history, tools=TOOLS).calls) == 2
    del history[1]["tool_calls"][0]["id"], history[2]["tool_call_id"]
    assert len(ask(daemon, "tools", history, tools=TOOLS).calls) == 2


def test_tool_12_escapes(daemon: DaemonProcess) -> None:
    assert all_cuts(daemon, "escapes").calls == [("say", {"t": '\U0001f378 café\n"q" \\ tab\t'})]
    lone = all_cuts(daemon, "lone")
    assert lone.calls in ([("say", {"t": "\ufffd"})], []), "replaced, or the block comes back as text"
    assert lone.calls or LONE in lone.content


@pytest.mark.parametrize(("name", "more"), [("literal", {}), ("literal two", {"n": 3})])
def test_tool_13_literal_close_tag(daemon: DaemonProcess, name: str, more: dict[str, Any]) -> None:
    assert all_cuts(daemon, name).calls == [("edit", {"content": LITERAL, **more})]


@pytest.mark.parametrize("limit", [2, 3])
def test_a_call_that_the_limit_cuts_is_text(daemon: DaemonProcess, limit: int) -> None:
    answer = ask(daemon, "tools", "cut by 8", tools=TOOLS, max_tokens=limit)
    assert (answer.calls, answer.finish) == ([], "length")
    assert TEXTS["cut"].startswith(answer.content)
    assert answer.content.startswith("<tool_call>\n")
