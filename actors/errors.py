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
    code = "vision_unsupported"


class InvalidImage(RequestError):
    code = "invalid_image"


class ChainedConversationNotSupported(RequestError):
    code = "chained_conversation_not_supported"


class TemplateError(RequestError):
    """The model's chat template refused the conversation; the message carries the template's sentence."""

    code = "template_error"


class TemplateTimeout(RequestError):
    code = "template_timeout"


class TemplateTooLarge(RequestError):
    code = "template_too_large"


class InvalidApiKey(RequestError):
    code = "invalid_api_key"
    status = 401
    type = AUTHENTICATION


class Forbidden(RequestError):
    code = "forbidden"
    status = 403
    type = AUTHENTICATION


class HostNotAllowed(RequestError):
    code = "host_not_allowed"
    status = 403


class ModelNotFound(RequestError):
    code = "model_not_found"
    status = 404

    def __init__(self, model_id: str) -> None:
        super().__init__(
            f"The model '{model_id[:200]}' does not exist or is not loaded.", param="model", model_id=model_id[:200]
        )


class RouteNotFound(RequestError):
    code = "not_found"
    status = 404


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"
    status = 405


class BodyTimeout(RequestError):
    code = "body_timeout"
    status = 408


class AlreadyLoaded(RequestError):
    """Resident with another spec. The message holds the words "already loaded" (gateways look for them)."""

    code = "already_loaded"
    status = 409


class BodyTooLarge(RequestError):
    code = "body_too_large"
    status = 413


class UnsupportedMediaType(RequestError):
    code = "unsupported_media_type"
    status = 415


class HeadersTooLarge(RequestError):
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
    code = "unknown_source"


class TpRequiresSafetensors(PreflightError):
    code = "tp_requires_safetensors"


class QuantNotFound(PreflightError):
    code = "quant_not_found"


class RepoFetchFailed(PreflightError):
    code = "repo_fetch_failed"


class EmptyRepo(PreflightError):
    code = "empty_repo"


class UnsupportedArchitecture(PreflightError):
    code = "unsupported_architecture"


class UnsupportedDevice(PreflightError):
    code = "unsupported_device"


class DoesNotFit(PreflightError):
    code = "does_not_fit"


class IndivisibleHeads(PreflightError):
    code = "indivisible_heads"


class CorruptWeights(PreflightError):
    code = "corrupt_weights"


class InvalidGguf(CorruptWeights):
    code = "invalid_gguf"


class MissingShard(PreflightError):
    code = "missing_shard"


class InvalidConfig(PreflightError):
    code = "invalid_model_config"


class InvalidTokenizer(PreflightError):
    code = "invalid_tokenizer"


class SourceUnreadable(PreflightError):
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
    code = "model_loading"
    status = 503
    retry_after = 2


class InsufficientVram(NeuronError):
    code = "insufficient_vram"
    status = 503
    retry_after = 5


class ModelPoisoned(NeuronError):
    """Refused without device work; load the model again to cure it."""

    code = "model_poisoned"
    status = 503
    should_retry: ClassVar[bool | None] = False


class ModelUnloading(NeuronError):
    code = "model_unloading"
    status = 503
    retry_after = 5


class QueueTimeout(NeuronError):
    code = "queue_timeout"
    status = 503
    retry_after = 5


class DeviceUnavailable(NeuronError):
    code = "device_unavailable"
    status = 503


class DeviceUnhealthy(NeuronError):
    code = "device_unhealthy"
    status = 503
    should_retry = False


class TpInitFailed(NeuronError):
    code = "tp_init_failed"
    status = 503


class TpDivergence(NeuronError):
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
