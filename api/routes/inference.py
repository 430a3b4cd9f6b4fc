"""POST /v1/chat/completions and /v1/responses: validate, submit, then stream or fold the same events."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import msgspec
from quart import Quart, Response

from neuron.actors import limits
from neuron.actors.daemon import Daemon, InferenceStream, ModelInfo
from neuron.actors.errors import ModelNotFound, VisionUnsupported
from neuron.actors.request import InferenceRequest, Thinking, ToolChoice
from neuron.actors.settings import ThinkingDefault
from neuron.api.body import too_large
from neuron.api.context import RequestContext
from neuron.api.json_body import decode_object
from neuron.api.reply import current
from neuron.api.sse import collect, event_stream, inference_frames
from neuron.api.validate.chat import has_images, read_chat
from neuron.api.validate.responses import ResponsesCall, read_responses
from neuron.api.wire.chat import ChatFold, ChatShape, ChatStream, new_chat_id
from neuron.api.wire.responses import ResponsesShape, ResponsesStream, new_response_id, responses_body
from neuron.runtime.errors import NeuronError
from neuron.runtime.workers import Workers

Call = TypeVar("Call", covariant=True)


class Reads(Protocol[Call]):
    def __call__(self, body: dict[str, Any], *, req_id: str, principal: str) -> Call: ...


#: Bodies above this many bytes are parsed in a thread, so many at once: each may take several times its own size.
_SMALL_BODY = 16 * limits.KIB
_PARSERS = 2
#: Fields of chat, as Responses calls them.
_NAMES = {"messages": "input", "response_format": "text.format", "max_tokens": "max_output_tokens"}


def register(app: Quart, daemon: Daemon) -> None:
    workers = Workers(_PARSERS, "bodies")

    @app.post("/v1/chat/completions")
    async def chat() -> Response:
        context = current()
        call = await _parse(workers, context, read_chat)
        request = _default_thinking(call.request, daemon, context)
        shape = ChatShape(
            id=new_chat_id(),
            created=int(time.time()),
            model=request.model,
            include_usage=call.include_usage,
            include_thinking=context.include_thinking,
            logprobs=request.logprobs,
        )
        stream, streamed = await _submit(daemon, request, context), call.stream
        # Megabytes of images need not wait for a buffered answer.
        del call, request
        if streamed:
            return event_stream(inference_frames(stream, ChatStream(shape), context.note_error))
        fold = ChatFold(shape)
        await collect(stream, fold.push)
        return Response(fold.body(), content_type="application/json")

    @app.post("/v1/responses")
    async def responses() -> Response:
        context = current()
        call = await _parse(workers, context, read_responses)
        with _about_input():
            stream, streamed = await _submit(daemon, call.request, context), call.stream
            projection = ResponsesStream(_responses_shape(call, context))
            del call
            if streamed:
                return event_stream(inference_frames(stream, projection, context.note_error))
            await collect(stream, projection.push)
        return Response(responses_body(projection), content_type="application/json")


@contextmanager
def _about_input() -> Iterator[None]:
    """What is below names fields as chat does."""
    try:
        yield
    except NeuronError as error:
        error.param = _NAMES.get(error.param or "", error.param)
        raise


async def _parse(workers: Workers, context: RequestContext, read: Reads[Call]) -> Call:
    def work() -> Call:
        return read(decode_object(context.body), req_id=context.req_id, principal=context.principal)

    if len(context.body) <= _SMALL_BODY:
        return work()
    # Decoding megabytes of JSON would hold up every other connection.
    return await workers.run(work)


async def _submit(daemon: Daemon, request: InferenceRequest, context: RequestContext) -> InferenceStream:
    """Everything that can be refused is refused here, before an answer begins."""
    try:
        info = daemon.model(request.model)
    except ModelNotFound:
        info = None
    if info is not None:
        _check_modality(request, info, daemon, len(context.body))
    context.body = b""
    stream = await daemon.submit(request)
    context.forget_body()
    context.on_end.append(lambda: stream.cancel(context.left_because()))
    return stream


def _check_modality(request: InferenceRequest, info: ModelInfo, daemon: Daemon, body_bytes: int) -> None:
    if not info.capabilities or "vision" in info.capabilities:
        return
    if has_images(request):
        raise VisionUnsupported(
            f"The model '{info.id}' takes text only; this request holds an image.",
            param="messages",
            model_id=info.id,
            suggestion="Leave the images out, or ask a model whose capabilities include vision.",
        )
    most = daemon.settings.limits.text_body_mb * limits.MIB
    if body_bytes > most:
        raise too_large(most)


def _default_thinking(request: InferenceRequest, daemon: Daemon, context: RequestContext) -> InferenceRequest:
    """`[defaults] thinking = "header"`: chat thinks only when the header or the request asks for it."""
    if daemon.settings.defaults.thinking is not ThinkingDefault.HEADER or request.thinking is not Thinking.DEFAULT:
        return request
    thinking = Thinking.ON if context.include_thinking else Thinking.OFF
    return msgspec.structs.replace(request, thinking=thinking)


def _responses_shape(call: ResponsesCall, context: RequestContext) -> ResponsesShape:
    request = call.request
    choice: str | dict[str, str] = request.tool_choice.value
    if request.tool_choice is ToolChoice.NAMED and request.tool_choice_name is not None:
        choice = {"type": "function", "name": request.tool_choice_name}
    reasoning = {} if request.reasoning_effort is None else {"effort": request.reasoning_effort}
    return ResponsesShape(
        id=new_response_id(),
        created=int(time.time()),
        model=request.model,
        include_thinking=context.include_thinking,
        instructions=call.instructions,
        tools=tuple({"type": "function", **tool.raw["function"]} for tool in request.tools),
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls,
        temperature=request.sampling.temperature,
        top_p=request.sampling.top_p,
        max_output_tokens=request.max_tokens,
        reasoning=reasoning,
        text=call.text,
        metadata=call.metadata,
    )
