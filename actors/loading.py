"""Loader: from a model id to a Resident. Sources, preflight and text first; the device only once they agree."""

import dataclasses
import functools
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypedDict

import anyio
import anyio.to_thread
import msgspec
import numpy as np

from neuron.actors.admission import default_context, derive_limits
from neuron.actors.canary import PROMPT_TOKENS, STEPS, Canary
from neuron.actors.daemon import LoadRequest
from neuron.actors.device.jobs import (
    ArchHandle,
    AttachSlots,
    ClearKv,
    Drop,
    ForwardLogits,
    Job,
    LoadDense,
    Loaded,
    LoadGguf,
    LoadScripted,
    Logits,
    Progress,
)
from neuron.actors.errors import ModelNotFound, NanLogits, PreflightError
from neuron.actors.images.sight import VISION, check_sight, find_sight, with_capability
from neuron.actors.load_job import LoadJob
from neuron.actors.ports import DevicePort
from neuron.actors.prefix.budget import prefix_cache
from neuron.actors.residency import Room
from neuron.actors.resident import MIB, Resident
from neuron.actors.scripted import ScriptError, read_script
from neuron.actors.settings import ModelSettings, Settings, SourceKind
from neuron.actors.sources.artifact import Format, ModelArtifact
from neuron.actors.sources.configured import configured_sources
from neuron.actors.sources.ids import ModelId, parse_model_id
from neuron.actors.sources.plan import Plan, make_plan
from neuron.actors.sources.preflight import PreflightReport, preflight, report_of_plan
from neuron.actors.sources.quants import is_projector
from neuron.actors.sources.resolve import open_repository, preflight_remote, resolve, resolve_now
from neuron.actors.steps import SEQUENCE
from neuron.actors.text.build import TextModel, load_text_model
from neuron.kernels.formats.errors import FormatError
from neuron.kernels.formats.hf_config import MAX_CONFIG_BYTES, parse_config
from neuron.runtime.errors import NeuronError, ProtocolError
from neuron.runtime.logs import get_logger
from neuron.runtime.shm import SlotSegment

log = get_logger(__name__)

#: Long enough that the prompt goes the way of long prompts.
SELF_CHECK_TOKENS = 64
#: Rows of the logits segment: one is read while the next step is written.
SLOT_ROWS = 2


class _Asked(TypedDict):
    """What preflight is told of a request."""

    tensor_parallel: int | None
    max_context: int | None
    default_context: int
    prefill_chunk_tokens: int


class LoadPlan(msgspec.Struct, frozen=True):
    """`own` is the model's [[models]] entry, if it has one; `spec` is complete already."""

    model_id: ModelId
    spec: LoadRequest
    own: ModelSettings | None

    @property
    def ranks(self) -> int:
        """Devices that share the model."""
        return self.spec.tensor_parallel or 1


#: Reads files only: a load that is cancelled does not wait for a disk that does not answer.
_in_thread = functools.partial(anyio.to_thread.run_sync, abandon_on_cancel=True)


