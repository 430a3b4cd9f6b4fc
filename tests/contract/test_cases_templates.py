"""Field cases of section F over HTTP, and whole agent turns with published templates as the script's own."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.contract.asking import EOS, MARKS, ask, ask_status, function, script
from tests.harness.daemon import DaemonProcess

TEMPLATES = Path(__file__).parents[1] / "data" / "templates"
ITEMS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{% for k, v in c.function.arguments|items %}[{{ k }}={{ v }}{{ '#' if v is number }}]{% endfor %}{% endfor %}"
    "{% endfor %}"
)
BLOCKS = (
    "{% for m in messages %}\n  {% if m.role == 'user' %}\n<U>{{ m.content }}</U>\n  {% endif %}\n{% endfor %}\n<A>\n"
)
FLAVOURED = """{%- macro wrap(text, mark='|') %}{{ mark ~ text ~ mark }}{% endmacro %}
{%- set ns = namespace(found=-1, seen=0) %}
{%- for m in messages[::-1] %}
  {%- set at = messages|length - 1 - loop.index0 %}
  {%- if m.role == 'user' and m.content is string and not (m.content.startswith('<tool_response>') and
      m.content.endswith('</tool_response>')) %}
    {%- set ns.found = at %}{% break %}
  {%- endif %}
{%- endfor %}
{%- for k, v in {'a': 1}.items() %}{{ wrap(k) }}{% endfor %}
{%- for k, v in {'b': 2}|items %}{{ wrap(v, mark='!') }}{% endfor %}
{{- messages is iterable }}{{ messages[0] is mapping }}{{ nothing is defined }}
{{- 'found=' ~ ns.found }}{{ wrap('a</think>\\n\\n b '.split('</think>')[-1].lstrip('\\n')) }}"""
HELPERS = (
    "{% generation %}x{% endgeneration %}"
    "{% for i in [1,2] %}{%- if i == 1 %}{%- continue -%}{% endif %}{{ i }}{% endfor %}"
    "{{ strftime_now('%Y') }}a\n{#- note -#}\nb[{{ bos_token }}]"
)
REFUSING = (
    "{% if messages|selectattr('role', 'equalto', 'user')|list|length == 0 %}"
    "{{ raise_exception('No user query found.') }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}<{{ m.role }}>{% endfor %}"
)
ARGUMENTS = "<user>q<assistant>[city=Paris][days=3#]<tool>ok"
YEAR = datetime.now(UTC).year
#: name -> (template, the prompt that must come out)
RENDERED: dict[str, tuple[str, str]] = {
    "items": (ITEMS, ARGUMENTS),
    "blocks": (BLOCKS, "<U>hi</U>\n<U>bye</U>\n<A>"),
    "flavoured": (FLAVOURED, "|a|!2!TrueTrueFalsefound=0| b |"),
    "helpers": (HELPERS, f"x2{YEAR}ab[]"),
}
LOOK = function(
    "look",
    ["path"],
    path={"type": "string", "description": "Where."},
    depth={"type": "integer", "description": "How deep."},
)
#: Some templates take no tool without one.
LOOK["function"]["description"] = "List files."
XML = "\n<function=look>\n<parameter=path>\n  src/\n</parameter>\n<parameter=depth>\n2\n</parameter>\n</function>\n"
JSON = '\n{"name": "look", "arguments": {"path": "  src/", "depth": 2}}\n'
CALLED = {"path": "  src/", "depth": 2}
#: file -> (what a call looks like in it, whether its prompt opens a think block)
PUBLISHED = {
    "Qwen3.5-4B": (XML, True),
    "qwen3_6": (XML, True),
    "Qwen3-Coder": (XML, False),
    "qwen3": (JSON, False),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": (JSON, False),
}


def published(name: str) -> dict[str, Any]:
    """First a call, behind its result an answer; text for ever where a test says so."""
    form, opens = PUBLISHED[name]
    thought: list[Any] = ["I must ", "look.", "</think>", "\n\n"] if opens else []
    answer: list[Any] = ["Seen.", "</think>", "\n\n", "Two files."] if opens else ["Two files."]
    call: list[Any] = ["<tool_call>", form[:20], form[20:], "</tool_call>"]
    return {
        "turns": [
            {"when": "for ever!", "emit": ["x"] * 3000},
            {"when": "quick!", "emit": ["42", EOS]},
            {"when": "a.py b.py", "emit": [*answer, EOS]},
            {"emit": [*thought, *call, EOS]},
        ],
        "added_tokens": MARKS,
        "special_tokens": ["<|im_start|>", "<|im_end|>"],
        "chat_template": (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"),
        "context_length": 16384,
    }


@pytest.fixture(name="daemon", scope="module")
def _daemon() -> Iterator[DaemonProcess]:
    scripts: dict[str, Any] = {
        name: {"turns": [{"when": prompt, "emit": ["saw it", EOS]}, {"emit": ["saw else"]}], "chat_template": template}
        for name, (template, prompt) in RENDERED.items()
    }
    scripts |= {"refusing": script({}, REFUSING) | {"turns": [{"emit": ["ok"]}]}}
    scripts |= {name.lower().replace(".", "-"): published(name) for name in PUBLISHED}
    with DaemonProcess(scripts) as daemon:
        yield daemon


def model(name: str) -> str:
    return name.lower().replace(".", "-")


def history(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]


def check_prompt(daemon: DaemonProcess, name: str, messages: list[dict[str, Any]]) -> None:
    answer = ask(daemon, name, messages)
    assert answer.content == "saw it"
    assert answer.usage["prompt_tokens"] == len(RENDERED[name][1])


@pytest.mark.parametrize("arguments", ['{"city": "Paris", "days": 3}', {"city": "Paris", "days": 3}])
def test_tmpl_01_arguments_are_mappings(daemon: DaemonProcess, arguments: Any) -> None:
    check_prompt(daemon, "items", history(arguments))


@pytest.mark.parametrize("arguments", ["", None, "null", "[1]", "not json", [1], 7, "{"])
def test_tmpl_01_odd_arguments_never_fail_inside(daemon: DaemonProcess, arguments: Any) -> None:
    with daemon.client() as client:
        body = {"model": "test/items", "messages": history(arguments)}
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code in (200, 400), answer.text
    if arguments in ("", None):
        assert answer.status_code == 200


def test_tmpl_03_blanks_around_blocks(daemon: DaemonProcess) -> None:
    turns = [("user", "hi"), ("assistant", "yo"), ("user", "bye")]
    check_prompt(daemon, "blocks", [{"role": role, "content": content} for role, content in turns])


def test_tmpl_04_python_flavour(daemon: DaemonProcess) -> None:
    turns = [("user", "q1"), ("assistant", "c"), ("user", "<tool_response>r</tool_response>")]
    check_prompt(daemon, "flavoured", [{"role": role, "content": content} for role, content in turns])


def test_tmpl_05_tags_and_helpers(daemon: DaemonProcess) -> None:
    check_prompt(daemon, "helpers", [{"role": "user", "content": "x"}])


def test_tmpl_06_refusals(daemon: DaemonProcess) -> None:
    """Systems anywhere are moved to the front, so (a), (b) and (d) are fine; (c) is the template's own word."""
    fine = [["user", "assistant", "system", "user"], ["system", "system", "user"], ["user", "assistant", "tool"]]
    for roles in fine:
        assert ask(daemon, "refusing", [{"role": role, "content": "x"} for role in roles]).content == "ok"
    error = ask_status(daemon, "refusing", [{"role": "system", "content": "x"}])
    assert (error["status"], error["code"]) == (400, "template_error")
    assert "No user query found." in error["message"]
    with daemon.client() as client:
        answer = client.post(
            "/v1/responses", json={"model": "test/refusing", "input": [{"role": "system", "content": "x"}]}
        )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "template_error")


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_agents_two_turns(daemon: DaemonProcess, name: str) -> None:
    """A call, then its result: thinking is split off, the value keeps its blanks, the history renders again."""
    opens = PUBLISHED[name][1]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Help."},
        {"role": "user", "content": "What is there?"},
    ]
    first = ask(daemon, model(name), messages, tools=[LOOK])
    assert (first.content.strip(), first.calls, first.finish) == ("", [("look", CALLED)], "tool_calls")
    assert first.reasoning == ("I must look." if opens else "")
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"path": "  src/", "depth": 2}'}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": first.reasoning}
    messages += [turn, {"role": "tool", "tool_call_id": "c", "name": "look", "content": "a.py b.py"}]
    second = ask(daemon, model(name), messages, tools=[LOOK])
    assert (second.content, second.calls, second.finish) == ("Two files.", [], "stop")
    assert second.reasoning == ("Seen." if opens else "")


@pytest.mark.parametrize("name", [name for name, (_, opens) in PUBLISHED.items() if opens])
def test_enable_thinking_false(daemon: DaemonProcess, name: str) -> None:
    said = [{"role": "user", "content": "quick!"}]
    off = ask(daemon, model(name), said, chat_template_kwargs={"enable_thinking": False})
    assert (off.content, off.reasoning) == ("42", "")
    on = ask(daemon, model(name), said)
    assert (on.content, on.reasoning) == ("", "42")


@pytest.mark.parametrize("name", PUBLISHED)
def test_forced_calls_take_the_templates_form(daemon: DaemonProcess, name: str) -> None:
    """The model would write x for ever; the grammar writes the call around it and ends it in time."""
    said = [{"role": "user", "content": "for ever!"}]
    answer = ask(daemon, model(name), said, tools=[LOOK], tool_choice="required", max_tokens=260)
    assert answer.finish == "tool_calls"
    called, arguments = answer.calls[0]
    assert (called, isinstance(arguments["path"], str)) == ("look", True)
    assert answer.content.strip() == ""
