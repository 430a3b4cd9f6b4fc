"""The daemon as the command line's commands see it: URL, JSON calls, and errors as one line."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import click
import httpx

DEFAULT_URL = "http://127.0.0.1:13131"
_CONNECT_S = 5.0
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def url_option(command: Decorated) -> Decorated:
    return click.option(
        "--url", envvar="NEURON_URL", default=DEFAULT_URL, show_default=True, help="The daemon. Also NEURON_URL."
    )(command)


def json_option(command: Decorated) -> Decorated:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


class Api:
    """Calls that raise ClickException with one clear line. The key comes from NEURON_API_KEY."""

    def __init__(self, url: str) -> None:
        key = os.environ.get("NEURON_API_KEY")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._headers = headers
        self.url = url

    def client(self, headers: Mapping[str, str] | None = None) -> httpx.Client:
        """A client of its own, with `headers` beside the key."""
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        headers = {**self._headers, **(headers or {})}
        try:
            return httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)
        except (httpx.InvalidURL, ValueError) as error:
            raise click.ClickException(f"'{self.url}' is not a URL.") from error

    def get(self, path: str) -> Any:
        return self._json("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._json("POST", path, body)

    def _json(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        try:
            with self.client() as client:
                response = client.request(method, path, json=body)
            self._raise_for(response)
            return response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise self._unreachable(error) from error

    def events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The data objects of a server-sent stream. An error, before or inside it, raises."""
        try:
            with self.client() as client, client.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    response.read()
                self._raise_for(response)
                for line in response.iter_lines():
                    if not line.startswith("data:") or line == "data: [DONE]":
                        continue
                    event = json.loads(line[5:])
                    if "error" in event:
                        raise click.ClickException(_message(event))
                    yield event
        except (httpx.HTTPError, ValueError) as error:
            raise self._unreachable(error) from error

    def _raise_for(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        try:
            text = _message(response.json())
        except ValueError:
            text = f"the daemon answered {response.status_code}"
        raise click.ClickException(text)

    def _unreachable(self, error: Exception) -> click.ClickException:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return click.ClickException(f"no daemon answers at {self.url}; start one with 'neuron serve'.")
        return click.ClickException(f"the connection to {self.url} broke.")


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    text = error.get("message") if isinstance(error, dict) else error
    suggestion = error.get("suggestion") if isinstance(error, dict) else None
    lines = f"{text or 'unknown error'} {suggestion or ''}"
    return " ".join(lines.split())


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def only_model(api: Api, model_id: str | None) -> str:
    """`model_id`, or the one loaded model when none was named."""
    if model_id is not None:
        return model_id
    ids = [entry["id"] for entry in api.get("/models") if entry["status"] == "loaded"]
    if len(ids) == 1:
        return str(ids[0])
    if not ids:
        raise click.ClickException("no model is loaded; load one with 'neuron load ID'.")
    raise click.ClickException(f"name one of the loaded models: {', '.join(ids)}.")
