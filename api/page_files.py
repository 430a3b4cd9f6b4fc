"""The files of the status page, by name. Read by the route that serves them and by the access rules."""

TYPES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "http.js": "text/javascript; charset=utf-8",
    "view.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
#: Paths that need no key.
PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in TYPES if name != "index.html")})
