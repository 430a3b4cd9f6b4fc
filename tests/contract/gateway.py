"""A stand-in for the reference's gateway: polls, places, resolves, proxies, meters and evicts as that one does."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from tests.contract import structs

T = TypeVar("T")
POLL_S = 5.0
TAIL = 32 * 1024


class GatewayError(AssertionError):
    """What makes the gateway drop a node or answer an error of its own."""


def decode(body: bytes, kind: Any) -> Any:
    """Strict: a missing key or another type fails the whole answer."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise GatewayError(str(error)) from error


@dataclass(slots=True)
class Polled:
    discovery: structs.Discovery
    models: list[structs.Model]
    health: structs.Health


@dataclass(slots=True)
class Answer:
    """`counts` is what the meter found in the tail of the body."""

    status: int
    body: bytes
    headers: httpx.Headers
    counts: dict[str, int] = field(default_factory=dict)


class Gateway:
    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=POLL_S, trust_env=False)
        self._host = urlsplit(url).hostname

    def close(self) -> None:
        self._client.close()

    def poll(self) -> Polled:
        discovery = self._get("/discovery", structs.Discovery)
        if discovery.max_prompt_tokens <= 0:
            raise GatewayError("max_prompt_tokens is not known")
        models = self._get("/models", list[structs.Model])
        for model in models:
            if model.status not in ("loaded", "loading", "recovering", "poisoned"):
                raise GatewayError(f"{model.status} would be routed to")
            self._capabilities(model.id)
        return Polled(discovery, models, self._get("/health", structs.Health))

    def _capabilities(self, model_id: str) -> None:
        """404 means "cannot say", as for a model that left since the list was read."""
        response = self._client.get(f"/models/{quote(model_id, safe='')}/capabilities")
        if response.status_code != 404:
            decode(response.content, structs.Capabilities)

    def version(self) -> structs.Version:
        version: structs.Version = self._get("/version", structs.Version)
        return version

    def _get(self, path: str, kind: Callable[..., T] | Any) -> Any:
        response = self._client.get(path)
        if response.status_code != 200:
            raise GatewayError(f"{path} answered {response.status_code}")
        return decode(response.content, kind)

    def cold_load(self, model_id: str) -> None:
        """The body that the gateway sends; "already loaded" in a refusal counts as success."""
        body = {"model_id": model_id, "harness": "candle", "quant": None, "tensor_parallel": None, "devices": [0]}
        response = self._client.post("/models/load", json=body, timeout=60.0)
        if response.is_success:
            assert decode(response.content, structs.Status).status in ("loaded", "loading")
        elif b"already loaded" not in response.content:
            raise GatewayError(f"load answered {response.status_code}: {response.text}")

    def unload(self, model_id: str) -> None:
        response = self._client.post("/models/unload", json={"model_id": model_id}, timeout=60.0)
        if not response.is_success:
            raise GatewayError(f"unload answered {response.status_code}")

    def resolve(self, model_id: str) -> str | None:
        """The URL a request goes to; a loopback host in it is replaced by the node's own."""
        response = self._client.get(f"/models/{quote(model_id, safe='')}/endpoint")
        if response.status_code != 200:
            return None
        url = urlsplit(decode(response.content, structs.Endpoint).url)
        return f"{url.scheme}://{self._host}:{url.port}"

    def forward(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Answer:
        """Resolves first, on every request, then passes bytes through and meters their tail."""
        target = self.resolve(body["model"].partition(":")[2] or body["model"])
        if target is None:
            return Answer(404, b"service_unavailable", httpx.Headers())
        sent = {
            "x-helexa-account-id": "acc",
            "x-helexa-key-id": "key",
            "accept-encoding": "gzip, br",
            **(headers or {}),
        }
        with httpx.Client(timeout=60.0, trust_env=False) as client:
            response = client.post(target + path, json=body, headers=sent)
        assert "content-encoding" not in response.headers
        return Answer(response.status_code, response.content, response.headers, meter(response.content))


def meter(body: bytes) -> dict[str, int]:
    """The last of each count in the tail of any body, found by text."""
    tail = body[-TAIL:].decode("utf-8", "replace")
    counts = {}
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        found = re.findall(rf'"{name}":\s*(\d+)', tail)
        if found:
            counts[name] = int(found[-1])
    return counts


def strict_chunks(body: bytes) -> list[structs.Chunk]:
    """Reads a stream as the gateway's Anthropic route does: LF LF only, lines that start with "data:"."""
    lines = [line for frame in body.decode("utf-8").split("\n\n") for line in frame.split("\n")]
    data = [line[5:] for line in lines if line.startswith("data:") and line[5:].strip() != "[DONE]"]
    return [decode(text.encode(), structs.Chunk) for text in data]
