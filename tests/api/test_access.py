"""Keys, hosts, origins and peers: default-deny, walked route by route over HTTP."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from neuron.actors.settings import ServerSettings
from neuron.api.access import Access, is_loopback
from neuron.api.openapi import document
from neuron.runtime.errors import ConfigError
from tests.api.fake_daemon import FakeServer, chat_body

INFER, ADMIN = "sk-infer-123", "sk-admin-456"


@pytest.fixture(name="keyed")
def _keyed(tmp_path: Path) -> ServerSettings:
    return ServerSettings(
        api_keys_file=_file(tmp_path, "infer", INFER), admin_keys_file=_file(tmp_path, "admin", ADMIN)
    )


def _file(directory: Path, name: str, *keys: str) -> Path:
    path = directory / name
    path.write_text("# keys\n\n" + "\n".join(keys) + "\n")
    return path


def _routes() -> list[tuple[str, str]]:
    return [
        (method.upper(), path.replace("{id}", "org%2Fname").replace("{name}", "app.js"))
        for path, operations in document()["paths"].items()
        for method in operations
    ]


def _body(path: str) -> dict[str, Any]:
    if path.startswith("/models/"):
        return {"model_id": "org/name"}
    return chat_body(input="hi")


def _call(client: httpx.Client, method: str, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    body = {"json": _body(path)} if method == "POST" else {}
    return client.request(method, path, headers=headers, **body)  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "path"), _routes())
def test_every_route_but_the_probes_and_the_page_needs_a_key(keyed: ServerSettings, method: str, path: str) -> None:
    public = path in ("/health/live", "/health/ready", "/", "/page/app.js")
    admin = path in ("/models/load", "/models/unload")
    with FakeServer(server=keyed) as server, server.client() as client:
        assert _call(client, method, path).status_code == (200 if public else 401)
        assert _call(client, method, path, _bearer("wrong")).status_code == (200 if public else 401)
        assert _call(client, method, path, _bearer(INFER)).status_code == (403 if admin else 200)
        assert _call(client, method, path, _bearer(ADMIN)).status_code == 200


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_unknown_paths_and_spellings_need_a_key_too(keyed: ServerSettings) -> None:
    with FakeServer(server=keyed) as server, server.client() as client:
        for path in ("/nope", "/page/", "/page/app.js/", "/page/%61pp.js"):
            assert client.get(path).status_code in (400, 401), path
        for path in ("/health/live/", "/health/%6Cive", "//health/live", "/health/live%00"):
            assert client.get(path).status_code in (400, 401), path
        for path in ("/models/%6Coad", "/models/%75nload", "/models/load/", "/models/unload/", "/models/load%2F"):
            response = client.post(path, json={"model_id": "org/name"}, headers=_bearer(INFER))
            assert response.status_code == 403, path


def test_refusals_say_how_to_authenticate(keyed: ServerSettings) -> None:
    with FakeServer(server=keyed) as server, server.client() as client:
        missing = client.get("/health")
        assert missing.json()["error"]["code"] == "invalid_api_key"
        assert missing.json()["error"]["type"] == "authentication_error"
        assert missing.headers["www-authenticate"].startswith("Bearer")
        assert client.get("/health", headers={"x-api-key": INFER}).status_code == 200
        assert client.get("/health", headers={"authorization": f"bearer  {INFER}"}).status_code == 200
        assert client.get("/health", headers={"authorization": "Basic abc"}).status_code == 401


def test_probes_name_no_models(keyed: ServerSettings) -> None:
    with FakeServer(server=keyed) as server, server.client() as client:
        assert client.get("/health/live").json() == {"status": "ok"}
        assert client.get("/health/ready").json() == {"status": "ready"}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:13131", "127.0.0.1", "[::1]:5", "gpu.lan"])
def test_hosts_that_name_this_server(host: str) -> None:
    with FakeServer(server=ServerSettings(allowed_hosts=("gpu.lan",))) as server, server.client() as client:
        assert client.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "", "evil:80", "[::1].x", "[::1"]
)
def test_rebound_hosts_are_refused(host: str) -> None:
    with FakeServer() as server, server.client() as client:
        response = client.get("/health", headers={"host": host})
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "host_not_allowed"


def test_trusted_peers_need_neither_key_nor_host(keyed: ServerSettings) -> None:
    settings = ServerSettings(
        api_keys_file=keyed.api_keys_file, admin_keys_file=keyed.admin_keys_file, trusted_peers=("127.0.0.0/8",)
    )
    with FakeServer(server=settings) as server, server.client() as client:
        headers = {"host": "beast:13131"}
        assert client.get("/health", headers=headers).status_code == 200
        assert client.post("/models/unload", json={"model_id": "org/name"}, headers=headers).status_code == 200


def test_web_pages_cannot_call_it() -> None:
    with FakeServer() as server, server.client() as client:
        for origin in ("https://evil.example", "null", "http://localhost:1"):
            headers = {"origin": origin}
            assert client.post("/v1/chat/completions", json=chat_body(), headers=headers).status_code == 403
            assert "access-control-allow-origin" not in client.get("/health", headers=headers).headers
            assert client.options("/v1/chat/completions", headers=headers).status_code == 405
        same = {"origin": server.url}
        assert client.post("/v1/chat/completions", json=chat_body(), headers=same).status_code == 200
        assert client.get("/health").headers.get("access-control-allow-origin") is None


def test_configured_origins_are_exact() -> None:
    settings = ServerSettings(cors_origins=("https://app.example",))
    with FakeServer(server=settings) as server, server.client() as client:
        headers = {"origin": "https://app.example"}
        response = client.post("/v1/chat/completions", json=chat_body(), headers=headers)
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        assert client.options("/v1/chat/completions", headers=headers).status_code == 204
        assert client.post(
            "/v1/chat/completions", json=chat_body(), headers={"origin": "https://app.example.evil"}
        ).is_error


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/json; charset=utf-16",
    ],
)
def test_simple_requests_are_refused(content_type: str | None) -> None:
    with FakeServer() as server, server.client() as client:
        headers = {} if content_type is None else {"content-type": content_type}
        response = client.post("/v1/chat/completions", content=b"{}", headers=headers)
        assert response.status_code == 415
        assert response.json()["error"]["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON; charset=UTF-8", "application/vnd.api+json"]
)
def test_json_content_types(content_type: str) -> None:
    with FakeServer() as server, server.client() as client:
        response = client.post("/v1/chat/completions", content=b"{}", headers={"content-type": content_type})
        assert response.json()["error"]["param"] == "model"


def test_principals(keyed: ServerSettings) -> None:
    with FakeServer(server=keyed) as server, server.client() as client:
        gateway = {**_bearer(INFER), "x-helexa-account-id": "acc", "x-helexa-key-id": "key"}
        for headers in (gateway, _bearer(INFER), {**_bearer(ADMIN), "x-helexa-account-id": "a" * 500}):
            assert client.post("/v1/chat/completions", json=chat_body(), headers=headers).status_code == 200
        first, second, third = (request.principal for request in server.daemon.requests)
        assert first == "acc/key"
        assert second.startswith("key:")
        assert INFER not in second
        assert third.startswith("key:")
        assert third != second


def test_without_keys_the_peer_is_the_principal() -> None:
    with FakeServer() as server:
        server.chat()
        assert server.daemon.requests[0].principal == "peer:127.0.0.1"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gpu.lan"])
def test_open_binds_without_keys_refuse_to_start(host: str) -> None:
    with pytest.raises(ConfigError, match="allow_unauthenticated"):
        Access(ServerSettings(host=host))
    assert Access(ServerSettings(host=host, allow_unauthenticated=True)).open_to_all


def test_key_files_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Access(ServerSettings(api_keys_file=tmp_path / "absent"))
    with pytest.raises(ConfigError):
        Access(ServerSettings(api_keys_file=_file(tmp_path, "empty")))
    with pytest.raises(ConfigError):
        Access(ServerSettings(api_keys_file=tmp_path))
    with pytest.raises(ConfigError):
        Access(ServerSettings(cors_origins=("*",)))
    with pytest.raises(ConfigError):
        Access(ServerSettings(trusted_peers=("10.0.0.0/99",)))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
