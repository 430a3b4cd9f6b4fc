"""`python -m ops.validate [ID ...]`: loads models on a running daemon, probes every route, and prints a verdict.

Exit status 0: everything passed; 1: something failed; 2: no daemon. Models that were not resident are unloaded again.
The key comes from NEURON_API_KEY (an admin key, since models are loaded).
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec

DEMO = "demo:huggingfacetb/smollm2-135m-instruct"
LOAD_S = 1800.0


class Probe(msgspec.Struct, frozen=True):
    name: str
    ok: bool
    detail: str
    ms: float


class Target(msgspec.Struct, frozen=True):
    """One model to validate, written as ID[,quant=Q][,tensor_parallel=N][,device=D]."""

    model_id: str
    quant: str | None = None
    tensor_parallel: int | None = None
    devices: list[str] | None = None

    @property
    def body(self) -> dict[str, Any]:
        return {
            "model_id": self.model_id,
            "quant": self.quant,
            "tensor_parallel": self.tensor_parallel,
            "devices": self.devices,
        }


def parse_target(text: str) -> Target:
    """
    >>> parse_target("org/name,quant=q4_k_m,tensor_parallel=2").tensor_parallel
    2
    """
    model_id, *options = text.split(",")
    fields: dict[str, Any] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name == "device":
            fields.setdefault("devices", []).append(value)
        elif name in ("quant", "tensor_parallel") and value:
            fields[name] = int(value) if name == "tensor_parallel" else value
        else:
            raise argparse.ArgumentTypeError(f"'{option}' is not quant=, tensor_parallel= or device=")
    return Target(model_id, **fields)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.validate", description="Validate a running daemon.")
    parser.add_argument("targets", nargs="*", type=parse_target, metavar="ID[,quant=Q][,tensor_parallel=N][,device=D]")
    parser.add_argument("--url", default=os.environ.get("NEURON_URL", "http://127.0.0.1:13131"))
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    key = os.environ.get("NEURON_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(LOAD_S, connect=5.0)
    with httpx.Client(base_url=options.url, headers=headers, timeout=timeout, trust_env=False) as client:
        try:
            client.get("/health/live").raise_for_status()
        except httpx.HTTPError:
            sys.stderr.write(f"no daemon answers at {options.url}\n")
            return 2
        probes = Validation(client, quiet=options.json).run(options.targets or [Target(DEMO)])
    failed = [probe for probe in probes if not probe.ok]
    if options.json:
        verdict = {"ok": not failed, "probes": [msgspec.to_builtins(probe) for probe in probes]}
        sys.stdout.write(json.dumps(verdict, indent=2) + "\n")
    else:
        summary = f"{len(probes)} probes" if not failed else f"{len(failed)} of {len(probes)} probes"
        sys.stdout.write(f"\n{'FAILED' if failed else 'PASSED'}: {summary}\n")
    return 1 if failed else 0


class Validation:
    def __init__(self, client: httpx.Client, *, quiet: bool) -> None:
        self._client = client
        self._quiet = quiet
        self._probes: list[Probe] = []

    def run(self, targets: list[Target]) -> list[Probe]:
        self._facts()
        for target in targets:
            resident = self._is_resident(target.model_id)
            if self._try(f"load {target.model_id}", lambda t=target: self._load(t)):  # type: ignore[misc]
                self._model(target.model_id)
                if not resident:
                    self._try(f"unload {target.model_id}", lambda t=target: self._unload(t.model_id))  # type: ignore[misc]
        self._try("GET /metrics", self._metrics)
        return self._probes

    def _try(self, name: str, probe: Callable[[], str]) -> bool:
        started = time.monotonic()
        try:
            detail, ok = probe(), True
        except (httpx.HTTPError, AssertionError, KeyError, ValueError) as error:
            detail, ok = f"{type(error).__name__}: {error}"[:300], False
        found = Probe(name, ok, detail, round((time.monotonic() - started) * 1e3, 1))
        self._probes.append(found)
        if not self._quiet:
            sys.stdout.write(f"{'ok  ' if ok else 'FAIL'} {name:<44} {found.ms:>9.1f} ms  {detail}\n")
            sys.stdout.flush()
        return ok

    # -- the daemon ----------------------------------------------------------------------------

    def _facts(self) -> None:
        for path, keys in (
            ("/health", ("status", "activation", "devices", "models")),
            ("/discovery", ("hostname", "devices", "max_prompt_tokens")),
            ("/version", ("package_version", "features")),
            ("/requests", ("requests",)),
            ("/openapi.json", ("paths",)),
            ("/v1/models", ("data",)),
        ):
            self._try(f"GET {path}", lambda p=path, k=keys: self._get(p, k))  # type: ignore[misc]
        self._try("GET /health/ready", self._ready)
        self._try("GET /", self._page)
        self._try("an unknown model is 404", self._unknown)

    def _get(self, path: str, keys: tuple[str, ...]) -> str:
        body = _ok(self._client.get(path)).json()
        missing = [key for key in keys if key not in body]
        assert not missing, f"lacks {missing}"
        return ", ".join(f"{key}: {body[key]}" for key in keys if isinstance(body[key], str | int))

    def _ready(self) -> str:
        status = self._client.get("/health/ready").status_code
        assert status in (200, 503), f"answered {status}"
        return "ready" if status == 200 else "start-up models are still loading"

    def _page(self) -> str:
        answer = _ok(self._client.get("/"))
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        return ""

    def _unknown(self) -> str:
        answer = self._client.post("/v1/chat/completions", json=_chat("no/such"))
        assert answer.status_code == 404, f"answered {answer.status_code}"
        return str(answer.json()["error"]["code"])

    def _metrics(self) -> str:
        text = _ok(self._client.get("/metrics")).text
        assert "neuron_requests_total" in text
        return f"{sum(not line.startswith('#') for line in text.splitlines())} samples"

    # -- one model -----------------------------------------------------------------------------

    def _is_resident(self, model_id: str) -> bool:
        names = {
            name for entry in _ok(self._client.get("/models")).json() for name in (entry["id"], entry["source_id"])
        }
        return model_id in names

    def _load(self, target: Target) -> str:
        body = _ok(self._client.post("/models/load", json=target.body)).json()
        assert body["status"] == "loaded", body
        return "already" if body.get("already") else ""

    def _unload(self, model_id: str) -> str:
        return str(_ok(self._client.post("/models/unload", json={"model_id": model_id})).json()["status"])

    def _model(self, model_id: str) -> None:
        for name, probe in (
            ("GET /models/{id}/endpoint", self._endpoint),
            ("GET /models/{id}/capabilities", self._capabilities),
            ("POST /v1/chat/completions", self._buffered),
            ("POST /v1/chat/completions, streamed", self._streamed),
            ("the same seed gives the same answer", self._repeatable),
            ("POST /v1/responses", self._responses),
            ("a JSON schema is kept to", self._schema),
            ("a client that leaves frees the model", self._leaves),
        ):
            self._try(name, lambda p=probe: p(model_id))  # type: ignore[misc]

    def _endpoint(self, model_id: str) -> str:
        return str(_ok(self._client.get(f"/models/{model_id}/endpoint")).json()["url"])

    def _capabilities(self, model_id: str) -> str:
        return ", ".join(_ok(self._client.get(f"/models/{model_id}/capabilities")).json()["capabilities"])

    def _buffered(self, model_id: str) -> str:
        body = _ok(self._client.post("/v1/chat/completions", json=_chat(model_id))).json()
        assert body["choices"][0]["finish_reason"] in ("stop", "length")
        assert body["usage"]["completion_tokens"] > 0
        timings = body["timings"]
        return f"{timings['prompt_per_second']:.0f} tokens/s in, {timings['predicted_per_second']:.1f} out"

    def _streamed(self, model_id: str) -> str:
        events = list(self._stream(_chat(model_id, stream=True)))
        assert events[-1] == "[DONE]", "no [DONE]"
        assert any('"finish_reason":"' in event.replace(" ", "") for event in events), "no finish_reason"
        return f"{len(events)} events"

    def _stream(self, body: dict[str, Any]) -> Iterator[str]:
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                response.read()
            _ok(response)
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield line[6:]

    def _repeatable(self, model_id: str) -> str:
        body = _chat(model_id, temperature=1.0, seed=7)
        first, second = (
            _ok(self._client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"] for _ in range(2)
        )
        assert first["content"] == second["content"], "two answers differ"
        return ""

    def _responses(self, model_id: str) -> str:
        body = {"model": model_id, "input": "Say hello.", "max_output_tokens": 16}
        return str(_ok(self._client.post("/v1/responses", json=body)).json()["status"])

    def _schema(self, model_id: str) -> str:
        schema = {
            "type": "object",
            "properties": {"n": {"enum": [1, 2]}},
            "required": ["n"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
        answer = _ok(
            self._client.post("/v1/chat/completions", json=_chat(model_id, max_tokens=64, response_format=form))
        )
        message = answer.json()["choices"][0]["message"]["content"]
        assert json.loads(message)["n"] in (1, 2), message
        return " ".join(message.split())

    def _leaves(self, model_id: str) -> str:
        next(self._stream(_chat(model_id, stream=True, max_tokens=4096)))
        deadline = time.monotonic() + 10.0
        while any(entry["in_flight"] for entry in _ok(self._client.get("/health")).json()["models"]):
            assert time.monotonic() < deadline, "still running after 10 s"
            time.sleep(0.05)
        return ""


def _chat(model_id: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Name three colours."}]
    return {"model": model_id, "messages": messages, "max_tokens": 24, "temperature": 0, **fields}


def _ok(response: httpx.Response) -> httpx.Response:
    assert response.status_code == 200, f"{response.status_code} {response.text[:200]}"
    return response


if __name__ == "__main__":
    sys.exit(main())
