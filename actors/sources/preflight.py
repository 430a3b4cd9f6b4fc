"""Preflight: would this model load, and with how much memory? Answered from headers alone, before any device work."""

from collections.abc import Callable

import msgspec

from neuron.actors.errors import DoesNotFit, InvalidConfig, PreflightError, TpRequiresSafetensors
from neuron.actors.scripted import ScriptError, ScriptVocabulary, read_script
from neuron.actors.sources.artifact import Format, ModelArtifact
from neuron.actors.sources.budget import (
    EXACT_KV_ELEMENT_BYTES,
    KV_ELEMENT_BYTES,
    PREFILL_CHUNK_TOKENS,
    Budget,
    largest_context,
    make_budget,
)
from neuron.actors.sources.description import Description, describe_dense, describe_gguf
from neuron.actors.sources.failures import typed_failures
from neuron.actors.sources.heads import check_sharding
from neuron.actors.sources.plan import Plan
from neuron.kernels.formats.errors import FormatKind
from neuron.kernels.formats.gguf_header import parse_gguf_header
from neuron.kernels.formats.hf_config import MAX_CONFIG_BYTES
from neuron.kernels.formats.in_situ import effective_quant
from neuron.kernels.formats.mapped_file import read_header, read_small
from neuron.kernels.formats.model_config import ModelConfig
from neuron.kernels.formats.safetensors_header import parse_safetensors_header

#: A context that nobody would call one; less than this does not fit.
MIN_CONTEXT = 256


class PreflightReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a load would come to. Encodes to JSON as it is. `context_length` is what the load will be given."""

    model_id: str
    source_id: str
    format: Format
    architecture: str | None
    context_length: int
    max_position: int
    largest_context: int
    vocab_size: int
    files: tuple[str, ...]
    tensor_parallel: int = 1
    quant: str | None = None
    stored_quant: str | None = None
    budget: Budget | None = None
    config: ModelConfig | None = None
    notes: tuple[str, ...] = ()


def preflight(
    artifact: ModelArtifact,
    *,
    tensor_parallel: int | None = None,
    max_context: int | None = None,
    default_context: int | None = None,
    free_bytes: int | None = None,
    prefill_chunk_tokens: int = PREFILL_CHUNK_TOKENS,
) -> PreflightReport:
    """Check a model whose files are local. `free_bytes`: on each of its devices, None when unknown. Blocking.

    `max_context` is a wish that must fit; `default_context` (else the model's own maximum) shrinks to what fits.

    Raises PreflightError subclasses: unsound files, an architecture that is not served, heads that do not divide,
    DoesNotFit (with the largest context that would).
    """
    if artifact.format is Format.SCRIPTED:
        return _scripted(artifact, tensor_parallel or 1)
    if artifact.format is Format.GGUF and (tensor_parallel or 1) > 1:
        raise TpRequiresSafetensors(
            "Tensor parallelism needs safetensors.", model_id=artifact.model_id, tp_size=tensor_parallel
        )
    with typed_failures(artifact.model_id):
        description = _describe(artifact)
    check_sharding(description.config, tensor_parallel, artifact.model_id)
    return _report(
        description,
        artifact.model_id,
        artifact.source_id,
        artifact.format,
        tuple(path.name for path in artifact.weight_files),
        quant=artifact.quant,
        stored_quant=artifact.stored_quant,
        ranks=tensor_parallel or 1,
        max_context=max_context,
        default_context=default_context,
        free_bytes=free_bytes,
        chunk_tokens=prefill_chunk_tokens,
    )


def report_of_plan(
    plan: Plan,
    *,
    tensor_parallel: int | None = None,
    max_context: int | None = None,
    default_context: int | None = None,
    free_bytes: int | None = None,
    prefill_chunk_tokens: int = PREFILL_CHUNK_TOKENS,
) -> PreflightReport:
    """The same report from a plan, of which no weight was fetched."""
    report = _report(
        plan.description,
        plan.model_id.bare,
        plan.model_id.qualified,
        plan.selection.format,
        plan.weights,
        quant=plan.selection.quant,
        stored_quant=plan.selection.stored_quant,
        ranks=tensor_parallel or 1,
        max_context=max_context,
        default_context=default_context,
        free_bytes=free_bytes,
        chunk_tokens=prefill_chunk_tokens,
    )
    return msgspec.structs.replace(report, notes=plan.notes)


def _describe(artifact: ModelArtifact) -> Description:
    files = artifact.weight_files
    if artifact.format is Format.GGUF:
        gguf = [read_header(path, FormatKind.INVALID_GGUF, parse_gguf_header) for path in files]
        tower = artifact.projector
        projector = None if tower is None else read_header(tower, FormatKind.INVALID_GGUF, parse_gguf_header)
        return describe_gguf(gguf, [path.name for path in files], projector)
    config = read_small(artifact.directory / "config.json", MAX_CONFIG_BYTES, FormatKind.INVALID_CONFIG)
    dense = [read_header(path, FormatKind.CORRUPT_WEIGHTS, parse_safetensors_header) for path in files]
    return describe_dense(config, dense, None, artifact.quant)


def _report(
    description: Description,
    model_id: str,
    source_id: str,
    format: Format,
    files: tuple[str, ...],
    *,
    quant: str | None,
    stored_quant: str | None,
    ranks: int,
    max_context: int | None,
    default_context: int | None,
    free_bytes: int | None,
    chunk_tokens: int,
) -> PreflightReport:
    config = description.config
    exact = effective_quant(config, quant) == "f32"

    def budget_of(context: int) -> Budget:
        return make_budget(
            config,
            matrix_bytes=description.matrix_bytes,
            vector_bytes=description.vector_bytes,
            embedding_bytes=description.embedding_bytes,
            context_length=context,
            ranks=ranks,
            chunk_tokens=chunk_tokens,
            kv_element_bytes=EXACT_KV_ELEMENT_BYTES if exact else KV_ELEMENT_BYTES,
            free_bytes=free_bytes,
        )

    largest = largest_context(budget_of(0), config.max_position)
    context = _context(budget_of, largest, config.max_position, max_context, default_context, model_id)
    return PreflightReport(
        model_id=model_id,
        source_id=source_id,
        format=format,
        architecture=config.architecture.value,
        context_length=context,
        max_position=config.max_position,
        largest_context=largest,
        vocab_size=config.vocab_size,
        files=files,
        tensor_parallel=ranks,
        quant=quant,
        stored_quant=stored_quant or description.stored_quant,
        budget=budget_of(context),
        config=config,
        notes=description.notes,
    )


def _context(
    budget_of: Callable[[int], Budget],
    largest: int,
    max_position: int,
    asked: int | None,
    default: int | None,
    model_id: str,
) -> int:
    """The context to load with: what was asked for, else as much of the default as fits. Raises DoesNotFit."""
    wanted = min(asked or default or max_position, max_position)
    needed = wanted if asked is not None else min(MIN_CONTEXT, wanted)
    if largest < needed:
        raise _does_not_fit(budget_of(needed), needed, largest, model_id)
    return min(wanted, largest)


def _does_not_fit(budget: Budget, context: int, largest: int, model_id: str) -> DoesNotFit:
    mib = 1 << 20
    smaller = f"max_context: {largest}" if largest >= MIN_CONTEXT else "Use a smaller quant or more devices."
    return DoesNotFit(
        f"{budget.total_bytes // mib} MiB are needed for a context of {context} tokens, and "
        f"{(budget.free_bytes or 0) // mib} MiB are free.",
        model_id=model_id,
        suggestion=smaller,
        needed_bytes=budget.total_bytes,
        free_bytes=budget.free_bytes,
        weights_bytes=budget.weights_bytes,
        kv_bytes_per_token=budget.kv_bytes_per_token,
        state_bytes=budget.state_bytes,
        workspace_bytes=budget.workspace_bytes,
        largest_context=largest,
    )


def _scripted(artifact: ModelArtifact, ranks: int) -> PreflightReport:
    """Every rank of a group runs the script."""
    path = artifact.weight_files[0]
    try:
        script = read_script(path)
        vocabulary = ScriptVocabulary(script)
    except ScriptError as error:
        raise InvalidConfig(str(error), model_id=artifact.model_id) from error
    except OSError as error:
        raise PreflightError("The script cannot be read.", model_id=artifact.model_id) from error
    return PreflightReport(
        model_id=artifact.model_id,
        source_id=artifact.source_id,
        format=artifact.format,
        architecture=None,
        context_length=script.context_length,
        max_position=script.context_length,
        largest_context=script.context_length,
        vocab_size=vocabulary.row_size,
        files=(path.name,),
        tensor_parallel=ranks,
    )
