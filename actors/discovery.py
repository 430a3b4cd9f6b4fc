"""Facts of this host for GET /discovery, gathered once at start-up. Reads files, starts at most nvidia-smi."""

import platform
import shutil
import socket
import subprocess
from typing import Any

import msgspec

from neuron.actors.daemon import DeviceInfo

QUERY_SECONDS = 5.0
_FIELDS = "index,name,memory.total,compute_cap,driver_version"


class GpuFact(msgspec.Struct, frozen=True):
    """One line of nvidia-smi; MiB."""

    index: int
    name: str
    vram_total_mb: int
    compute_capability: str


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    hostname: str
    os: str
    kernel: str
    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: tuple[GpuFact, ...] = ()
    #: A GPU is there (or its driver says so) but cannot be used; the reason in one line.
    cuda_unavailable_reason: str | None = None


def gather(gpu_nodes: int) -> HostFacts:
    """Blocking (seconds when the driver is slow): call it in a thread. `gpu_nodes`: device nodes seen."""
    hostname, system, kernel = socket.gethostname(), _system_name(), platform.release()
    if gpu_nodes == 0:
        return HostFacts(hostname=hostname, os=system, kernel=kernel)
    gpus, driver, problem = _query_gpus()
    return HostFacts(
        hostname=hostname,
        os=system,
        kernel=kernel,
        driver_version=driver,
        cuda_version=_cuda_version() if gpus else None,
        gpus=gpus,
        cuda_unavailable_reason=problem,
    )


def document(
    facts: HostFacts, devices: list[DeviceInfo], max_prompt_tokens: int, cuda_version: str | None
) -> dict[str, Any]:
    """The body of GET /discovery. `cuda_version`: what a device process reported, which is surer than a tool's."""
    by_index = {gpu.index: gpu for gpu in facts.gpus}
    listed = []
    for device in devices:
        gpu = by_index.get(device.index) if device.id.startswith("cuda") else None
        listed.append(
            {
                "index": device.index,
                "id": device.id,
                "name": gpu.name if gpu is not None else device.name,
                "vram_total_mb": gpu.vram_total_mb if gpu is not None else device.vram_total_mb,
                "compute_capability": gpu.compute_capability if gpu is not None else device.compute_capability,
            }
        )
    body: dict[str, Any] = {
        "hostname": facts.hostname,
        "os": facts.os,
        "kernel": facts.kernel,
        "cuda_version": cuda_version or facts.cuda_version,
        "driver_version": facts.driver_version,
        "devices": listed,
        "harnesses": ["candle"],
        "max_prompt_tokens": max_prompt_tokens,
    }
    if facts.cuda_unavailable_reason is not None:
        body["cuda_unavailable_reason"] = facts.cuda_unavailable_reason
    return body


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _query_gpus() -> tuple[tuple[GpuFact, ...], str | None, str | None]:
    """(GPUs, driver version, reason why they are unusable)."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return (), None, "the NVIDIA driver's tools are missing"
    command = [tool, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (), None, "the NVIDIA driver does not answer"
    if done.returncode != 0:
        reason = (done.stdout or done.stderr).strip().partition("\n")[0]
        return (), None, reason[:200] or "the NVIDIA driver reports an error"
    gpus, driver = [], None
    for line in done.stdout.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[0].isdecimal():
            gpus.append(GpuFact(int(cells[0]), cells[1], int(cells[2]) if cells[2].isdecimal() else 0, cells[3]))
            driver = cells[4]
    return tuple(gpus), driver, None if gpus else "the NVIDIA driver lists no GPU"


def _cuda_version() -> str | None:
    """The version the driver supports, from the header of nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        text = subprocess.run([tool], capture_output=True, text=True, timeout=QUERY_SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    _, found, rest = text.partition("CUDA Version:")
    return rest.split()[0] if found and rest.split() else None
