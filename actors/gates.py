"""Gates: from an InferenceRequest to Work, or the typed refusal; everything here runs before any device work.

Rendering, tokenising and grammar compilation are bounded and run off the event loop.
"""

from collections.abc import Sequence
from typing import Protocol

import anyio.to_thread

from neuron.actors.admission import wait_for_memory
from neuron.actors.errors import InvalidValue, VisionUnsupported
from neuron.actors.images.decoder import PromptImage
from neuron.actors.images.processor import ImageProcessor
from neuron.actors.images.prompt import PromptImages, check_places, expand
from neuron.actors.images.sight import Sight
from neuron.actors.request import ImagePart, InferenceRequest
from neuron.actors.resident import Resident
from neuron.actors.sampling.params import resolve_sampling
from neuron.actors.sampling.sampler import Constraint, Sampler, must_warm_up, warm_up
from neuron.actors.settings import LimitSettings
from neuron.actors.text.build import TextModel
from neuron.actors.text.parser import build_parser
from neuron.actors.text.types import RenderedPrompt
from neuron.actors.work import Work


class TextWork(Protocol):
    """The text machinery as the gates use it; every method keeps off the event loop."""

    async def render(self, text: TextModel, request: InferenceRequest) -> RenderedPrompt:
        """Raises TemplateError, TemplateTimeout, TemplateTooLarge."""

    async def encode(self, text: TextModel, prompt: RenderedPrompt) -> list[int]: ...

    async def decode_images(self, parts: Sequence[ImagePart], processor: ImageProcessor) -> tuple[PromptImage, ...]:
        """The images in order. Raises InvalidImage."""

    async def expect(self, text: TextModel) -> None:
        """A model is about to be ready: be quick with its first request."""

    async def constrain(
        self, text: TextModel, request: InferenceRequest, *, opens_reasoning: bool, max_new_tokens: int
    ) -> Constraint | None:
        """The grammar of the answer, if the request asks for one. Raises InvalidValue."""

    async def start(self) -> None: ...

    def close(self) -> None: ...


class Gates:
    def __init__(self, limits: LimitSettings, text_work: TextWork) -> None:
        self._limits = limits
        self._text_work = text_work

    async def prepare(self, resident: Resident, request: InferenceRequest) -> Work:
        """Raises the first refusal there is a reason for: images, template, length, ids, grammar, memory."""
        images = _images(resident, request)
        text = resident.text
        rendered = await self._text_work.render(text, request)
        resident.limits.check_bytes(len(rendered.text.encode("utf-8", "surrogatepass")))
        prompt = await self._text_work.encode(text, rendered)
        _check_prompt(resident, prompt)
        seen: PromptImages | None = None
        if images and resident.sight is not None:
            prompt, seen = await self._see(resident.sight, prompt, images)
            _check_prompt(resident, prompt)
        _check_bias(resident, request)
        max_new_tokens = resident.limits.new_tokens(request.max_tokens, len(prompt))
        constraint = await self._text_work.constrain(
            text, request, opens_reasoning=rendered.opens_reasoning, max_new_tokens=max_new_tokens
        )
        await wait_for_memory(resident.device.info, self._limits)
        sampling = resolve_sampling(request.sampling, text.defaults)
        top_logprobs = request.top_logprobs if request.logprobs else None
        if must_warm_up(sampling, top_logprobs):
            await anyio.to_thread.run_sync(warm_up)
        return Work(
            req_id=request.req_id,
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            parser=build_parser(text, opens_reasoning=rendered.opens_reasoning, request=request),
            detokenizer=text.tokenizer.detokenizer(),
            sampler=Sampler(
                sampling,
                vocab_size=resident.vocab_size,
                prompt=prompt,
                constraint=constraint,
                top_logprobs=top_logprobs,
            ),
            images=seen,
        )

    async def _see(self, sight: Sight, prompt: list[int], images: list[ImagePart]) -> tuple[list[int], PromptImages]:
        """The prompt with places for its images. A template that lost one is found before anything is decoded."""
        check_places(prompt, sight.pad, len(images))
        decoded = await self._text_work.decode_images(images, sight.processor)
        return expand(prompt, sight.pad, decoded, sight.processor)


def _images(resident: Resident, request: InferenceRequest) -> list[ImagePart]:
    """The images of the request in order. Raises VisionUnsupported for a model that takes none."""
    contents = [message.content for message in request.messages if not isinstance(message.content, str)]
    images = [part for content in contents for part in content if isinstance(part, ImagePart)]
    if images and resident.sight is None:
        raise VisionUnsupported(
            f"The model '{resident.model_id}' takes no images.",
            param=images[0].where,
            model_id=resident.model_id,
            suggestion="send text only, or load a model with the vision capability",
        )
    return images


def _check_prompt(resident: Resident, prompt: list[int]) -> None:
    """An id outside the embedding would be an illegal access on the device: it is refused here."""
    if not prompt:
        raise InvalidValue("The prompt is empty.", param="messages")
    resident.limits.check_prompt(len(prompt))
    if max(prompt) >= resident.loaded.vocab_size or min(prompt) < 0:
        raise InvalidValue("The prompt holds a token that the model does not have.", param="messages")


def _check_bias(resident: Resident, request: InferenceRequest) -> None:
    for token, _ in request.sampling.logit_bias:
        if not 0 <= token < resident.vocab_size:
            raise InvalidValue(f"logit_bias names token {token}, which the model does not have.", param="logit_bias")
