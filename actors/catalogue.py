"""Catalogue: the model actors by every name they answer to. Owned by the registry; lookups are dictionary reads."""

from collections.abc import Iterator

from neuron.actors.daemon import ModelState
from neuron.actors.errors import ModelNotFound
from neuron.actors.model import ModelActor
from neuron.actors.settings import ModelSettings


class Catalogue:
    """Bare id, qualified id and aliases name the same entry; spelling in another case finds it too."""

    def __init__(self, configured: tuple[ModelSettings, ...]) -> None:
        self.configured = configured
        self._entries: list[ModelActor] = []
        self._names: dict[str, ModelActor] = {}

    def __iter__(self) -> Iterator[ModelActor]:
        return iter(tuple(self._entries))

    def find(self, name: str) -> ModelActor | None:
        entry = self._names.get(name)
        return entry if entry is not None else self._names.get(name.casefold())

    def require(self, name: str) -> ModelActor:
        """Raises ModelNotFound, for a model whose load failed as well."""
        entry = self.find(name)
        if entry is None or entry.state is ModelState.FAILED:
            raise ModelNotFound(name)
        return entry

    def add(self, entry: ModelActor) -> None:
        self._entries.append(entry)
        self._index()

    def remove(self, entry: ModelActor) -> None:
        if entry in self._entries:
            self._entries.remove(entry)
            self._index()

    def on_device(self, device_id: str) -> list[ModelActor]:
        return [entry for entry in self._entries if device_id in entry.device_ids]

    def public_id(self, bare: str, qualified: str) -> str:
        """The bare id, unless a model of another source has it already."""
        taken = any(entry.model_id.casefold() == bare.casefold() for entry in self._entries)
        return qualified if taken else bare

    def settings_of(self, *names: str) -> ModelSettings | None:
        """The [[models]] entry that one of these names means, by its id or an alias."""
        wanted = {name.casefold() for name in names}
        for model in self.configured:
            if model.id.casefold() in wanted or any(alias.casefold() in wanted for alias in model.aliases):
                return model
        return None

    def configured_as(self, name: str) -> ModelSettings | None:
        """The [[models]] entry that a client's name means: by id or alias, else by the id without its scheme."""
        wanted = name.casefold()
        bare = (model for model in self.configured if model.id.rpartition(":")[2].casefold() == wanted)
        return self.settings_of(name) or next(bare, None)

    def _index(self) -> None:
        names: dict[str, ModelActor] = {}
        for entry in self._entries:
            bare = entry.source_id.partition(":")[2]
            for name in (entry.model_id, entry.source_id, *entry.aliases, bare):
                names.setdefault(name, entry)
                names.setdefault(name.casefold(), entry)
        self._names = names
