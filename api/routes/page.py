"""The status page at /: static files of this package, which hold no data. What they show, they ask of the API.

Anybody who reaches the host may read the files; every figure on the page needs whatever key the API needs.
"""

from importlib import resources

import msgspec
from quart import Quart, Response

from neuron.actors.errors import RouteNotFound
from neuron.api.page_files import TYPES

_HEADERS = {
    # No inline code or style, nothing from elsewhere, no frames around it.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


class _File(msgspec.Struct, frozen=True):
    content: bytes
    content_type: str


def register(app: Quart) -> None:
    folder = resources.files("neuron.api") / "page"
    files = {name: _File((folder / name).read_bytes(), content_type) for name, content_type in TYPES.items()}

    @app.get("/")
    async def page() -> Response:
        return _answer(files["index.html"])

    @app.get("/page/<name>")
    async def asset(name: str) -> Response:
        if name not in files or name == "index.html":
            raise RouteNotFound("There is no such route.")
        return _answer(files[name])


def _answer(file: _File) -> Response:
    return Response(file.content, content_type=file.content_type, headers=_HEADERS)