class Loader:
    """One for the daemon; handles are never reused. `expect` is awaited before a model's weights are loaded."""

    def __init__(self, settings: Settings, expect: Callable[[TextModel], Awaitable[None]] | None = None) -> None:
        self._settings = settings
        self._expect = expect
        self._handles = itertools.count(1)

    async def load(
        self, model_id: str, plan: LoadPlan, device: DevicePort, device_ids: tuple[str, ...], job: LoadJob, room: Room
    ) -> Resident:
        """Raises PreflightError before any device work, or the device's own typed error."""
        job.report("resolve", 0.0)
        artifact = await self._resolve(plan, job, room.within_reach())
        report = await _in_thread(self._preflight, artifact, plan, room.within_reach())
        job.report("tokenizer", 0.0)
        text = await _in_thread(self._text, artifact)
        if report.budget is not None:
            await room.take(report.budget.total_bytes)
        sight = await _in_thread(find_sight, artifact, report.config, text)
        text = dataclasses.replace(text, capabilities=with_capability(text.capabilities, sight))
        if self._expect is not None:
            await self._expect(text)
        job.report("device", 0.0)
        await device.ensure_started()
        handle = ArchHandle(next(self._handles))
        try:
            loaded = await self._load_weights(device, handle, artifact, plan, report, job)
            slots = await _attach(device, handle, loaded)
            canary: Canary | None = None
            prefill_tok_s: float | None = None
            try:
                if artifact.format is not Format.SCRIPTED:
                    prefill_tok_s = await _self_check(device, handle, slots, loaded, text)
                    if sight is not None:
                        await check_sight(device, handle, sight)
                    if loaded.context_length >= PROMPT_TOKENS + STEPS:
                        vocabulary = min(loaded.vocab_size, text.tokenizer.vocab_size)
                        canary = await Canary.take(device, handle, slots, vocabulary)
            except BaseException:
                slots.close()
                raise
        except BaseException:
            abandon(device, handle)
            raise
        resident = Resident(
            model_id=model_id,
            device_ids=device_ids,
            device=device,
            handle=handle,
            slots=slots,
            artifact=artifact,
            text=text,
            loaded=loaded,
            limits=derive_limits(loaded.context_length, self._settings.limits, prefill_tok_s),
            architecture=report.architecture or str(artifact.format),
            loaded_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            prefix=prefix_cache(self._settings, loaded, text.tokenizer.eos_ids, ranks=len(device_ids)),
            sight=sight,
            canary=canary,
        )
        _log_construction(resident)
        return resident

    async def preflight(self, plan: LoadPlan, free: int | None) -> PreflightReport:
        """The same checks as a load, without fetching weights. `free`: bytes of the device that has least."""
        return await preflight_remote(
            plan.model_id, self._settings, quant=plan.spec.quant, free_bytes=free, **self._asked(plan)
        )

    def local_capabilities(self, model_id: str) -> tuple[str, ...]:
        """What local files tell of a model that is not resident. Raises ModelNotFound; never asks a hub."""
        try:
            parsed = parse_model_id(model_id, self._settings)
            kind = configured_sources(self._settings)[parsed.scheme].kind
            if kind is SourceKind.SCRIPTED:
                artifact = resolve_now(
                    parsed, self._settings, quant=None, tensor_parallel=None, chat_template_file=None, progress=_quiet
                )
                return read_script(artifact.weight_files[0]).capabilities
            if kind is SourceKind.HUB:
                raise ModelNotFound(model_id)
            repository = open_repository(parsed, self._settings)
            names = repository.files()
            if not any(name.endswith((".gguf", ".safetensors")) for name in names):
                raise ModelNotFound(model_id)
            if any(map(is_projector, names)) and make_plan(repository, quant=None, tensor_parallel=None).projector:
                return ("text", VISION)
            tower = "config.json" in names and any(name.endswith(".safetensors") for name in names)
            config = parse_config(repository.read("config.json", MAX_CONFIG_BYTES)) if tower else None
        except (PreflightError, ScriptError, FormatError) as error:
            raise ModelNotFound(model_id) from error
        return ("text", VISION) if config is not None and config.vision is not None else ("text",)

    async def _resolve(self, plan: LoadPlan, job: LoadJob, free: int | None) -> ModelArtifact:
        """What cannot be loaded is refused before any of its weights is fetched."""
        spec = plan.spec

        def check(files: Plan) -> None:
            for note in files.notes:
                log.info("note on the model's files", model=plan.model_id.bare, note=note)
            report_of_plan(files, free_bytes=free, **self._asked(plan))

        return await resolve(
            plan.model_id,
            self._settings,
            quant=spec.quant,
            tensor_parallel=spec.tensor_parallel,
            chat_template_file=plan.own.chat_template_file if plan.own is not None else None,
            on_progress=job.report,
            check=check,
        )

    def _asked(self, plan: LoadPlan) -> _Asked:
        return {
            "tensor_parallel": plan.spec.tensor_parallel,
            "max_context": plan.spec.max_context,
            "default_context": default_context(self._settings.limits),
            "prefill_chunk_tokens": self._settings.limits.prefill_chunk_tokens,
        }

    def _preflight(self, artifact: ModelArtifact, plan: LoadPlan, free_bytes: int | None) -> PreflightReport:
        return preflight(artifact, free_bytes=free_bytes, **self._asked(plan))

    def _text(self, artifact: ModelArtifact) -> TextModel:
        return load_text_model(artifact, use_chat_template=self._settings.use_chat_template)

    async def _load_weights(
        self,
        device: DevicePort,
        handle: ArchHandle,
        artifact: ModelArtifact,
        plan: LoadPlan,
        report: PreflightReport,
        job: LoadJob,
    ) -> Loaded:
        def note(progress: Progress) -> None:
            job.report(progress.stage, progress.fraction)

        loaded = await device.call(_load_job(handle, artifact, report.context_length), on_progress=note)
        if not isinstance(loaded, Loaded):
            raise ProtocolError("The device process answered a load with something else.")
        return loaded


