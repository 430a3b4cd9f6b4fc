"""Chat templates are untrusted code: what they may not reach, and what bounds them."""

import os
import signal
from pathlib import Path

import anyio
import pytest

from neuron.actors.errors import InvalidValue, TemplateError, TemplateTimeout, TemplateTooLarge
from neuron.actors.text.render import Renderer
from neuron.actors.text.template_kwargs import RESERVED, check_template_kwargs
from neuron.runtime.errors import InternalError, NeuronError, ShuttingDown
from tests.actors.text.conversations import request, user
from tests.actors.text.helpers import text_model

pytestmark = pytest.mark.anyio
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
HOSTILE = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''.__class__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'] }}",
    "{{ messages.append(1) }}x",
    "{% set _ = messages.append(1) %}x",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ (messages|map(attribute='__class__')|list)[0].__mro__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ dict.__class__ }}",
    "{{ namespace(__class__=1) }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ self.__init__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ raise_exception }}",
    "{{ messages[0].content.upper }}",
    "{{ lipsum }}",
]


async def outcome(renderer: Renderer, template: str) -> str:
    """What a client would see: the text, or the error's message."""
    try:
        return (await renderer.render(text_model(template), request(user("hi")))).text
    except TemplateError as error:
        return error.message


def process_state(pid: int) -> str:
    """One letter of /proc; "" when there is no such process."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.read_text().split()[2] if stat.exists() else ""


@pytest.mark.parametrize("template", HOSTILE)
async def test_internals_are_out_of_reach(renderer: Renderer, template: str) -> None:
    shown = await outcome(renderer, "x" + template)
    assert shown == "x" or "__" not in shown
    assert "class" not in shown
    text = (await renderer.render(text_model(PLAIN), request(user(template)))).text
    assert text == template


@pytest.mark.parametrize("template", HOSTILE[:7])
async def test_reaching_for_internals_is_an_error(renderer: Renderer, template: str) -> None:
    with pytest.raises(TemplateError):
        await renderer.render(text_model(template), request(user("hi")))


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(25000) %}{% for j in range(25000) %}{% endfor %}{% endfor %}",
        "{% for i in range(200000) %}{% endfor %}",
        "{{ 'a' * 100000000 }}",
        "{{ 100000000 * 'a' }}",
        "{{ ([0] * 20000000)|length }}",
        "{{ 'a'.center(50000000) }}",
        "{{ 'a'|center(50000000) }}",
        "{{ '%0100000000d' % 1 }}",
        "{{ '%0100000000d'|format(1) }}",
        "{{ '{:0100000000d}'.format(1) }}",
        "{{ '{:{}}'.format(1, 100000000) }}",
        "{{ 10 ** 10000000 }}",
        "{{ 'a'|indent(100000000, true) }}",
        "{{ [1]|tojson(indent=100000000) }}",
        "{{ ('a' * 10000).replace('a', 'b' * 10000) }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        "{% for i in range(99999) %}{% for j in range(99) %}{{ 'abcdefghij' }}{% endfor %}{% endfor %}",
    ],
)
async def test_work_memory_and_output_are_bounded(renderer: Renderer, template: str) -> None:
    with pytest.raises((TemplateError, TemplateTimeout, TemplateTooLarge)):
        await renderer.render(text_model(template), request(user("hi")))
    assert (await renderer.render(text_model(PLAIN), request(user("hi")))).text == "hi"


async def test_the_event_loop_runs_while_a_template_spins(renderer: Renderer) -> None:
    ticks = 0

    async def spin() -> None:
        with pytest.raises(TemplateTimeout):
            await renderer.render(text_model("{% for i in range(9999) %}" * 3 + "{% endfor %}" * 3), request(user("x")))
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(spin)
        while True:
            await anyio.sleep(0.02)
            ticks += 1
    assert ticks > 10


async def test_a_large_message_renders(renderer: Renderer) -> None:
    text = "line of text\n" * 400_000
    assert (await renderer.render(text_model(PLAIN), request(user(text)))).text == text


async def test_output_over_the_cap_is_refused() -> None:
    renderer = Renderer(processes=1, prompt_bytes=100)
    try:
        assert len((await renderer.render(text_model(PLAIN), request(user("x" * 400)))).text) == 400
        with pytest.raises(TemplateTooLarge):
            await renderer.render(text_model(PLAIN), request(user("x" * 401)))
        with pytest.raises(TemplateTooLarge):
            await renderer.render(text_model(PLAIN), request(user("é" * 201)))
    finally:
        renderer.close()


async def test_a_child_killed_at_work_fails_one_request_and_is_replaced() -> None:
    renderer = Renderer(processes=1)
    spinning = text_model("{% for i in range(9999) %}" * 3 + "{% endfor %}" * 3)
    failures: list[NeuronError] = []

    async def spin() -> None:
        with pytest.raises(InternalError) as caught:
            await renderer.render(spinning, request(user("two")))
        failures.append(caught.value)

    try:
        assert (await renderer.render(text_model(PLAIN), request(user("one")))).text == "one"
        (pid,) = renderer.pool.pids()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(spin)
            await anyio.sleep(0.2)
            os.kill(pid, signal.SIGKILL)
        assert [failure.status for failure in failures] == [500]
        assert (await renderer.render(text_model(PLAIN), request(user("three")))).text == "three"
        assert renderer.pool.pids() != [pid]
    finally:
        renderer.close()


async def test_a_child_killed_while_idle_is_not_noticed_by_requests() -> None:
    renderer = Renderer(processes=1)
    try:
        await renderer.start()
        (pid,) = renderer.pool.pids()
        os.kill(pid, signal.SIGKILL)
        for _ in range(500):
            if process_state(pid) == "Z":
                break
            await anyio.sleep(0.01)
        assert (await renderer.render(text_model(PLAIN), request(user("two")))).text == "two"
    finally:
        renderer.close()


async def test_a_closed_renderer_refuses_and_leaves_no_process() -> None:
    renderer = Renderer(processes=1)
    await renderer.start()
    (pid,) = renderer.pool.pids()
    renderer.close()
    assert process_state(pid) == ""
    with pytest.raises(ShuttingDown):
        await renderer.render(text_model(PLAIN), request(user("x")))


@pytest.mark.parametrize("name", [*sorted(RESERVED), "__class__", "_x", "a b", "1a"])
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        check_template_kwargs({name: 1})
    assert caught.value.param == "chat_template_kwargs"


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (nested(15), nested(16)),
        (list(range(127)), list(range(128))),
        ("x" * 16_000, "x" * (16 << 10)),
        ("x", "x" * 1_000_000),
        (1, nested(500)),
    ],
)
def test_bounds_of_kwargs(good: object, bad: object) -> None:
    check_template_kwargs({"enable_thinking": good})
    with pytest.raises(InvalidValue):
        check_template_kwargs({"enable_thinking": bad})


async def test_kwargs_cannot_replace_the_conversation(renderer: Renderer) -> None:
    for name in ("messages", "tools", "add_generation_prompt", "bos_token", "raise_exception", "__class__"):
        with pytest.raises(NeuronError) as caught:
            await renderer.render(text_model(PLAIN), request(user("hi"), template_kwargs={name: "x"}))
        assert caught.value.status == 400
    template = PLAIN + "{{ enable_thinking }}{{ other }}"
    kwargs = {"enable_thinking": False, "other": "y"}
    assert (await renderer.render(text_model(template), request(user("hi"), template_kwargs=kwargs))).text == "hiFalsey"


async def test_unpaired_surrogates_are_refused(renderer: Renderer) -> None:
    with pytest.raises(InvalidValue) as caught:
        await renderer.render(text_model(PLAIN), request(user("emoji \ud83d")))
    assert caught.value.param == "messages"
