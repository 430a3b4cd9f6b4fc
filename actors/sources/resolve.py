"""resolve: from a model id to local, checked files. Everything that can be refused is refused before weights move."""

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import anyio.from_thread
import anyio.to_thread

from neuron.actors.errors import EmptyRepo, RepoFetchFailed, SourceUnreadable, UnknownSource
from neuron.actors.settings import Settings, SourceKind, SourceSettings
from neuron.actors.sources.artifact import Format, ModelArtifact
from neuron.actors.sources.budget import PREFILL_CHUNK_TOKENS
from neuron.actors.sources.configured import (
    DEMO,
    DEMO_MODEL,
    HUGGINGFACE_ENDPOINT,
    cache_directory,
    configured_sources,
    token,
)
from neuron.actors.sources.hub import HubRepository
from neuron.actors.sources.ids import ModelId
from neuron.actors.sources.local import directory_repository, package_repository
from neuron.actors.sources.plan import Plan, make_plan
from neuron.actors.sources.preflight import PreflightReport, preflight, report_of_plan
from neuron.actors.sources.repository import Repository

OnProgress = Callable[[str, float], None]
Check = Callable[[Plan], object]


class _CallerGone(Exception):
    """Ends a download that nobody waits for any more; seen by nobody."""


async def resolve(
    model_id: ModelId,
    settings: Settings,
    *,
    quant: str | None = None,
    tensor_parallel: int | None = None,
    chat_template_file: Path | None = None,
    on_progress: OnProgress | None = None,
    check: Check | None = None,
) -> ModelArtifact:
    """Find, check and fetch a model. `on_progress` (stage "fetch", fraction) runs on the event loop; `check` in the
    working thread, with the plan, and may refuse it before weights are fetched.

    Raises PreflightError subclasses. When the caller is cancelled, a running download stops at its next chunk and
    resumes with the next call.
    """
    gone = threading.Event()

    def report(stage: str, fraction: float) -> None:
        if gone.is_set():
            raise _CallerGone
        if on_progress is not None:
            anyio.from_thread.run_sync(on_progress, stage, fraction)

    act = functools.partial(
        resolve_now,
        model_id,
        settings,
        quant=quant,
        tensor_parallel=tensor_parallel,
        chat_template_file=chat_template_file,
        progress=report,
        check=check,
    )
    try:
        return await anyio.to_thread.run_sync(act, abandon_on_cancel=True)
    finally:
        gone.set()


async def preflight_remote(
    model_id: ModelId,
    settings: Settings,
    *,
    quant: str | None = None,
    tensor_parallel: int | None = None,
    max_context: int | None = None,
    default_context: int | None = None,
    free_bytes: int | None = None,
    prefill_chunk_tokens: int = PREFILL_CHUNK_TOKENS,
) -> PreflightReport:
    """The report of a load, without fetching weights: of a hub only config, index and headers are read."""

    def act() -> PreflightReport:
        if _source(model_id, settings).kind is SourceKind.SCRIPTED:
            return preflight(_scripted(model_id, settings), tensor_parallel=tensor_parallel)
        repository = open_repository(model_id, settings)
        plan = make_plan(repository, quant=quant, tensor_parallel=tensor_parallel)
        return report_of_plan(
            plan,
            tensor_parallel=tensor_parallel,
            max_context=max_context,
            default_context=default_context,
            free_bytes=free_bytes,
            prefill_chunk_tokens=prefill_chunk_tokens,
        )

    return await anyio.to_thread.run_sync(act, abandon_on_cancel=True)


def resolve_now(
    model_id: ModelId,
    settings: Settings,
    *,
    quant: str | None,
    tensor_parallel: int | None,
    chat_template_file: Path | None,
    progress: OnProgress,
    check: Check | None = None,
) -> ModelArtifact:
    """resolve, blocking. `progress` is called in this thread."""
    if chat_template_file is not None and not chat_template_file.is_file():
        raise SourceUnreadable("chat_template_file is not a readable file.", model_id=model_id.bare)
    if _source(model_id, settings).kind is SourceKind.SCRIPTED:
        return _scripted(model_id, settings)
    repository = open_repository(model_id, settings)
    plan = make_plan(repository, quant=quant, tensor_parallel=tensor_parallel)
    if check is not None:
        check(plan)
    return _fetch(plan, repository, chat_template_file, progress)


def open_repository(model_id: ModelId, settings: Settings) -> Repository:
    """The model's repository in its source. Raises PreflightError (a package that is not installed, ...)."""
    source = _source(model_id, settings)
    if source.kind is SourceKind.HUB:
        endpoint = source.endpoint or HUGGINGFACE_ENDPOINT
        return HubRepository(model_id, endpoint, token(source), cache_directory(model_id.scheme, source))
    if source.kind is SourceKind.PACKAGE and source.package is not None:
        if model_id.scheme == DEMO and DEMO not in settings.sources and model_id.bare.lower() != DEMO_MODEL:
            raise EmptyRepo(
                "The demo source holds one model.", model_id=model_id.bare, suggestion=f"{DEMO}:{DEMO_MODEL}"
            )
        return package_repository(model_id, source.package)
    if source.path is None:
        raise UnknownSource("The source has no path.", model_id=model_id.bare)
    return directory_repository(model_id, source.path)


def _source(model_id: ModelId, settings: Settings) -> SourceSettings:
    source = configured_sources(settings).get(model_id.scheme)
    if source is None:
        raise UnknownSource(f"The source '{model_id.scheme}' is not configured.", model_id=model_id.bare)
    return source


def _fetch(plan: Plan, repository: Repository, chat_template_file: Path | None, progress: OnProgress) -> ModelArtifact:
    selection = plan.selection
    projector = () if plan.projector is None else (plan.projector,)
    directory = repository.fetch((*plan.extras, *plan.weights, *projector), progress)
    return ModelArtifact(
        model_id=plan.model_id.bare,
        source_id=plan.model_id.qualified,
        format=selection.format,
        directory=directory,
        weight_files=tuple(directory / name for name in plan.weights),
        stored_quant=selection.stored_quant or plan.description.stored_quant,
        quant=selection.quant,
        projector=None if plan.projector is None else directory / plan.projector,
        chat_template_file=chat_template_file,
    )


def _scripted(model_id: ModelId, settings: Settings) -> ModelArtifact:
    root = _source(model_id, settings).path
    if root is None:
        raise UnknownSource("The source has no path.", model_id=model_id.bare)
    real_root = os.path.realpath(root.expanduser())
    path = Path(os.path.realpath(Path(real_root) / model_id.org / f"{model_id.name}.json"))
    if not path.is_relative_to(real_root) or not path.is_file():
        raise RepoFetchFailed("The source has no such script.", model_id=model_id.bare, cause="not found")
    return ModelArtifact(
        model_id=model_id.bare,
        source_id=model_id.qualified,
        format=Format.SCRIPTED,
        directory=path.parent,
        weight_files=(path,),
    )
