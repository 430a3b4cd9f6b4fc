"""The limits on what a client may send: one table, from which the documents are made and which the tests walk.

Read by the HTTP edge (`neuron.api`) and by the model actor. Limits an operator may change live in settings.
"""

import msgspec

MIB = 1024 * 1024
KIB = 1024


class Limit(msgspec.Struct, frozen=True):
    """`value` is the largest accepted; `unit` and `over` (status and code of a refusal) are for the documents."""

    name: str
    value: int
    unit: str
    over: str


# -- the connection ------------------------------------------------------------------------------
HEADER_TOTAL_BYTES = Limit("all request headers", 16 * KIB, "bytes", "431 headers_too_large")
HEADER_BYTES = Limit("one request header", 8 * KIB, "bytes", "431 headers_too_large")
HEADER_COUNT = Limit("number of request headers", 100, "headers", "431 headers_too_large")
HEADER_SECONDS = Limit("time for the request headers", 10, "s", "408 body_timeout, close")
BODY_SECONDS = Limit("time for the request body, beyond what 64 KiB/s explain", 30, "s", "408 body_timeout, close")
BODY_BYTES_PER_SECOND = 64 * KIB
CONTROL_BODY_BYTES = Limit("body of a call that is no inference", 64 * KIB, "bytes", "413 body_too_large")
BODIES_BYTES = Limit(
    "all request bodies that arrive or are read at one time, beyond the first 64 KiB of each",
    256 * MIB,
    "bytes",
    "429 rate_limit_exceeded",
)
KEEP_ALIVE_SECONDS = Limit("idle connection", 120, "s", "close")
CONNECTIONS = Limit("open connections", 1024, "connections", "close")
CONNECTIONS_PER_PEER = Limit("open connections of one remote address (loopback excepted)", 64, "connections", "close")
REQUEST_ID_CHARS = Limit("x-request-id", 128, "characters", "replaced by one of ours")

# -- JSON ----------------------------------------------------------------------------------------
JSON_DEPTH = Limit("nesting of a JSON body", 64, "levels", "400 invalid_json")
JSON_VALUES = Limit("values in a JSON body (elements, members, empty lists)", 1 << 18, "values", "400 invalid_json")
JSON_INT_DIGITS = Limit("digits of a JSON integer", 19, "digits", "400 invalid_json")

# -- the conversation ----------------------------------------------------------------------------
MODEL_ID_CHARS = Limit("model id", 256, "characters", "400 invalid_value")
MESSAGES = Limit("messages", 2048, "messages", "400 invalid_value")
CONTENT_PARTS = Limit("content parts of one message", 256, "parts", "400 invalid_value")
TOOLS = Limit("tools", 128, "tools", "400 invalid_value")
TOOL_CALLS = Limit("tool calls of one message", 128, "calls", "400 invalid_value")
TOOL_NAME_CHARS = Limit("tool name", 128, "characters", "400 invalid_value")
SCHEMA_BYTES = Limit("JSON schema of one tool or response format", 256 * KIB, "bytes", "400 invalid_value")
IMAGES = Limit("images of one request", 8, "images", "400 invalid_image")
IMAGE_BYTES = Limit("one image file", 10 * MIB, "bytes", "400 invalid_image")
IMAGE_PIXELS = Limit("one image", 16_000_000, "pixels", "400 invalid_image")
IMAGE_PIXELS_TOTAL = Limit("all images of one request", 64_000_000, "pixels", "400 invalid_image")
TEMPLATE_KWARGS_DEPTH = Limit("nesting of chat_template_kwargs", 16, "levels", "400 invalid_value")
TEMPLATE_KWARGS_NODES = Limit("values in chat_template_kwargs", 128, "values", "400 invalid_value")
TEMPLATE_KWARGS_BYTES = Limit("size of chat_template_kwargs", 16 * KIB, "bytes", "400 invalid_value")

# -- sampling ------------------------------------------------------------------------------------
STOP_STRINGS = Limit("stop strings", 16, "strings", "400 invalid_value")
STOP_BYTES = Limit("one stop string", 256, "bytes", "400 invalid_value")
LOGIT_BIAS_ENTRIES = Limit("logit_bias entries", 1024, "entries", "400 invalid_value")
TOP_LOGPROBS = Limit("top_logprobs", 20, "tokens", "400 invalid_value")
CHOICES = Limit("n", 1, "choices", "400 unsupported_parameter")

TABLE: tuple[Limit, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Limit))
