"""PooledTextWork: rendering, tokenising and grammar compilation kept off the event loop. Owned by the registry."""

from collections.abc import Sequence

from neuron.actors.images.decoder import ImageDecoder, PromptImage
from neuron.actors.images.processor import ImageProcessor
from neuron.actors.images.sight import VISION
from neuron.actors.request import ImagePart, InferenceRequest
from neuron.actors.sampling.sampler import Constraint
from neuron.actors.text.build import TextModel
from neuron.actors.text.constraint import build_constraint
from neuron.actors.text.constraint_grammar import call_form
from neuron.actors.text.render import Renderer
from neuron.actors.text.types import RenderedPrompt
from neuron.runtime.workers import Workers

#: Prompts shorter than this many characters are tokenised where they are: a thread would cost more.
SHORT_TEXT = 2048
#: Threads that tokenise or compile at one time.
THREADS = 2


class PooledTextWork:
    def __init__(self) -> None:
        self._renderer = Renderer()
        self._decoder = ImageDecoder()
        self._workers = Workers(THREADS, "text")

    async def start(self) -> None:
        await self._renderer.start()

    async def render(self, text: TextModel, request: InferenceRequest) -> RenderedPrompt:
        return await self._renderer.render(text, request)

    async def encode(self, text: TextModel, prompt: RenderedPrompt) -> list[int]:
        if len(prompt.text) < SHORT_TEXT:
            return text.tokenizer.encode(prompt.segments)
        return await self._workers.run(text.tokenizer.encode, prompt.segments)

    async def decode_images(self, parts: Sequence[ImagePart], processor: ImageProcessor) -> tuple[PromptImage, ...]:
        return await self._decoder.decode(parts, processor)

    async def expect(self, text: TextModel) -> None:
        await self._renderer.expect(text)
        if VISION in text.capabilities:
            await self._decoder.start()

    async def constrain(
        self, text: TextModel, request: InferenceRequest, *, opens_reasoning: bool, max_new_tokens: int
    ) -> Constraint | None:
        def build() -> Constraint | None:
            form = call_form(text.template.texts)
            return build_constraint(
                text, request, opens_reasoning=opens_reasoning, form=form, max_new_tokens=max_new_tokens
            )

        return await self._workers.run(build)

    def close(self) -> None:
        self._renderer.close()
        self._decoder.close()
        self._workers.close()
