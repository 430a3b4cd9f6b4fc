"""A server on loopback that speaks as much of the hub's protocol as its client needs: info, tree, resolve."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Repo:
    """`files` by path; `listed` replaces what the listing says (name -> size) when set."""

    files: dict[str, bytes]
    token: str | None = None
    listed: Mapping[str, int] | None = None

    @property
    def sha(self) -> str:
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    def listing(self) -> Mapping[str, int]:
        return self.listed if self.listed is not None else {name: len(data) for name, data in self.files.items()}


@dataclass
class Request:
    method: str
    path: str
    authorization: str | None
    range: str | None
    sent: int = 0


@dataclass
class Hub:
    """What the server serves and what it was asked. `fail` makes every answer this status; `sizes` off hides sizes."""

    repos: dict[str, Repo] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    fail: int | None = None
    sizes: bool = True
    ranges: bool = True
    #: Send downloads of weights on to this address, as a hub does to its storage.
    storage: str | None = None
    #: Cut the body of the next download of a whole file of this name after so many bytes (once).
    cut: dict[str, int] = field(default_factory=dict)

    def sent(self, suffix: str) -> int:
        """Bytes of bodies sent for paths that end in `suffix`."""
        return sum(request.sent for request in self.requests if request.path.endswith(suffix))

    def asked(self, suffix: str, method: str = "GET") -> list[Request]:
        return [r for r in self.requests if r.path.endswith(suffix) and r.method == method]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        request = Request(self.command, path, self.headers.get("Authorization"), self.headers.get("Range"))
        self.hub.requests.append(request)
        if self.hub.fail is not None:
            return self._send(self.hub.fail, b"{}", request)
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self._api(parts[2:], request)
        if len(parts) > 4 and parts[2] == "resolve":
            return self._file("/".join(parts[:2]), "/".join(parts[4:]), request)
        return self._send(404, b"{}", request, {"X-Error-Code": "EntryNotFound"})

    def _repo(self, name: str, request: Request) -> Repo | None:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.token is not None and request.authorization != f"Bearer {repo.token}"):
            self._send(404 if repo is None else 401, b"{}", request, {"X-Error-Code": "RepoNotFound"})
            return None
        return repo

    def _api(self, parts: list[str], request: Request) -> None:
        repo = self._repo("/".join(parts[:2]), request)
        if repo is None:
            return
        if parts[2:3] == ["tree"]:
            body: Any = [
                {"type": "file", "path": name, "size": size, "oid": "0" * 40} for name, size in repo.listing().items()
            ]
        else:
            siblings = [
                {"rfilename": name} | ({"size": size, "blobId": "0" * 40} if self.hub.sizes else {})
                for name, size in repo.listing().items()
            ]
            body = {"id": "/".join(parts[:2]), "sha": repo.sha, "private": False, "siblings": siblings}
        self._send(200, json.dumps(body).encode(), request, {"Content-Type": "application/json"})

    def _file(self, name: str, path: str, request: Request) -> None:
        repo = self._repo(name, request)
        if repo is None:
            return
        data = repo.files.get(path)
        if data is None:
            return self._send(404, b"{}", request, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repo.sha})
        if self.hub.storage is not None and path.endswith(".safetensors"):
            linked = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"'}
            location = {"X-Repo-Commit": repo.sha, "Location": self.hub.storage + self.path}
            return self._send(302, b"", request, linked | location)
        headers = {"X-Repo-Commit": repo.sha, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        status, body = 200, data
        if request.range is not None and self.hub.ranges:
            first, _, last = request.range.removeprefix("bytes=").partition("-")
            stop = min(int(last) + 1, len(data)) if last else len(data)
            status, body = 206, data[int(first) : stop]
            headers["Content-Range"] = f"bytes {first}-{stop - 1}/{len(data)}"
        whole = request.range is None and self.command == "GET"
        return self._send(status, body, request, headers, cut=self.hub.cut.pop(path, None) if whole else None)

    def _send(
        self,
        status: int,
        body: bytes,
        request: Request,
        headers: Mapping[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        sent = body if cut is None else body[:cut]
        # Counted before it is written: the client may look as soon as it has the last byte.
        request.sent += len(sent)
        try:
            self.wfile.write(sent)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        if cut is not None:
            self.close_connection = True


@contextmanager
def running_hub(repos: dict[str, Repo] | None = None) -> Iterator[Hub]:
    """A hub on a free loopback port, stopped at the end."""
    hub = Hub(repos or {})
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
