"""Any template, hostile or broken, ends in text or in a typed error, and the next request renders."""

import json
from functools import cache

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron.actors.errors import TemplateError, TemplateTimeout, TemplateTooLarge
from neuron.actors.text.template_pool import TemplatePool

VARIABLES = json.dumps({"messages": [{"role": "user", "content": "hi"}], "tools": None, "n": 3}).encode()
ATOMS = st.sampled_from(
    """messages messages[0].content messages[0]['role'] n 'text' 12 -1 none true [] {} range(9) tools undefined_name
    messages[0].__class__ ''.join lipsum cycler dict namespace self loop caller 'a'*9 10**9 raise_exception
    strftime_now('%Y')""".split()
)
FILTERS = st.sampled_from(
    "tojson trim length list upper join first last items center(99999999) indent(9) replace('a','b') string "
    "int batch(2) map(attribute='x') selectattr('y') sort dictsort groupby('z') unique sum attr('__init__') format "
    "xmlattr".split()
)
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, FILTERS).map("|".join),
        st.tuples(inner, st.sampled_from(["+", "-", "*", "**", "%", "~", "==", "in", "and", "//"]), inner).map(
            " ".join
        ),
        inner.map(lambda text: f"({text})"),
        st.tuples(inner, inner).map(lambda pair: f"{pair[0]}[{pair[1]}]"),
        inner.map(lambda text: f"{text}()"),
    ),
    max_leaves=6,
)
PIECES = st.recursive(
    st.one_of(EXPRESSIONS.map(lambda text: "{{ " + text + " }}"), st.text(max_size=5), st.just("{%"), st.just("{#")),
    lambda inner: st.one_of(
        st.tuples(EXPRESSIONS, inner).map(lambda pair: f"{{% for x in {pair[0]} %}}{pair[1]}{{% endfor %}}"),
        st.tuples(EXPRESSIONS, inner).map(lambda pair: f"{{%- if {pair[0]} -%}}{pair[1]}{{% endif %}}"),
        EXPRESSIONS.map(
            lambda text: f"{{% set ns = namespace(a={text}) %}}{{% set ns.a = ns.a + ns.a %}}{{{{ ns.a }}}}"
        ),
        inner.map(lambda text: f"{{% macro m(a=1) %}}{text}{{% endmacro %}}{{{{ m() }}}}"),
        st.lists(inner, max_size=3).map("".join),
    ),
    max_leaves=6,
)


@cache
def pool() -> TemplatePool:
    return TemplatePool(1)


async def failure(source: str) -> str:
    """The message of the error; "" when it renders."""
    try:
        await pool().render(source, VARIABLES, max_bytes=1 << 20)
    except (TemplateError, TemplateTimeout, TemplateTooLarge) as error:
        return error.message
    return ""


@settings(max_examples=300, deadline=None)
@given(source=PIECES)
def test_templates_end_in_text_or_a_typed_error(source: str) -> None:
    async def attempt() -> None:
        message = await failure(source)
        for word in ("Traceback", "<class '", "<function", "<module", " object at 0x", ".py", "jinja"):
            assert word not in message
        assert await pool().render("{{ messages[0].content }}", VARIABLES, max_bytes=10) == "hi"

    anyio.run(attempt)


def teardown_module() -> None:
    pool().close()
