"""From the daemon's cached facts to the bodies of the control routes. Pure; nothing here waits."""

from datetime import datetime

import msgspec

from neuron.actors.daemon import (
    Activation,
    Daemon,
    DeviceInfo,
    ModelInfo,
    ModelLoadFigures,
    ModelState,
    OfferedModel,
    PrefixCacheFigures,
)
from neuron.actors.figures import RequestRecord
from neuron.api import bodies

#: Gateways read any word they do not know as "loaded", so only words they know go out.
_STATUS = {
    ModelState.READY: "loaded",
    ModelState.LOADING: "loading",
    ModelState.RECOVERING: "recovering",
    ModelState.POISONED: "poisoned",
    ModelState.UNLOADING: "unloaded",
    ModelState.FAILED: "unloaded",
}
HARNESS = "candle"


def model_body(info: ModelInfo) -> bodies.ModelBody:
    return bodies.ModelBody(
        id=info.id,
        harness=HARNESS,
        status=_STATUS[info.state],
        devices=info.devices,
        capabilities=info.capabilities or ("text",),
        limit=bodies.LimitBody(context=info.context, input=info.input, output=info.output),
        tool_call=info.tool_call,
        reasoning=info.reasoning,
        servable=bodies.ServableBody(
            ok=info.servable, reason=info.servable_reason or "", detail=info.servable_detail or ""
        ),
        vram_used_mb=info.vram_used_mb,
        state=info.state.value,
        reason=info.poison.reason if info.reason is None and info.poison is not None else info.reason,
        poisoned_at=None if info.poison is None else info.poison.at,
        device_ids=info.device_ids,
        source_id=info.source_id,
        tensor_parallel=info.tensor_parallel,
        quant=info.quant,
        format=info.format,
        architecture=info.architecture,
        context_length=info.context,
        loaded_at=info.loaded_at,
        aliases=info.aliases,
        own_chat_template=info.own_chat_template,
    )


def openai_model(info: ModelInfo) -> bodies.OpenAiModel:
    return bodies.OpenAiModel(
        id=info.id,
        object="model",
        created=_seconds(info.loaded_at),
        owned_by="neuron",
        capabilities=info.capabilities or ("text",),
        context_length=info.context,
        max_model_len=info.context,
        status=_STATUS[info.state],
    )


def offered_model(offered: OfferedModel) -> bodies.OpenAiModel:
    return bodies.OpenAiModel(
        id=offered.id,
        object="model",
        created=0,
        owned_by="neuron",
        capabilities=offered.capabilities,
        context_length=offered.context,
        max_model_len=offered.context,
        status="unloaded",
    )


def device_body(info: DeviceInfo) -> bodies.DeviceBody:
    return bodies.DeviceBody(
        index=info.index,
        vram_used_mb=info.vram_used_mb,
        vram_free_mb=info.vram_free_mb,
        utilization_pct=info.utilization_pct,
        temp_c=info.temp_c,
        vram_total_mb=info.vram_total_mb,
        id=info.id,
        name=info.name,
        state=info.state,
        pid=info.pid,
        last_seen_s=info.last_seen_s,
    )


def load_body(figures: ModelLoadFigures) -> bodies.ModelLoadBody:
    return bodies.ModelLoadBody(
        id=figures.id,
        in_flight=figures.in_flight,
        queue_depth=figures.queue_depth,
        max_in_flight=figures.max_in_flight,
        max_queue_depth=figures.max_queue_depth,
        rejected_queue_full=figures.rejected_queue_full,
        rejected_timeout=figures.rejected_timeout,
        rejected_per_principal=figures.rejected_per_principal,
        tok_s_prefill=float(figures.tok_s_prefill),
        tok_s_decode=float(figures.tok_s_decode),
        status=_STATUS[figures.state],
        state=figures.state.value,
        active_request_id=figures.active_request_id,
        active_for_s=figures.active_for_s,
        queue=tuple(bodies.QueueBody(entry.req_id, entry.position, entry.waited_s) for entry in figures.queue),
        prefix_cache=prefix_body(figures.prefix_cache),
    )


def prefix_body(figures: PrefixCacheFigures | None) -> bodies.PrefixCacheBody | None:
    return None if figures is None else msgspec.convert(figures, bodies.PrefixCacheBody, from_attributes=True)


def request_body(record: RequestRecord) -> bodies.RequestBody:
    return bodies.RequestBody(
        req_id=record.req_id,
        model=record.model,
        phase=record.phase,
        outcome=record.outcome,
        ended_at=record.ended_at,
        tokens_in=record.prompt_tokens,
        tokens_out=record.completion_tokens,
        tokens_reused=record.cached_tokens,
        queue_ms=record.queue_ms,
        ttft_ms=record.ttft_ms,
        total_ms=record.total_ms,
        tok_s_decode=record.tok_s_decode,
    )


def activation_body(activation: Activation) -> bodies.ActivationBody:
    return bodies.ActivationBody(
        state=activation.state,
        pending=activation.pending,
        in_progress=activation.in_progress,
        completed=activation.completed,
        failed=tuple(bodies.Failure(model_id, error) for model_id, error in activation.failed),
    )


def health_body(daemon: Daemon, *, uptime_s: float, version: str) -> bodies.HealthBody:
    activation = daemon.activation()
    figures = daemon.load_figures()
    return bodies.HealthBody(
        status=overall(daemon, activation, figures),
        version=version,
        uptime_secs=int(uptime_s),
        uptime_s=round(uptime_s, 3),
        activation=activation_body(activation),
        devices=tuple(device_body(info) for info in daemon.devices()),
        models=tuple(load_body(entry) for entry in figures),
    )


def overall(daemon: Daemon, activation: Activation, figures: list[ModelLoadFigures]) -> str:
    if daemon.draining():
        return "draining"
    broken = any(entry.state in (ModelState.POISONED, ModelState.RECOVERING) for entry in figures)
    return "degraded" if broken or activation.failed else "ok"


def _seconds(timestamp: str | None) -> int:
    """Unix seconds of an RFC 3339 text; 0 when there is none."""
    return 0 if timestamp is None else int(datetime.fromisoformat(timestamp).timestamp())
