"""Rendered prompts are byte-equal to transformers' on the same messages, and fail where it fails."""

from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from neuron.actors.errors import TemplateError, VisionUnsupported
from neuron.actors.request import InferenceRequest
from neuron.actors.text.build import TextModel
from neuron.actors.text.normalise import has_images, template_messages, template_tools, thinking_variables
from neuron.actors.text.render import Renderer
from tests.actors.text.conversations import CONVERSATIONS
from tests.actors.text.helpers import DATA, SHARED, text_model

#: All published templates where they are, else the copied ones.
TEMPLATES = sorted((SHARED / "templates").rglob("*.jinja")) or sorted((DATA / "templates").glob("*.jinja"))

pytestmark = pytest.mark.anyio


def read(path: Path) -> str:
    return path.read_text()


def transformers_text(model: TextModel, request: InferenceRequest) -> str:
    source = model.template.default
    forms = model.forms[source]
    messages = template_messages(request.messages, as_parts=has_images(request.messages) or not forms.text)
    rendered, _ = render_jinja_template(
        conversations=[messages],
        tools=template_tools(request),
        chat_template=source,
        add_generation_prompt=True,
        **model.special_tokens,
        **thinking_variables(request, source),
    )
    return str(rendered[0])


async def check_template(renderer: Renderer, source: str) -> None:
    model = text_model(source)
    for name, request in CONVERSATIONS.items():
        ours: str | None = None
        try:
            ours = (await renderer.render(model, request)).text
        except VisionUnsupported:
            continue
        except TemplateError:
            pass
        try:
            theirs = transformers_text(model, request)
        except Exception:
            assert ours is None, name
        else:
            assert ours == theirs, name


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
async def test_templates_render_as_in_transformers(renderer: Renderer, path: Path) -> None:
    await check_template(renderer, read(path))
