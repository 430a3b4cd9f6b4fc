"""What chat templates may use, how their blocks eat blanks, and how a refusal reads."""

from datetime import datetime

import pytest

from neuron.actors.errors import TemplateError
from neuron.actors.request import Message, Role
from neuron.actors.text.render import Renderer
from neuron.actors.text.template import ChatTemplate
from tests.actors.text.conversations import WEATHER, assistant, request, user
from tests.actors.text.helpers import text_model

pytestmark = pytest.mark.anyio


async def rendered(renderer: Renderer, template: str, *messages: Message) -> str:
    return (await renderer.render(text_model(template), request(*(messages or (user("hi"),))))).text


async def test_block_tags_eat_their_blanks(renderer: Renderer) -> None:
    lines = ["{% for m in messages %}", "  {% if m.role == 'user' %}", "<U>{{ m.content }}</U>", "  {% endif %}"]
    template = "\n".join([*lines, "{% endfor %}", "<A>", ""])
    text = await rendered(renderer, template, user("hi"), assistant("yo"), user("bye"))
    assert text == "<U>hi</U>\n<U>bye</U>\n<A>"


async def test_python_flavoured_expressions(renderer: Renderer) -> None:
    template = """
{%- macro shout(text, mark='!') %}{{ text ~ mark }}{% endmacro %}
{%- set ns = namespace(index=-1) %}
{%- for m in messages[::-1] %}
  {%- if m.role == 'user' and m.content is string
      and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}
    {%- set ns.index = messages|length - 1 - loop.index0 %}{% break %}
  {%- endif %}
{%- endfor %}
{%- for key, value in {'a': 1}.items() %}{{ key }}{% endfor %}
{%- for key, value in {'b': 2}|items %}{{ key }}{% endfor %}
{{- messages is iterable and {} is mapping and nothing is not defined }}{{ shout('x') }}
{{- ns.index }}|{{ 'a</think>\n\n b '.split('</think>')[-1].lstrip('\n') }}|"""
    text = await rendered(renderer, template, user("q1"), assistant("c"), user("<tool_response>r</tool_response>"))
    assert text == "abTruex!0| b |"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{% for i in range(4) %}{% if i == 2 %}{%- continue -%}{% endif %}{{ i }}{% endfor %}", "013"),
        ("{{ strftime_now('%Y') }}", str(datetime.now().year)),
        ("a\n  {#- note -#}\n b", "ab"),
        ("[{{ bos_token }}]", "[<s>]"),
        ("{{ {'k': 'é<b>\\'', 'n': [1, 2.5, true, none]}|tojson }}", '{"k": "é<b>\'", "n": [1, 2.5, true, null]}'),
        ("{{ {'k': 1}|tojson(indent=2) }}", '{\n  "k": 1\n}'),
        (
            "{{ 'x' * 3 ~ 2 ** 10 ~ '%s-%03d' % ('a', 7) ~ 'a'|center(5) ~ '{:>3}'.format('b') }}",
            "xxx1024a-007  a    b",
        ),
        (
            "{{ 3.14159|round(2) }}{{ [1, 2, 3]|batch(2)|list }}{{ 'a b c'|truncate(3, true, '', 0) }}",
            "3.14[[1, 2], [3]]a b",
        ),
        ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
        ("{{ messages[0].missing }}.", "."),
    ],
)
async def test_helpers(renderer: Renderer, template: str, expected: str) -> None:
    assert await rendered(renderer, template) == expected


async def test_a_refusal_carries_the_templates_sentence(renderer: Renderer) -> None:
    template = "{{ raise_exception('After the optional system message, roles must alternate') }}"
    with pytest.raises(TemplateError) as caught:
        await rendered(renderer, template)
    assert caught.value.message == "After the optional system message, roles must alternate"
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ messages[0].content.nope() }}",
        "{{ 1 / 0 }}",
        "{{ none.a.b }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
async def test_failures_are_typed_and_leak_nothing(renderer: Renderer, template: str) -> None:
    with pytest.raises(TemplateError) as caught:
        await rendered(renderer, template)
    assert "The model's chat template" in caught.value.message
    for word in ("Traceback", "jinja", "Error", "object", ".py"):
        assert word not in caught.value.message


async def test_the_tool_template_is_used_when_tools_are_given(renderer: Renderer) -> None:
    model = text_model(ChatTemplate(default="plain", tool_use="with {{ tools[0].function.name }}"))
    assert (await renderer.render(model, request(user("q")))).text == "plain"
    assert (await renderer.render(model, request(user("q"), tools=(WEATHER,)))).text == "with get_weather"


@pytest.mark.parametrize("role", [Role.SYSTEM, Role.DEVELOPER])
async def test_developer_messages_are_system_messages(renderer: Renderer, role: Role) -> None:
    template = (
        "{% for m in messages %}{% if m.role not in ['system', 'user'] %}{{ raise_exception('Unexpected role') }}"
        "{% endif %}{{ m.role }}={{ m.content }};{% endfor %}"
    )
    text = await rendered(renderer, template, Message(role=role, content="Answer in rhyme."), user("hi"))
    assert text == "system=Answer in rhyme.;user=hi;"


async def test_system_messages_are_merged_in_order_at_the_front(renderer: Renderer) -> None:
    template = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
    text = await rendered(
        renderer,
        template,
        user("q1"),
        Message(role=Role.SYSTEM, content="one"),
        assistant("a"),
        Message(role=Role.DEVELOPER, content="two"),
        user("q2"),
    )
    assert text == "system=one\n\ntwo;user=q1;assistant=a;user=q2;"
