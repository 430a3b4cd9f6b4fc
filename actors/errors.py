"""The domain's part of the error tree: one class for each public code. The HTTP edge only projects them."""

from typing import ClassVar

from neuron.runtime.errors import INVALID_REQUEST, NeuronError

RATE_LIMIT = "rate_limit_error"
AUTHENTICATION = "authentication_error"


class RequestError(NeuronError):
    """Something is wrong with what the client sent."""

    code = "invalid_value"
    status = 400
    type = INVALID_REQUEST


class InvalidValue(RequestError):
    """A field has the wrong type or lies outside its range; `param` names it."""


class InvalidJson(RequestError):
    """The body is no JSON object, or one beyond the limits of nesting and digits."""

    code = "invalid_json"


class UnsupportedParameter(RequestError):
    """A field that changes the meaning and is not supported; `param` names it."""

    code = "unsupported_parameter"


class ContextLengthExceeded(RequestError):
    """The prompt is longer than the model (or the cap) takes. Agents match on code and wording."""

    code = "context_length_exceeded"

    def __init__(self, prompt_len: int, limit: int) -> None:
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, your messages resulted in "
            f"{prompt_len} tokens. Please reduce the length of the messages.",
            param="messages",
            kind="prompt_too_long",
            prompt_len=prompt_len,
            max=limit,
        )


class VisionUnsupported(RequestError):
    """An image for a model that takes text only; carries `model_id` and `suggestion`."""

    code = "vision_unsupported"


class InvalidImage(RequestError):
    """An image that cannot be decoded or lies beyond the limits; `param` names it."""

    code = "invalid_image"


class ChainedConversationNotSupported(RequestError):
    """previous_response_id: nothing is stored here, so send the whole conversation."""

    code = "chained_conversation_not_supported"


class TemplateError(RequestError):
    """The model's chat template refused the conversation; the message carries the template's sentence."""

    code = "template_error"


class TemplateTimeout(RequestError):
    """Rendering the conversation took too long; the helper process was ended."""

    code = "template_timeout"


class TemplateTooLarge(RequestError):
    """The rendered conversation is larger than any prompt may be."""

    code = "template_too_large"


class InvalidApiKey(RequestError):
    """No key was sent, or one that is not known."""

    code = "invalid_api_key"
    status = 401
    type = AUTHENTICATION


class Forbidden(RequestError):
    """The key may not do this (loading needs an admin key), or the web origin is not allowed."""

    code = "forbidden"
    status = 403
    type = AUTHENTICATION


class HostNotAllowed(RequestError):
    """The Host header names another server: see server.allowed_hosts."""

    code = "host_not_allowed"
    status = 403


class ModelNotFound(RequestError):
    """No such model is resident; carries `model_id`."""

    code = "model_not_found"
    status = 404

    def __init__(self, model_id: str) -> None:
        super().__init__(
            f"The model '{model_id[:200]}' does not exist or is not loaded.", param="model", model_id=model_id[:200]
        )


class RouteNotFound(RequestError):
    """There is no such route."""

    code = "not_found"
    status = 404


class MethodNotAllowed(RequestError):
    """The route does not take this method; the Allow header lists those it takes."""

    code = "method_not_allowed"
    status = 405


class BodyTimeout(RequestError):
    """The request body took too long to arrive."""

    code = "body_timeout"
    status = 408


class AlreadyLoaded(RequestError):
    """Resident with another spec. The message holds the words "already loaded" (gateways look for them)."""

    code = "already_loaded"
    status = 409


class BodyTooLarge(RequestError):
    """The request body is larger than limits.body_mb (or text_body_mb); carries `max_bytes`."""

    code = "body_too_large"
    status = 413


class UnsupportedMediaType(RequestError):
    """Send application/json, not compressed."""

    code = "unsupported_media_type"
    status = 415


class HeadersTooLarge(RequestError):
    """The request headers are beyond their limits."""

    code = "headers_too_large"
    status = 431


class PreflightError(RequestError):
    """A load that can be refused before any weight is fetched or device memory is taken.

    The body repeats the code as `kind` and carries `model_id` and, where one helps, `suggestion`.
    """

    status = 422
    code = "unsupported_model"

    def __init__(self, message: str, *, model_id: str, suggestion: str | None = None, **extra: object) -> None:
        fields = {"kind": self.code, "model_id": model_id, **extra}
        if suggestion is not None:
            fields["suggestion"] = suggestion
        super().__init__(message, **fields)  # type: ignore[arg-type]


