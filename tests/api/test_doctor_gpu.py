"""What `neuron doctor` says on a host with a GPU about the packages that models need there."""

from importlib import metadata

import pytest

from neuron.api.cli.doctor import _cuda_packages


def versions(monkeypatch: pytest.MonkeyPatch, found: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(metadata, "version", version)


def test_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, {"torch": "2.13.0+cu130", "numba-cuda": "0.30.4"})
    assert [(finding.check, finding.level) for finding in _cuda_packages()] == [("numba-cuda", "ok")]


def test_a_build_without_cuda_and_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    versions(monkeypatch, {"torch": "2.13.0+cpu"})
    findings = _cuda_packages()
    assert [finding.level for finding in findings] == ["fail", "fail"]
    assert "CUDA build" in findings[0].advice
    assert "numba-cuda[cu13]" in findings[1].advice
