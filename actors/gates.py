"""Gates: from an InferenceRequest to Work, or the typed refusal; everything here runs before any device work.

Rendering, tokenising and grammar compilation are bounded and run off the event loop.
"""

from typing import Protocol

import anyio.to_thread

from neuron.actors.admission import wait_for_memory
from neuron.actors.errors import InvalidValue, VisionUnsupported
from neuron.actors.request import ImagePart, InferenceRequest
from neuron.actors.resident import Resident
from neuron.actors.sampling.params import resolve_sampling
from neuron.actors.sampling.sampler import Constraint, Sampler, is_warm, warm_up
from neuron.actors.session import Work
from neuron.actors.settings import LimitSettings
from neuron.actors.text.build import TextModel
from neuron.actors.text.parser import build_parser
from neuron.actors.text.types import RenderedPrompt


class TextWork(Protocol):
    """The text machinery as the gates use it; every method keeps off the event loop."""

    async def render(self, text: TextModel, request: InferenceRequest) -> RenderedPrompt:
        """Raises TemplateError, TemplateTimeout, TemplateTooLarge."""

    async def encode(self, text: TextModel, prompt: RenderedPrompt) -> list[int]: ...

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
        _check_images(resident, request)
        text = resident.text
        rendered = await self._text_work.render(text, request)
        resident.limits.check_bytes(len(rendered.text.encode("utf-8", "surrogatepass")))
        prompt = await self._text_work.encode(text, rendered)
        _check_prompt(resident, prompt)
        _check_bias(resident, request)
        max_new_tokens = resident.limits.new_tokens(request.max_tokens, len(prompt))
        constraint = await self._text_work.constrain(
            text, request, opens_reasoning=rendered.opens_reasoning, max_new_tokens=max_new_tokens
        )
        await wait_for_memory(resident.device.info, self._limits)
        if not is_warm():
            await anyio.to_thread.run_sync(warm_up)
        return Work(
            request=request,
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            parser=build_parser(text, opens_reasoning=rendered.opens_reasoning, request=request),
            detokenizer=text.tokenizer.detokenizer(),
            sampler=Sampler(
                resolve_sampling(request.sampling, text.defaults),
                vocab_size=resident.vocab_size,
                prompt=prompt,
                constraint=constraint,
                top_logprobs=request.top_logprobs if request.logprobs else None,
            ),
        )


def _check_images(resident: Resident, request: InferenceRequest) -> None:
    for message in request.messages:
        if isinstance(message.content, str):
            continue
        for part in message.content:
            if isinstance(part, ImagePart):
                raise VisionUnsupported(
                    f"The model '{resident.model_id}' takes no images.",
                    param=part.where,
                    model_id=resident.model_id,
                    suggestion="send text only, or load a model with the vision capability",
                )


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
