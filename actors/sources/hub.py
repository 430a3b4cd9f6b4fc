"""HubRepository: a model on a server that speaks the Hugging Face hub's protocol, with a cache of its own.

What was fetched before is served from the cache when the server cannot be reached.
"""

import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
from huggingface_hub import HfApi, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from tqdm.std import tqdm  # type: ignore[import-untyped]

from neuron.actors.errors import InvalidModelId, PreflightError, RepoFetchFailed, SourceUnreadable
from neuron.actors.sources.ids import ModelId
from neuron.actors.sources.local import LocalRepository
from neuron.actors.sources.repository import ReportProgress, confined
from neuron.runtime.logs import get_logger

log = get_logger("sources.hub")

TIMEOUT_S = 10.0
_COMMIT_DIGITS = frozenset("0123456789abcdef")
#: Answers that a retry may change: the cache may stand in for them.
_TRANSIENT = frozenset((408, 425, 429, 500, 502, 503, 504))

#: The cache's disk, not the network.
_DISK_FAULTS = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO))

T = TypeVar("T")


class _Unreachable(Exception):
    """The server did not answer, or not with sense; the cache may still hold the model."""


class HubRepository:
    """One model of the hub at `endpoint`. `token` goes there alone; None sends none, not even a stored one."""

    def __init__(self, model_id: ModelId, endpoint: str, token: str | None, cache: Path) -> None:
        self.model_id = model_id
        self._endpoint = endpoint.rstrip("/")
        self._token: str | bool = token or False
        self._cache = cache
        self._revision = "main"
        self._sizes: Mapping[str, int] | None = None
        self._offline: LocalRepository | None = None

    def files(self) -> Mapping[str, int]:
        if self._sizes is None:
            self._sizes = confined(self._listing(), self.model_id)
        return self._sizes

    def read(self, name: str, limit: int) -> bytes:
        size = self.files().get(name, 0)
        if size > limit:
            raise SourceUnreadable(f"{Path(name).name} is larger than {limit} bytes.", model_id=self.model_id.bare)
        if self._offline is not None:
            return self._offline.read(name, limit)
        path = self._cached_or_fetched(name, _silent)
        data = path.read_bytes()
        if len(data) > limit:
            raise SourceUnreadable(f"{Path(name).name} is larger than {limit} bytes.", model_id=self.model_id.bare)
        return data

    def head(self, name: str, count: int) -> bytes:
        """The first bytes by a range request; of a file that is in the cache already, from there."""
        if self._offline is not None:
            return self._offline.head(name, count)
        path = self._snapshot() / name
        if path.is_file():
            with path.open("rb") as file:
                return file.read(count)
        return self._guarded(lambda: self._range(name, count))

    def fetch(self, names: Sequence[str], progress: ReportProgress) -> Path:
        """Download what the cache lacks (interrupted downloads resume) and return the snapshot's folder."""
        if self._offline is not None:
            return self._offline.fetch(names, progress)
        sizes = self.files()
        total = max(1, sum(sizes.get(name, 0) for name in names))
        done = 0
        for name in names:
            before = done

            def advance(received: int, before: int = before) -> None:
                progress("fetch", min(1.0, (before + received) / total))

            path = self._cached_or_fetched(name, advance)
            size = path.stat().st_size
            if sizes.get(name, size) not in (0, size):
                raise RepoFetchFailed(
                    f"{path.name} came with another size than listed.", model_id=self.model_id.bare, cause="truncated"
                )
            done += size
        self._remember()
        progress("fetch", 1.0)
        return self._snapshot()

    def _remember(self) -> None:
        """Note in the cache which snapshot is the newest, where the client looks for it when it is offline."""
        reference = self._repository_folder() / "refs" / "main"
        try:
            if reference.is_file() and reference.read_text(encoding="ascii") == self._revision:
                return
            reference.parent.mkdir(parents=True, exist_ok=True)
            draft = reference.with_name(f"main.{os.getpid()}.{threading.get_ident()}")
            draft.write_text(self._revision, encoding="ascii")
            draft.replace(reference)
        except OSError as error:
            # A cache that cannot be written still serves; only the offline start is lost.
            log.warning("cache reference not written", model=self.model_id.qualified, error=str(error))

    def _listing(self) -> dict[str, int]:
        api = HfApi(endpoint=self._endpoint, token=self._token)
        try:
            info = self._guarded(lambda: api.model_info(self.model_id.bare, timeout=TIMEOUT_S, files_metadata=True))
        except _Unreachable as error:
            return self._cached_listing(error)
        if isinstance(info.sha, str) and len(info.sha) == 40 and _COMMIT_DIGITS.issuperset(info.sha):
            self._revision = info.sha
        sizes = {str(sibling.rfilename): sibling.size for sibling in info.siblings or ()}
        if any(size is None for size in sizes.values()):
            # A server that does not send sizes with the model sends them with its tree.
            tree = self._guarded(lambda: self._tree(api))
            sizes = {name: tree.get(name, 0) for name in sizes}
        return {name: int(size or 0) for name, size in sizes.items()}

    def _tree(self, api: HfApi) -> dict[str, int]:
        entries = api.list_repo_tree(self.model_id.bare, recursive=True, revision=self._revision)
        return {entry.path: entry.size for entry in entries if isinstance(entry, RepoFile)}

    def _cached_listing(self, error: _Unreachable) -> dict[str, int]:
        """What earlier downloads left in the cache, by the hub's documented layout (refs/main names a snapshot)."""
        folder = self._repository_folder()
        try:
            commit = (folder / "refs" / "main").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            raise self._failed("unreachable", "The source cannot be reached, and nothing is cached.") from error
        if len(commit) != 40 or not _COMMIT_DIGITS.issuperset(commit):
            raise self._failed("unreachable", "The source cannot be reached, and its cache is damaged.") from error
        self._revision = commit
        # Snapshots hold links into blobs/ of the same model: confined to its own folder of the cache.
        self._offline = LocalRepository(self.model_id, self._snapshot(), folder)
        return dict(self._offline.files())

    def _repository_folder(self) -> Path:
        return self._cache / f"models--{self.model_id.org}--{self.model_id.name}"

    def _snapshot(self) -> Path:
        return self._repository_folder() / "snapshots" / self._revision

    def _cached_or_fetched(self, name: str, advance: Callable[[int], None]) -> Path:
        def download() -> Path:
            return Path(
                hf_hub_download(
                    self.model_id.bare,
                    name,
                    revision=self._revision,
                    cache_dir=self._cache,
                    endpoint=self._endpoint,
                    token=self._token,
                    etag_timeout=TIMEOUT_S,
                    tqdm_class=_meter(advance),
                )
            )

        path = self._guarded(download)
        if self._revision == "main":
            # The server named no commit in its listing; the download found the one it served.
            self._revision = path.relative_to(self._repository_folder() / "snapshots").parts[0]
        return path

    def _range(self, name: str, count: int) -> bytes:
        url = hf_hub_url(self.model_id.bare, name, revision=self._revision, endpoint=self._endpoint)
        headers = {"Range": f"bytes=0-{count - 1}", "Accept-Encoding": "identity"}
        if isinstance(self._token, str):
            headers["Authorization"] = f"Bearer {self._token}"
        received = bytearray()
        # httpx drops the Authorization header when a redirect leads to another host.
        with (
            httpx.Client(follow_redirects=True, timeout=TIMEOUT_S) as client,
            client.stream("GET", url, headers=headers) as response,
        ):
            response.raise_for_status()
            for chunk in response.iter_bytes():
                received += chunk
                if len(received) >= count:
                    break
        return bytes(received[:count])

    def _guarded(self, act: Callable[[], T]) -> T:
        """Run one exchange with the server; every failure leaves typed. _Unreachable only while listing."""
        try:
            return act()
        except PreflightError:
            raise
        except HFValidationError as error:
            raise InvalidModelId("The hub refuses this id.", model_id=self.model_id.bare) from error
        except GatedRepoError as error:
            raise self._failed("gated", "The repository is gated; its terms must be accepted first.") from error
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:
            raise self._failed("not found", "The source has no such repository, or it needs a token.") from error
        except LocalEntryNotFoundError as error:
            raise self._failed("unreachable", "The source cannot be reached.") from error
        except EntryNotFoundError as error:
            raise self._failed("not found", "A listed file is not there.") from error
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _DISK_FAULTS:
                raise SourceUnreadable("The source's cache cannot be written.", model_id=self.model_id.bare) from error
            # The client's own transport errors differ by its version: what is none of the above is the network's.
            status = _status(error)
            if self._sizes is None and (status is None or status in _TRANSIENT):
                raise _Unreachable from error
            if status is not None:
                raise self._failed(f"status {status}", f"The source answered with status {status}.") from error
            raise self._failed("unreachable", "The source cannot be reached.") from error

    def _failed(self, cause: str, message: str) -> RepoFetchFailed:
        return RepoFetchFailed(message, model_id=self.model_id.bare, cause=cause)


def _status(error: Exception) -> int | None:
    if isinstance(error, HfHubHTTPError | httpx.HTTPStatusError):
        return int(error.response.status_code) if error.response is not None else None
    return None


def _silent(received: int) -> None:
    """Progress of a small file, which nobody watches."""


def _meter(advance: Callable[[int], None]) -> type[tqdm]:
    """A progress bar class that prints nothing and tells `advance` how many bytes of one file are there."""

    class Meter(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs["disable"] = True
            kwargs.pop("name", None)
            super().__init__(*args, **kwargs)
            self.received = int(kwargs.get("initial") or 0)

        def update(self, n: float | None = 1) -> bool | None:
            self.received += int(n or 0)
            advance(self.received)
            return None

    return Meter
