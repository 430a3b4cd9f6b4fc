"""The answers of the two inference routes in the OpenAPI document; tests hold them against real answers."""

from neuron.actors.events import FinishReason
from neuron.api.openapi_parts import (
    ANY_OBJECT,
    FLAG,
    NULL,
    NUMBER,
    TEXT,
    WHOLE,
    Json,
    any_of,
    either,
    items,
    nullable,
    optional,
    record,
    ref,
)

_REASON = either(*(reason.value for reason in FinishReason))
_STATUS = either("in_progress", "completed", "incomplete")


def answer_schemas() -> Json:
    """Named components."""
    return {
        "ChatCompletion": _completion(),
        "ChatCompletionChunk": _chunk(),
        "Response": _response(),
        "ResponseEvent": {
            **record({"type": TEXT, "sequence_number": WHOLE}),
            "description": "One event of a stream; `type` is its name. The last is response.completed, "
            "response.incomplete or response.failed.",
        },
        "OutputItem": _item(),
        "Usage": record(
            {
                "prompt_tokens": WHOLE,
                "completion_tokens": WHOLE,
                "total_tokens": WHOLE,
                "prompt_tokens_details": record({"cached_tokens": WHOLE}),
                "completion_tokens_details": record({"reasoning_tokens": WHOLE}),
                "helexa_timing": ref("HelexaTiming"),
            }
        ),
        "ResponsesUsage": record(
            {
                "input_tokens": WHOLE,
                "input_tokens_details": record({"cached_tokens": WHOLE}),
                "output_tokens": WHOLE,
                "output_tokens_details": record({"reasoning_tokens": WHOLE}),
                "total_tokens": WHOLE,
            },
            helexa_timing=ref("HelexaTiming"),
        ),
        "HelexaTiming": record({"prefill_ms": WHOLE, "decode_ms": WHOLE, "prefill_tokens": WHOLE}),
        "Timings": record(
            {
                "prompt_n": WHOLE,
                "prompt_ms": NUMBER,
                "prompt_per_second": NUMBER,
                "predicted_n": WHOLE,
                "predicted_ms": NUMBER,
                "predicted_per_second": NUMBER,
                "queue_ms": NUMBER,
                "cached_n": WHOLE,
            }
        ),
        "Logprob": _logprob(),
    }


def _logprob() -> Json:
    one: Json = {"token": TEXT, "logprob": NUMBER, "bytes": items(WHOLE)}
    return record({**one, "top_logprobs": items(record(one))})


def _call(**place: Json) -> Json:
    return record(
        {**place, "id": TEXT, "type": either("function"), "function": record({"name": TEXT, "arguments": TEXT})}
    )


def _completion() -> Json:
    message = record(
        {"role": either("assistant"), "content": nullable("string")},
        reasoning_content=TEXT,
        reasoning=TEXT,
        tool_calls=items(_call(), minItems=1),
    )
    choice = record(
        {"index": WHOLE, "message": message, "finish_reason": _REASON},
        logprobs=record({"content": items(ref("Logprob"))}),
        stop_reason=TEXT,
    )
    head = {"id": TEXT, "object": either("chat.completion"), "created": WHOLE, "model": TEXT}
    return record({**head, "choices": items(choice), "timings": ref("Timings"), "usage": ref("Usage")})


def _chunk() -> Json:
    fragment = record(
        {"index": WHOLE, "function": record({"arguments": TEXT}, name=TEXT)}, id=TEXT, type=either("function")
    )
    delta = record({}, role=TEXT, content=TEXT, reasoning_content=TEXT, reasoning=TEXT, tool_calls=items(fragment))
    choice = record(
        {"index": WHOLE, "delta": delta, "finish_reason": any_of(_REASON, NULL)},
        logprobs=record({"content": items(ref("Logprob"))}),
        stop_reason=TEXT,
    )
    head = {"id": TEXT, "object": either("chat.completion.chunk"), "created": WHOLE, "model": TEXT}
    return {
        **record({**head, "choices": items(choice, maxItems=1)}, timings=ref("Timings"), usage=optional(ref("Usage"))),
        "description": "Usage is on the last chunk; that one has no choices where include_usage was asked for, and "
        "usage is null in all others then. `data: [DONE]` follows. An error ends the stream with an ErrorBody instead.",
    }


def _item() -> Json:
    shared = {"id": TEXT, "status": _STATUS}
    text = record({"type": either("output_text"), "text": TEXT, "annotations": items(ANY_OBJECT)}, logprobs=items({}))
    thought = items(record({"type": either("summary_text", "reasoning_text"), "text": TEXT}))
    return any_of(
        record({**shared, "type": either("message"), "role": either("assistant"), "content": items(text)}),
        record({**shared, "type": either("reasoning"), "summary": thought, "content": thought}),
        record({**shared, "type": either("function_call"), "call_id": TEXT, "name": TEXT, "arguments": TEXT}),
    )


def _response() -> Json:
    error = record({"code": TEXT, "message": TEXT}, type=TEXT, neuron_code=TEXT)
    return record(
        {
            "id": TEXT,
            "object": either("response"),
            "created_at": WHOLE,
            "status": either("in_progress", "completed", "incomplete", "failed"),
            "background": FLAG,
            "error": optional(error),
            "incomplete_details": optional(record({"reason": either("max_output_tokens")})),
            "instructions": nullable("string"),
            "max_output_tokens": nullable("integer"),
            "metadata": ANY_OBJECT,
            "model": TEXT,
            "output": items(ref("OutputItem")),
            "parallel_tool_calls": FLAG,
            "previous_response_id": NULL,
            "reasoning": ANY_OBJECT,
            "store": FLAG,
            "temperature": nullable("number"),
            "text": ANY_OBJECT,
            "tool_choice": any_of(TEXT, ANY_OBJECT),
            "tools": items(ANY_OBJECT),
            "top_p": nullable("number"),
            "truncation": TEXT,
            "usage": optional(ref("ResponsesUsage")),
        },
        timings=ref("Timings"),
    )
