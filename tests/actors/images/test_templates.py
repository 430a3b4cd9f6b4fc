"""Placeholders that published templates write: one for each image, in order, and none for text that spells one."""

import pytest

from neuron.actors.errors import VisionUnsupported
from neuron.actors.images.prompt import check_places
from neuron.actors.images.sight import PAD_TOKEN
from neuron.actors.request import Message, Role, TextPart
from neuron.actors.scripted import IMAGE_TOKENS
from neuron.actors.text.render import Renderer
from neuron.actors.text.template import CHATML
from ops.tiny_vision.vocabulary import CHAT_TEMPLATE
from tests.actors.text.conversations import IMAGE, assistant, call, request, user
from tests.actors.text.helpers import ADDED, DATA, SPECIAL, byte_tokenizer, text_model

pytestmark = pytest.mark.anyio
QWEN = ("qwen3_6", "qwen3_8", "qwen3_6_training")
TEMPLATES = {
    **{name: (DATA / "templates" / f"{name}.jinja").read_text() for name in QWEN},
    "chatml": CHATML.default,
    "tiny": CHAT_TEMPLATE,
}
TYPED = "".join(IMAGE_TOKENS)


def turns(*, images: bool) -> tuple[Message, ...]:
    """Two user turns, the first with two images, and a tool's answer with one; everywhere the placeholder is typed."""
    picture = (IMAGE,) if images else ()
    look = assistant("", tool_calls=(call("look"),))
    return (
        Message(role=Role.USER, content=(*picture, TextPart(f"a {TYPED}"), *picture)),
        look,
        Message(role=Role.TOOL, content=(TextPart(f"b {TYPED}"), *picture), tool_call_id="call00001"),
        assistant("well"),
        user(f"c {TYPED}"),
    )


@pytest.mark.parametrize("name", TEMPLATES)
async def test_one_placeholder_for_each_image(name: str) -> None:
    tokenizer = byte_tokenizer(special=(*SPECIAL, *IMAGE_TOKENS), added=ADDED)
    model = text_model(TEMPLATES[name], tokenizer)
    pad = tokenizer.token_id(PAD_TOKEN)
    assert pad is not None
    renderer = Renderer(processes=1)
    try:
        for images, places in ((True, 3), (False, 0)):
            rendered = await renderer.render(model, request(*turns(images=images)))
            assert rendered.text.count(PAD_TOKEN) == places + 3
            check_places(tokenizer.encode(rendered.segments), pad, places)
    finally:
        renderer.close()


async def test_a_template_without_images_is_not_given_any() -> None:
    model = text_model("{% for m in messages %}{{ m.content + '' }}{% endfor %}")
    renderer = Renderer(processes=1)
    try:
        with pytest.raises(VisionUnsupported):
            await renderer.render(model, request(*turns(images=True)))
    finally:
        renderer.close()
