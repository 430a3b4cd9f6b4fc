"""What the template gets: one leading system message, mappings as arguments, text as text."""

from typing import Any

import pytest

from neuron.actors.errors import InvalidValue, VisionUnsupported
from neuron.actors.request import Message, Role, TextPart, Thinking, ToolCall
from neuron.actors.text.normalise import call_arguments, template_messages, template_tools, thinking_variables
from neuron.actors.text.render import Renderer
from tests.actors.text.conversations import IMAGE, WEATHER, assistant, request, result, user
from tests.actors.text.helpers import DATA, text_model


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Paris", "days": 3}', {"city": "Paris", "days": 3}),
        ({"city": "Paris", "days": 3}, {"city": "Paris", "days": 3}),
        ("", {}),
        ("  ", {}),
        ("null", {}),
        ("[1]", {"arguments": "[1]"}),
        ("not json", {"arguments": "not json"}),
        ('{"cut', {"arguments": '{"cut'}),
        ("[" * 5000, {"arguments": "[" * 5000}),
    ],
)
def test_arguments_are_mappings(arguments: str | dict[str, Any], expected: dict[str, Any]) -> None:
    got = call_arguments(arguments)
    assert got == expected
    assert list(got) == list(expected)


def test_an_empty_assistant_turn_has_empty_text() -> None:
    call = ToolCall(id="c1", name="sqrt", arguments={"v": 101})
    messages = template_messages([user("q"), assistant(tool_calls=(call,)), result("10.05", "c1")], as_parts=False)
    assert messages[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "sqrt", "arguments": {"v": 101}}, "id": "c1"}],
    }
    assert messages[2] == {"role": "tool", "content": "10.05", "tool_call_id": "c1"}


@pytest.mark.parametrize("role", [Role.SYSTEM, Role.USER, Role.TOOL])
def test_text_parts_become_text(role: Role) -> None:
    parts = (TextPart("alpha"), TextPart("omega"))
    assert template_messages([Message(role=role, content=parts)], as_parts=False)[0]["content"] == "alpha\nomega"
    as_parts = template_messages([Message(role=role, content=parts)], as_parts=True)[0]["content"]
    assert as_parts == [{"type": "text", "text": "alpha\nomega"}]


def test_images_keep_their_place() -> None:
    content = (TextPart("a"), IMAGE, TextPart("b"))
    (message,) = template_messages([Message(role=Role.USER, content=content)], as_parts=True)
    assert message["content"] == [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    with pytest.raises(InvalidValue) as caught:
        template_messages([Message(role=Role.SYSTEM, content=content)], as_parts=True)
    assert caught.value.param == IMAGE.where


def test_tools_are_the_clients_own() -> None:
    assert template_tools(request(user("q"))) is None
    assert template_tools(request(user("q"), tools=(WEATHER,))) == [WEATHER.raw]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"thinking": Thinking.OFF}, {"enable_thinking": False, "thinking": False}),
        ({"thinking": Thinking.ON, "reasoning_effort": "none"}, {"enable_thinking": True, "thinking": True}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False, "thinking": False}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        (
            {"thinking": Thinking.OFF, "template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": True, "thinking": False},
        ),
        ({"reasoning_effort": "high", "template_kwargs": {"reasoning_effort": "low"}}, {"reasoning_effort": "low"}),
    ],
)
def test_thinking_knobs(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert thinking_variables(request(user("q"), **fields), "") == expected


@pytest.mark.parametrize(
    ("asked", "given"),
    [("high", "xhigh"), ("xhigh", "xhigh"), ("minimal", "low"), ("medium", "medium"), ("wild", "wild")],
)
def test_an_effort_the_template_does_not_know_becomes_the_nearest(asked: str, given: str) -> None:
    source = (DATA / "templates" / "qwen3_8.jinja").read_text()
    variables = thinking_variables(request(user("q"), reasoning_effort=asked), source)
    assert variables == {"reasoning_effort": given}


@pytest.mark.anyio
async def test_images_need_a_template_that_takes_them(renderer: Renderer) -> None:
    image = request(Message(role=Role.USER, content=(IMAGE, TextPart("what?"))))
    with pytest.raises(VisionUnsupported):
        await renderer.render(text_model("{% for m in messages %}{{ m.content }}{% endfor %}"), image)
    part = "{{ p.text if p.type == 'text' else '<img>' }}"
    template = f"{{% for m in messages %}}{{% for p in m.content %}}{part}{{% endfor %}}{{% endfor %}}"
    model = text_model(template)
    assert (await renderer.render(model, image)).text == "<img>what?"
    assert (await renderer.render(model, request(user("only text")))).text == "only text"
