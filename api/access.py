"""Who may do what: keys, trusted peers, Host, Origin. Every request passes `Access.check` before its body is read.

Default-deny: with keys configured, everything but the bare probes and the page's files needs one, and what changes
state needs an admin key. Without keys only a loopback bind starts, and there the Host header must name this host.
"""

import hashlib
import hmac
import ipaddress
import stat
from enum import IntEnum
from pathlib import Path

import msgspec

from neuron.actors.errors import Forbidden, HostNotAllowed, InvalidApiKey
from neuron.actors.settings import ServerSettings
from neuron.api.context import Headers
from neuron.api.page_files import PAGE_PATHS
from neuron.runtime.errors import ConfigError

#: The two bare probes, and the files of the status page, which hold no data.
PUBLIC = frozenset({"/health/live", "/health/ready"}) | PAGE_PATHS
#: What an inference key may change. Everything else that is no plain reading needs an admin key, whatever its spelling.
INFERENCE = frozenset({"/v1/chat/completions", "/v1/responses"})
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_MAX_KEY_FILE = 1024 * 1024
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Role(IntEnum):
    NONE = 0
    INFER = 1
    ADMIN = 2


class Asking(msgspec.Struct, frozen=True):
    """The facts of a request that access depends on. `path` is decoded, exactly as the router sees it."""

    method: str
    path: str
    raw_path: bytes
    peer: str
    headers: Headers


class Keys:
    """Digests of the configured keys; the keys themselves are not kept."""

    def __init__(self, infer: Path | None, admin: Path | None) -> None:
        """Raises ConfigError when a file cannot be read or holds no key."""
        self._digests = [(_digest(key), Role.INFER) for key in _read_keys(infer)]
        self._digests += [(_digest(key), Role.ADMIN) for key in _read_keys(admin)]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def role(self, key: str) -> Role:
        """Compares with every key, in time that does not depend on where they differ."""
        digest = _digest(key)
        found = Role.NONE
        for known, role in self._digests:
            if hmac.compare_digest(known, digest):
                found = max(found, role)
        return found


class Access:
    def __init__(self, settings: ServerSettings) -> None:
        """Raises ConfigError, also for a bind that everybody could use."""
        self.keys = Keys(settings.api_keys_file, settings.admin_keys_file)
        self.loopback = is_loopback(settings.host)
        self._trusted = [_network(text) for text in settings.trusted_peers]
        self._hosts = {host.lower() for host in settings.allowed_hosts}
        self._names = set(_LOOPBACK_NAMES) | {settings.host.lower()} | self._hosts
        self._origins = frozenset(origin.rstrip("/") for origin in settings.cors_origins)
        if "*" in self._origins:
            raise ConfigError("server.cors_origins must list exact origins; '*' is not accepted.")
        if not self.loopback and not self.keys and not settings.allow_unauthenticated:
            raise ConfigError(
                f"server.host {settings.host} is reachable from other machines and no keys are configured: set "
                "server.api_keys_file, or server.allow_unauthenticated = true to serve everybody."
            )

    @property
    def open_to_all(self) -> bool:
        return not self.loopback and not self.keys

    def check(self, asking: Asking) -> None:
        """Raises InvalidApiKey, Forbidden or HostNotAllowed."""
        trusted = self._is_trusted(asking.peer)
        if not trusted:
            self._check_host(asking)
        if asking.method not in _READING:
            self._check_origin(asking)
        if trusted or not self.keys:
            return
        if asking.path in PUBLIC and asking.raw_path == asking.path.encode():
            return
        key = presented_key(asking.headers)
        if key is None:
            raise InvalidApiKey("You did not provide an API key. Send it as 'Authorization: Bearer KEY'.")
        role = self.keys.role(key)
        if role is Role.NONE:
            raise InvalidApiKey("Incorrect API key provided.")
        if asking.method not in _READING and asking.path not in INFERENCE and role is not Role.ADMIN:
            raise Forbidden("This call needs an admin key.")

    def allowed_origin(self, headers: Headers) -> str | None:
        """The request's Origin when it is one of those configured."""
        origin = headers.get("origin")
        return origin if origin is not None and origin in self._origins else None

    def principal(self, asking: Asking) -> str:
        """Who the request counts for in the fair share of the queue. Never holds a key."""
        account = _printable(asking.headers.get("x-helexa-account-id"))
        key_id = _printable(asking.headers.get("x-helexa-key-id"))
        if account or key_id:
            return f"{account}/{key_id}"
        key = presented_key(asking.headers)
        if key is not None and self.keys.role(key) is not Role.NONE:
            return f"key:{_digest(key).hex()[:12]}"
        return f"peer:{asking.peer}"

    def _is_trusted(self, peer: str) -> bool:
        address = _address(peer)
        return address is not None and any(address in network for network in self._trusted)

    def _check_host(self, asking: Asking) -> None:
        if not (self.loopback or self._hosts):
            return
        name = host_name(asking.headers.get("host", ""))
        if name not in self._names and not (not self.loopback and name in _LOOPBACK_NAMES):
            raise HostNotAllowed("The Host header does not name this server (see server.allowed_hosts).")

    def _check_origin(self, asking: Asking) -> None:
        origin = asking.headers.get("origin")
        if origin is None or origin in self._origins:
            return
        if origin.partition("://")[2].lower() == asking.headers.get("host", "").lower():
            return
        raise Forbidden("Calls from this web origin are not allowed (see server.cors_origins).")


def presented_key(headers: Headers) -> str | None:
    scheme, _, value = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key", "").strip() or None


def host_name(host: str) -> str:
    """The name of a Host header without its port, in lower case."""
    host = host.strip().lower()
    name, port = host, ""
    if host.startswith("["):
        inner, closing, port = host.partition("]")
        name = inner + closing
    elif ":" in host:
        name, _, port = host.partition(":")
        port = f":{port}"
    return name if not port or (port[0] == ":" and port[1:].isdigit()) else host


def is_loopback(host: str) -> bool:
    address = _address(host.strip("[]"))
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise ConfigError(f"server.trusted_peers: '{text[:64]}' is not an address range.") from error


def _read_keys(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        if not stat.S_ISREG(path.stat().st_mode) or path.stat().st_size > _MAX_KEY_FILE:
            raise ConfigError(f"{path}: not a file of keys.")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the keys cannot be read.") from error
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise ConfigError(f"{path}: there is no key in this file.")
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _printable(value: str | None) -> str:
    return value if value is not None and len(value) <= 128 and value.isprintable() else ""
