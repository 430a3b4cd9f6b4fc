"""The bodies of POST /models/load and /models/unload."""

from typing import Any

from neuron.actors.daemon import LoadRequest
from neuron.actors.device.devices import parse_device
from neuron.actors.errors import InvalidValue
from neuron.api.validate.chat import read_model
from neuron.api.validate.reader import Number, Reader

RANKS = Number(1, 64, integer=True)
CONTEXT = Number(1, 2**31 - 1, integer=True)
DEVICES = 64
QUANT_CHARS = 64


def read_load(body: dict[str, Any]) -> LoadRequest:
    """`harness` is accepted and ignored. Raises InvalidValue, and UnsupportedDevice for what this host has not."""
    reader = Reader(body)
    model_id = read_model_id(body)
    return LoadRequest(
        model_id=model_id,
        quant=reader.string("quant", max_chars=QUANT_CHARS),
        tensor_parallel=reader.integer("tensor_parallel", RANKS),
        devices=_devices(reader, model_id),
        max_context=reader.integer("max_context", CONTEXT),
    )


def read_model_id(body: dict[str, Any]) -> str:
    """`model_id`, or `model` as the other routes call it."""
    key = "model" if body.get("model_id") is None and body.get("model") is not None else "model_id"
    return read_model(Reader(body), key)


def _devices(reader: Reader, model_id: str) -> tuple[str, ...] | None:
    values = reader.list("devices", max_items=DEVICES)
    if not values:
        return None
    devices: list[str] = []
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, str | int):
            param = f"devices[{index}]"
            raise InvalidValue(f"'{param}' must be the number or the name of a device.", param=param)
        devices.append(parse_device(value, model_id=model_id))
    return tuple(devices)
