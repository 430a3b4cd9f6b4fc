"""A running hub and a configuration whose one source is it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron.actors.settings import Settings, SourceKind, SourceSettings
from tests.actors.sources.hub_server import Hub, running_hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        yield running


@pytest.fixture
def settings(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    source = SourceSettings(
        kind=SourceKind.HUB, endpoint=hub.url, auth_env="MIRROR_TOKEN", cache_dir=tmp_path / "mirror"
    )
    return Settings(sources={"mirror": source}, default_source="mirror")
