"""Device ids: which exist on this host, and how a client may name one. Imports no device library."""

import re
from pathlib import Path

from neuron.actors.errors import UnsupportedDevice

_PATTERN = re.compile(r"^(cpu|cuda)(?::(0|[1-9][0-9]{0,2}))?$")
#: CPU devices are as many processes as wanted; this many are offered.
CPU_DEVICES = 8
_NVIDIA_NODES = Path("/dev")


def cuda_device_count(nodes: Path = _NVIDIA_NODES) -> int:
    """GPUs whose device node is there (`/dev/nvidia0`, ...): the daemon never initialises a device."""
    try:
        return sum(1 for node in nodes.iterdir() if re.fullmatch(r"nvidia[0-9]+", node.name))
    except OSError:
        return 0


def known_devices(nodes: Path = _NVIDIA_NODES) -> list[str]:
    """Ids in the order of their public index: the GPUs when there are any, else the CPU devices."""
    gpus = cuda_device_count(nodes)
    if gpus:
        return [f"cuda:{index}" for index in range(gpus)]
    return ["cpu", *(f"cpu:{index}" for index in range(1, CPU_DEVICES))]


def parse_device(value: str | int, *, model_id: str = "", nodes: Path = _NVIDIA_NODES) -> str:
    """The id that a client's `0`, `"0"`, `"cpu"`, `"cpu:1"` or `"cuda:1"` names.

    A number is an index into `known_devices`. CPU devices are there on every host.
    Raises UnsupportedDevice for anything else and for a GPU that is not there.
    """
    known = known_devices(nodes)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise _unsupported(str(value), model_id)
    if isinstance(value, int) or value.isdecimal():
        if len(str(value)) <= 4 and 0 <= int(value) < len(known):
            return known[int(value)]
        raise _unsupported(str(value), model_id)
    match = _PATTERN.match(value.strip().lower())
    if match is None:
        raise _unsupported(value, model_id)
    kind, index = match[1], int(match[2] or 0)
    if kind == "cpu":
        if index >= CPU_DEVICES:
            raise _unsupported(value, model_id)
        return "cpu" if index == 0 else f"cpu:{index}"
    device = f"cuda:{index}"
    if device not in known:
        raise _unsupported(value, model_id)
    return device


def device_index(device: str) -> int:
    """The public index of a device id (`cuda:1` -> 1, `cpu` -> 0)."""
    return int(device.partition(":")[2] or 0)


def _unsupported(value: str, model_id: str) -> UnsupportedDevice:
    return UnsupportedDevice(f"There is no device '{value[:40]}' on this host.", model_id=model_id)
