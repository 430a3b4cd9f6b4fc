"""Every metric of GET /metrics: one table, from which the collector, the documents and their tests are made."""

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(msgspec.Struct, frozen=True):
    """`name` as scraped; a counter's ends in _total."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


_MODEL = ("model",)
_DEVICE = ("device",)
C, G, H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

HTTP_REQUESTS = Family(
    "neuron_http_requests_total",
    C,
    "HTTP requests answered; status 0: the client left first; code: the error's code, also of a broken stream",
    ("method", "route", "status", "code"),
)
HTTP_SECONDS = Family("neuron_http_request_seconds", H, "From a request's headers to the end of its answer", ("route",))
REQUESTS = Family(
    "neuron_requests_total",
    C,
    "Inference requests that ended, by finish reason or error code",
    ("model", "outcome"),
)
PROMPT_TOKENS = Family("neuron_prompt_tokens_total", C, "Tokens of prompts, reused ones included", _MODEL)
CACHED_TOKENS = Family("neuron_cached_tokens_total", C, "Tokens of prompts that were not computed again", _MODEL)
COMPLETION_TOKENS = Family("neuron_completion_tokens_total", C, "Tokens generated", _MODEL)
REASONING_TOKENS = Family("neuron_reasoning_tokens_total", C, "Tokens generated inside think blocks", _MODEL)
QUEUE_SECONDS = Family("neuron_queue_wait_seconds", H, "From a request's arrival to its turn", _MODEL)
FIRST_TOKEN = Family("neuron_time_to_first_token_seconds", H, "From a request's arrival to its first token", _MODEL)
INTER_TOKEN = Family("neuron_inter_token_seconds", H, "Between two tokens of an answer", _MODEL)
DURATION = Family("neuron_request_seconds", H, "From a request's arrival to its end", _MODEL)
UNHEALTHY = Family("neuron_unhealthy_logits_total", C, "Steps whose logits were not finite", _MODEL)
POISONINGS = Family("neuron_model_poisonings_total", C, "Times a model was marked poisoned", _MODEL)
STATE = Family("neuron_model_state", G, "1 for the state a model is in", ("model", "state"))
IN_FLIGHT = Family("neuron_model_in_flight", G, "Requests that run", _MODEL)
QUEUE_DEPTH = Family("neuron_model_queue_depth", G, "Requests that wait", _MODEL)
QUEUE_LIMIT = Family("neuron_model_queue_limit", G, "Requests that may wait", _MODEL)
MODEL_MEMORY = Family("neuron_model_memory_bytes", G, "Device memory that a resident model holds", _MODEL)
PREFILL_RATE = Family("neuron_model_prefill_tokens_per_second", G, "Moving average", _MODEL)
DECODE_RATE = Family("neuron_model_decode_tokens_per_second", G, "Moving average", _MODEL)
REJECTIONS = Family(
    "neuron_model_rejections_total", C, "Requests refused by the queue since the model was loaded", ("model", "reason")
)
PREFIX_REQUESTS = Family(
    "neuron_prefix_cache_requests_total",
    C,
    "Prompts that began with a kept prefix (hit) or with none (miss), since the model was loaded",
    ("model", "result"),
)
PREFIX_TOKENS = Family("neuron_prefix_cache_reused_tokens_total", C, "Tokens taken from kept prefixes", _MODEL)
PREFIX_BYTES = Family("neuron_prefix_cache_bytes", G, "Memory of kept prefixes: used, budget", ("model", "kind"))
PREFIX_ENTRIES = Family("neuron_prefix_cache_entries", G, "Chunks of prompts that are kept", _MODEL)
PREFIX_EVICTIONS = Family("neuron_prefix_cache_evictions_total", C, "Kept chunks or states given up for others", _MODEL)
PREFIX_REFUSED = Family("neuron_prefix_cache_refused_total", C, "Times that nothing could make room", _MODEL)
PREFIX_FAILED = Family("neuron_prefix_cache_failed_restores_total", C, "Restores that failed and were dropped", _MODEL)
PREFIX_SECONDS = Family("neuron_prefix_cache_restore_seconds_total", C, "Time spent going back to prefixes", _MODEL)
DEVICE_UP = Family("neuron_device_up", G, "1 while the device process runs", _DEVICE)
DEVICE_MEMORY = Family("neuron_device_memory_bytes", G, "Memory of a device: used, free, total", ("device", "kind"))
DEVICE_BUSY = Family("neuron_device_utilization_ratio", G, "0 to 1, as the driver says; 0 when unknown", _DEVICE)
DEVICE_HEAT = Family("neuron_device_temperature_celsius", G, "0 when unknown", _DEVICE)
DEVICE_STARTS = Family("neuron_device_process_starts_total", C, "Processes started for a device", _DEVICE)
DEVICE_DEATHS = Family("neuron_device_process_deaths_total", C, "Device processes that ended unexpectedly", _DEVICE)
DRAINING = Family("neuron_draining", G, "1 while the daemon shuts down")
DROPPED_LINES = Family("neuron_log_lines_dropped_total", C, "Log lines lost to a reader that is too slow")
INFO = Family("neuron_info", G, "1; the version is a label", ("version",))

TABLE: tuple[Family, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Family))
