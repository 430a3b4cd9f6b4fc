"""The cached view of one model for /models: built from what the model actor already knows, waiting for nothing."""

from neuron.actors.admission import check_memory
from neuron.actors.daemon import DeviceInfo, ModelInfo, ModelState, PoisonRecord
from neuron.actors.device.devices import device_index
from neuron.actors.errors import InsufficientVram
from neuron.actors.resident import Resident
from neuron.actors.settings import LimitSettings


def servable(
    state: ModelState, device: DeviceInfo | None, limits: LimitSettings
) -> tuple[bool, str | None, str | None]:
    """(ok, reason, detail): would a request be let in right now? The same arithmetic as the gate."""
    if state is not ModelState.READY:
        return False, str(state), None
    if device is not None:
        try:
            check_memory(device, limits)
        except InsufficientVram as error:
            return False, error.code, f"{device.vram_free_mb} MiB free, {limits.min_free_vram_mb} MiB kept back"
    return True, None, None


def model_info(
    *,
    model_id: str,
    source_id: str,
    aliases: tuple[str, ...],
    state: ModelState,
    known: Resident | None,
    device_ids: tuple[str, ...],
    poison: PoisonRecord | None,
    reason: str | None,
    limits: LimitSettings,
) -> ModelInfo:
    """`known` is the resident model, or the last one while there is none (poisoned, recovering, unloading)."""
    device_ids = device_ids or (known.device_ids if known is not None else ())
    ok, why, detail = servable(state, known.device.info() if known is not None else None, limits)
    return ModelInfo(
        id=model_id,
        source_id=source_id,
        state=state,
        devices=tuple(device_index(device) for device in device_ids),
        device_ids=device_ids,
        capabilities=known.text.capabilities if known is not None else (),
        context=known.limits.context if known is not None else 0,
        input=known.limits.input if known is not None else 0,
        output=known.limits.output if known is not None else 0,
        tool_call=known is not None and known.text.tool_call is not None,
        reasoning=known is not None and known.text.reasoning is not None,
        servable=ok,
        servable_reason=why,
        servable_detail=detail,
        vram_used_mb=known.megabytes if known is not None else None,
        reason=reason,
        poison=poison,
        tensor_parallel=max(1, len(device_ids)),
        quant=(known.artifact.quant or known.artifact.stored_quant) if known is not None else None,
        format=str(known.artifact.format) if known is not None else "",
        architecture=known.architecture if known is not None else "",
        loaded_at=known.loaded_at if known is not None else None,
        aliases=aliases,
        own_chat_template=known.text.own_template if known is not None else True,
    )
