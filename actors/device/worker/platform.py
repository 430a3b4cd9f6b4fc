"""The device that a worker is bound to: CPU or CUDA. Binding happens once; torch is imported for CUDA only."""

import ctypes
import gc
import platform
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from neuron.actors.device.host import MIB, host_memory, processor_name
from neuron.actors.device.jobs import Vram
from neuron.actors.device.worker.classify import RequestFault
from neuron.runtime.logs import get_logger
from neuron.runtime.shm import SlotSegment

_log = get_logger("neuron.device")

#: Results of cudaHostRegister that say no more than that this host cannot pin this memory: invalid value, memory
#: allocation, not permitted, not supported.
_NOT_PINNABLE = frozenset({1, 2, 800, 801})

if TYPE_CHECKING:
    import torch


class DeviceFacts(msgspec.Struct, frozen=True):
    """For Ready; MiB."""

    name: str
    vram_total_mb: int
    compute_capability: str = ""
    cuda_version: str | None = None
    driver_version: str | None = None
    torch_version: str | None = None


class Platform(Protocol):
    """What the job loop asks of its device. `id` is the daemon's name for it, also what kernels get."""

    id: str

    def facts(self) -> DeviceFacts: ...
    def vram(self, job: int) -> Vram: ...

    def trim(self) -> None:
        """Give memory that is cached but unused back to the system."""

    def probe(self) -> None:
        """A tiny allocation, computation and synchronisation. Raises when they fail."""

    def pin(self, slots: SlotSegment) -> None:
        """Let the device write straight into the mapping, where it can. The mapping stays until `unpin`."""

    def unpin(self, slots: SlotSegment) -> None:
        """Wait for the device to leave the mapping alone. Must come before the mapping is closed; never raises."""


class CpuPlatform:
    """A CPU device: every one of them is the whole host."""

    def __init__(self, device: str) -> None:
        self.id = device

    def facts(self) -> DeviceFacts:
        return DeviceFacts(
            name=processor_name(), vram_total_mb=host_memory().total_mb, compute_capability=platform.machine()
        )

    def vram(self, job: int) -> Vram:
        memory = host_memory()
        return Vram(job, memory.used_mb, memory.free_mb, memory.total_mb)

    def trim(self) -> None:
        gc.collect()
        _trim_heap()

    def probe(self) -> None:
        if float(np.ones(1024, np.float32).sum()) != 1024.0:
            raise RuntimeError("the CPU adds wrongly")
        loaded: Any = sys.modules.get("torch")
        if loaded is not None and float(loaded.ones(1024).sum()) != 1024.0:
            raise RuntimeError("the CPU adds wrongly")

    def pin(self, slots: SlotSegment) -> None:
        pass

    def unpin(self, slots: SlotSegment) -> None:
        pass


class CudaPlatform:
    """One GPU. Raises RequestFault `device_unavailable` when it cannot be bound."""

    def __init__(self, device: str) -> None:
        self.id = device
        self._torch = _import_torch()
        index = int(device.partition(":")[2] or 0)
        cuda = self._torch.cuda
        if not cuda.is_available() or index >= cuda.device_count():
            raise RequestFault("device_unavailable", f"{device} is not there")
        cuda.set_device(index)
        self._device: torch.device = self._torch.device(device)
        self._properties: Any = cuda.get_device_properties(index)
        #: Addresses of the mappings that are pinned.
        self._pinned: set[int] = set()

    def facts(self) -> DeviceFacts:
        properties = self._properties
        return DeviceFacts(
            name=str(properties.name),
            vram_total_mb=int(properties.total_memory) // MIB,
            compute_capability=f"{properties.major}.{properties.minor}",
            cuda_version=self._torch.version.cuda,
            driver_version=_driver_version(),
            torch_version=str(self._torch.__version__),
        )

    def vram(self, job: int) -> Vram:
        free, total = self._torch.cuda.mem_get_info(self._device)
        utilization, temperature = self._sensors()
        return Vram(job, (total - free) // MIB, free // MIB, total // MIB, utilization, temperature)

    def _sensors(self) -> tuple[int, int]:
        """(percent, degrees Celsius); zeros where the management library is missing."""
        try:
            return int(self._torch.cuda.utilization(self._device)), int(self._torch.cuda.temperature(self._device))
        except (RuntimeError, ImportError, OSError, AssertionError):
            return 0, 0

    def trim(self) -> None:
        gc.collect()
        self._torch.cuda.empty_cache()
        _trim_heap()

    def probe(self) -> None:
        total = self._torch.ones(1024, device=self._device).sum()
        self._torch.cuda.synchronize(self._device)
        if float(total) != 1024.0:
            raise RuntimeError("the device adds wrongly")

    def pin(self, slots: SlotSegment) -> None:
        """Copies to memory that this host cannot pin are as right, and slower: a warning, no failure."""
        address = _address(slots)
        code = int(self._torch.cuda.cudart().cudaHostRegister(address, slots.nbytes, 0))
        if code == 0:
            self._pinned.add(address)
        elif code in _NOT_PINNABLE:
            _log.warning("logits are not pinned", code=code)
            # The runtime would blame the next launch for this error: one that is made for it takes it away.
            with suppress(Exception):
                self.probe()
            self.probe()
        else:
            error = self._torch.AcceleratorError(f"CUDA error: cudaHostRegister returned {code}")
            error.error_code = code
            raise error

    def unpin(self, slots: SlotSegment) -> None:
        address = _address(slots)
        if address not in self._pinned:
            return
        self._pinned.discard(address)
        # A device that faulted answers neither; its process is about to end, and what comes next will say why.
        with suppress(Exception):
            self._torch.cuda.synchronize(self._device)
        code = int(self._torch.cuda.cudart().cudaHostUnregister(address))
        if code != 0:
            _log.warning("logits are not unpinned", code=code)


def bind(device: str) -> Platform:
    """The platform of a device id. Raises RequestFault with a public code, or what the library raises."""
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise RequestFault("device_unavailable", f"no platform for {device!r}")
    return CpuPlatform(device) if kind == "cpu" else CudaPlatform(device)


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise RequestFault("device_unavailable", "torch is not installed") from error
    return torch


def _trim_heap() -> None:
    """glibc keeps freed arenas; an unloaded model's staging memory is worth handing back. Elsewhere: nothing."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(ctypes.c_size_t(0))


def _address(slots: SlotSegment) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(slots.buffer))


def _driver_version() -> str | None:
    try:
        with open("/sys/module/nvidia/version", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None
