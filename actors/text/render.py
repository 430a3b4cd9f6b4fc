"""Renderer: an InferenceRequest becomes a RenderedPrompt, by the model's template in a limited process."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, TypeVar, TypeVarTuple, Unpack

import msgspec

from neuron.actors.errors import InvalidValue, TemplateError, TemplateTooLarge, VisionUnsupported
from neuron.actors.request import InferenceRequest
from neuron.actors.text.build import TextModel
from neuron.actors.text.content_forms import ContentForms, probe_forms
from neuron.actors.text.data_marks import DataMarker, choose_marks, data_texts, read_marks, spans_by_search, tokens_in
from neuron.actors.text.normalise import has_images, template_messages, template_tools, thinking_variables
from neuron.actors.text.segments import opens_reasoning, to_segments
from neuron.actors.text.template_kwargs import check_template_kwargs
from neuron.actors.text.template_pool import TemplatePool
from neuron.actors.text.types import RenderedPrompt
from neuron.runtime.errors import NeuronError
from neuron.runtime.workers import Workers

Json = dict[str, Any]
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
#: Distinct control texts times characters of the prompt: above, places are searched for, not found by rendering.
_MAX_TRIED_CHARACTERS = 8 << 20
#: Prompts longer than this many characters are worked on in a thread.
_SHORT = 64 << 10


class View(NamedTuple):
    """What one rendering sees."""

    messages: list[Json]
    tools: list[Json] | None
    knobs: Json

    def texts(self) -> Iterator[str]:
        for value in self:
            yield from data_texts(value)

    def marked(self, marker: DataMarker) -> "View":
        return View(marker.messages(self.messages), marker.value(self.tools), marker.value(self.knobs))


class Renderer:
    """Shared by all models. `prompt_bytes`: cap on a request's text; the output may have four times as much."""

    def __init__(self, *, processes: int = 2, prompt_bytes: int = 8 << 20) -> None:
        self._pool = TemplatePool(processes)
        self._workers = Workers(processes, "rendering")
        self._max_bytes = 4 * prompt_bytes

    async def start(self) -> None:
        """Start the first child ahead of the first request."""
        await self._pool.start()

    async def expect(self, model: TextModel) -> None:
        """Compile the template and learn its forms. What is wrong with it is told to the first request."""
        with contextlib.suppress(NeuronError):
            await self._forms(model, model.template.source(with_tools=False), images=False)

    def close(self) -> None:
        """End the children. Later renders raise ShuttingDown."""
        self._pool.close()
        self._workers.close()

    @property
    def pool(self) -> TemplatePool:
        return self._pool

    async def render(self, model: TextModel, request: InferenceRequest) -> RenderedPrompt:
        """Segments whose joined text is the template's output, byte for byte.

        Raises InvalidValue (kwargs, unpaired surrogates), VisionUnsupported, TemplateError, TemplateTimeout,
        TemplateTooLarge, InternalError.
        """
        check_template_kwargs(request.template_kwargs)
        source = model.template.source(with_tools=bool(request.tools))
        images = has_images(request.messages)
        forms = await self._forms(model, source, images)
        messages = template_messages(request.messages, as_parts=images or not forms.text)
        tools = template_tools(request)
        knobs = thinking_variables(request, source)
        control = model.tokenizer.control
        text = await self._run(model, source, messages, tools, knobs)
        view = View(messages, tools, knobs)
        spans = await self._data_spans(model, source, view, text) if control else []
        segments = await self._apart(text, to_segments, text, spans)
        opens = await self._apart(text, opens_reasoning, model, segments)
        return RenderedPrompt(segments=segments, text=text, opens_reasoning=opens)

    async def _data_spans(self, model: TextModel, source: str, view: "View", text: str) -> list[tuple[int, int]]:
        """Where data with control-token text came out. Costs a second rendering only when there is such data.

        A template that looks for a control text in its data would render marked data differently: then each text
        is tried alone, and those that change the output are searched for instead.
        """
        control = model.tokenizer.control
        data = list(view.texts())
        tokens = await self._apart(text, tokens_in, data, control)
        marks = choose_marks(data)
        if marks is None or len(tokens) * len(text) > _MAX_TRIED_CHARACTERS:
            return await self._apart(text, spans_by_search, text, data, control, tokens)

        async def attempt(skipped: Collection[str]) -> list[tuple[int, int]] | None:
            marker = DataMarker(control, marks, lenient_texts(model), skipped)
            marked = await self._apart(text, view.marked, marker)
            if marked == view:
                return []
            try:
                rendered = await self._run(model, source, *marked)
            except (TemplateError, TemplateTooLarge):
                return None
            plain, spans = await self._apart(text, read_marks, rendered, marks, control)
            return spans if plain == text else None

        spans = await attempt(())
        if spans is not None:
            return spans
        looked_for = [token for token in tokens if await attempt([other for other in tokens if other != token]) is None]
        spans = await attempt(looked_for)
        if spans is None:
            looked_for, spans = tokens, []
        return spans + await self._apart(text, spans_by_search, text, data, control, looked_for)

    async def _forms(self, model: TextModel, source: str, images: bool) -> ContentForms:
        """How the template takes content; found once per template by rendering two probes."""
        forms = model.forms.get(source)
        if forms is None:
            forms = await probe_forms(lambda messages: self._run(model, source, messages, None, {}))
            model.forms[source] = forms
        if images and not forms.parts:
            raise VisionUnsupported(
                "The model's chat template takes no images.", param="messages", model_id=model.model_id
            )
        return forms

    async def _run(
        self, model: TextModel, source: str, messages: list[Json], tools: list[Json] | None, knobs: Json
    ) -> str:
        variables = {
            **model.special_tokens,
            **knobs,
            "messages": [_with_reasoning_names(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": True,
        }
        try:
            encoded = msgspec.json.encode(variables)
        except UnicodeEncodeError as error:
            raise InvalidValue("A message holds an unpaired surrogate.", param="messages") from error
        except (RecursionError, TypeError, ValueError) as error:
            raise InvalidValue("The messages cannot be rendered.", param="messages") from error
        return await self._pool.render(source, encoded, max_bytes=self._max_bytes)

    async def _apart(self, text: str, function: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Call `function`, off the event loop when the prompt is long."""
        if len(text) < _SHORT:
            return function(*args)
        return await self._workers.run(function, *args)


def lenient_texts(model: TextModel) -> frozenset[str]:
    """Marker texts that stay control in assistant history."""
    pairs = [markers for markers in (model.reasoning, model.tool_call) if markers is not None]
    return frozenset(text for markers in pairs for text in (markers.open_text, markers.close_text))


def _with_reasoning_names(message: Json) -> Json:
    """Templates read past reasoning as `reasoning_content`, some as `thinking`."""
    reasoning = message.get("reasoning_content")
    return message if reasoning is None else {"thinking": reasoning, **message}
