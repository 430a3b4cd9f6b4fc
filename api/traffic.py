"""Counts of HTTP requests by route, status and error code, for GET /metrics. Written by the edge, read by the route."""

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from neuron.api import metric_table as table

_FAMILIES = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/models",
    "/models/load",
    "/models/unload",
    "/models",
    "/health",
    "/discovery",
    "/version",
    "/metrics",
    "/openapi.json",
    "/requests",
    "/page",
)
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS"})
_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120, 600)


class Traffic:
    def __init__(self) -> None:
        #: Ours alone: the default registry is global to the process.
        self.registry = CollectorRegistry(auto_describe=True)
        disable_created_metrics()  # type: ignore[no-untyped-call]
        requests, seconds = table.HTTP_REQUESTS, table.HTTP_SECONDS
        self._requests = Counter(requests.name, requests.help, requests.labels, registry=self.registry)
        self._seconds = Histogram(seconds.name, seconds.help, seconds.labels, buckets=_BUCKETS, registry=self.registry)

    def count(self, method: str, path: str, status: int, seconds: float, code: str = "") -> None:
        """`status` 0: the client left before an answer began. Labels have few values, whatever clients send."""
        route = "/" if path == "/" else next((name for name in _FAMILIES if _below(path, name)), "other")
        self._requests.labels(method if method in _METHODS else "other", route, str(status), code).inc()
        self._seconds.labels(route).observe(seconds)


def _below(path: str, family: str) -> bool:
    return path == family or path.startswith(family + "/")