def _quiet(_stage: str, _fraction: float) -> None:
    """Progress that nobody watches."""


def _load_job(handle: ArchHandle, artifact: ModelArtifact, context: int) -> Callable[[int], Job]:
    files = tuple(str(path) for path in artifact.weight_files)
    if artifact.format is Format.SCRIPTED:
        return lambda job: LoadScripted(job, handle, files[0])
    if artifact.format is Format.GGUF:
        projector = None if artifact.projector is None else str(artifact.projector)
        return lambda job: LoadGguf(job, handle, files, context, projector)
    config = str(artifact.directory / "config.json")
    return lambda job: LoadDense(job, handle, config, files, context, artifact.quant)


async def _attach(device: DevicePort, handle: ArchHandle, loaded: Loaded) -> SlotSegment:
    """Raises InsufficientShm. The name is gone as soon as both sides have the mapping, so nothing can leak."""
    slots = SlotSegment.create(SLOT_ROWS, loaded.vocab_size * 4)
    try:
        name, row_bytes = slots.name, slots.row_bytes
        await device.call(lambda job: AttachSlots(job, handle, name, SLOT_ROWS, row_bytes))
    except BaseException:
        slots.close()
        raise
    slots.unlink()
    return slots


async def _self_check(
    device: DevicePort, handle: ArchHandle, slots: SlotSegment, loaded: Loaded, text: TextModel
) -> float:
    """A prompt and one step: proves finite logits, and pays now what first calls of each kind compile and allocate.

    Returns how many tokens a second the prompt took on the device.
    """
    token = next(iter(text.tokenizer.eos_ids), 0) % loaded.vocab_size
    length = min(SELF_CHECK_TOKENS, loaded.context_length - 1)
    seconds = 0.0
    for position, tokens in ((0, [token] * length), (length, [token])):
        data = np.array(tokens, dtype="<i4").tobytes()
        stamp = -1 - position
        reply = await device.call(
            lambda job, d=data, p=position, s=stamp: ForwardLogits(job, handle, SEQUENCE, d, p, 0, s)  # type: ignore[misc]
        )
        if not isinstance(reply, Logits) or slots.stamp(0) != stamp:
            raise ProtocolError("The device process answered the self-check with something else.")
        if not np.isfinite(slots.row(0)[: text.tokenizer.vocab_size].max()):
            raise NanLogits("The model's first logits are not finite; its weights are unusable.")
        seconds = seconds or max(reply.compute_us, 1) / 1e6
    await device.call(lambda job: ClearKv(job, handle, SEQUENCE))
    return length / seconds


def abandon(device: DevicePort, handle: ArchHandle) -> None:
    """Forget what a failed or cancelled load left behind; nobody waits for it."""
    try:
        device.post(lambda job: Drop(job, handle))
    except NeuronError:
        return


def _log_construction(resident: Resident) -> None:
    loaded, info = resident.loaded, resident.device.info()
    log.info(
        "construction complete",
        model=resident.model_id,
        device=resident.where,
        ranks=len(resident.device_ids),
        architecture=resident.architecture,
        summary=loaded.summary,
        context_length=loaded.context_length,
        max_prompt_tokens=resident.limits.input,
        vocab_size=loaded.vocab_size,
        weights_mb=loaded.weights_bytes // MIB,
        kv_bytes_per_token=loaded.kv_bytes_per_token,
        state_bytes=loaded.state_bytes,
        workspace_mb=loaded.workspace_bytes // MIB,
        prefix_cache_mb=resident.prefix.budget // MIB if resident.prefix is not None else 0,
        vram_free_mb=info.vram_free_mb,
        vram_total_mb=info.vram_total_mb,
    )