class InvalidModelId(PreflightError):
    """Not of the form `[scheme:]org/name`."""

    code = "invalid_model_id"
    status = 400


class UnknownSource(PreflightError):
    """The id names a source that is not configured."""

    code = "unknown_source"


class TpRequiresSafetensors(PreflightError):
    """Tensor parallelism of a GGUF file; carries `tp_size` and `gguf_quants`."""

    code = "tp_requires_safetensors"


class QuantNotFound(PreflightError):
    """The repository has no such quantisation; carries `requested`, `available`, `nearest`."""

    code = "quant_not_found"


class RepoFetchFailed(PreflightError):
    """The source could not be reached or refused; carries `cause`."""

    code = "repo_fetch_failed"


class EmptyRepo(PreflightError):
    """The repository holds no weights of a known format."""

    code = "empty_repo"


class UnsupportedArchitecture(PreflightError):
    """The model is of an architecture that is not served."""

    code = "unsupported_architecture"


class UnsupportedDevice(PreflightError):
    """The device is not one of this host."""

    code = "unsupported_device"


class DoesNotFit(PreflightError):
    """The device has too little memory; carries the whole budget and `largest_context`."""

    code = "does_not_fit"


class IndivisibleHeads(PreflightError):
    """The attention heads cannot be shared out over so many devices."""

    code = "indivisible_heads"


class CorruptWeights(PreflightError):
    """A weight file is damaged, truncated or contradicts itself."""

    code = "corrupt_weights"


class InvalidGguf(CorruptWeights):
    """A GGUF file that cannot be read."""

    code = "invalid_gguf"


class MissingShard(PreflightError):
    """A part of a split model is missing."""

    code = "missing_shard"


class InvalidConfig(PreflightError):
    """The model's config.json contradicts itself or lacks a key."""

    code = "invalid_model_config"


class InvalidTokenizer(PreflightError):
    """The model's tokenizer cannot be read."""

    code = "invalid_tokenizer"


class SourceUnreadable(PreflightError):
    """The files of a source cannot be read on this host."""

    code = "source_unreadable"


class RateLimited(NeuronError):
    """`kind` says why: queue_full or per_principal."""

    code = "rate_limit_exceeded"
    status = 429
    type = RATE_LIMIT
    retry_after = 2


class DeviceFault(NeuronError):
    """The device failed while this request ran; its process is gone and the model poisoned."""

    code = "device_fault"
    status = 500
    should_retry = False


class NanLogits(NeuronError):
    """The model produced no usable next-token distribution; this request fails, the model stays."""

    code = "nan_logits"
    status = 500


class ModelLoading(NeuronError):
    """The model is being loaded; carries `model_id`."""

    code = "model_loading"
    status = 503
    retry_after = 2


class InsufficientVram(NeuronError):
    """The device has too little free memory for another request right now."""

    code = "insufficient_vram"
    status = 503
    retry_after = 5


class ModelPoisoned(NeuronError):
    """Refused without device work; load the model again to cure it."""

    code = "model_poisoned"
    status = 503
    should_retry: ClassVar[bool | None] = False


class ModelUnloading(NeuronError):
    """The model is being unloaded."""

    code = "model_unloading"
    status = 503
    retry_after = 5


class QueueTimeout(NeuronError):
    """The request waited limits.queue_seconds for its turn."""

    code = "queue_timeout"
    status = 503
    retry_after = 5


class DeviceUnavailable(NeuronError):
    """The device cannot be opened by its process."""

    code = "device_unavailable"
    status = 503


class DeviceUnhealthy(NeuronError):
    """The device failed its check after a fault."""

    code = "device_unhealthy"
    status = 503
    should_retry = False


class TpInitFailed(NeuronError):
    """The processes of a tensor-parallel group could not find each other."""

    code = "tp_init_failed"
    status = 503


class TpDivergence(NeuronError):
    """The ranks of a tensor-parallel group disagree."""

    code = "tp_divergence"
    status = 503
    should_retry = False


class SlowClient(NeuronError):
    """The client stopped reading its stream; it was cut so that the model is free again."""

    code = "slow_client"
    status = 503


class ClientDisconnected(NeuronError):
    """Never sent (nobody is there to read it); it is the error_code of the terminal log line."""

    code = "client_disconnected"
    status = 499
