"""Counts of HTTP requests by route and status, for GET /metrics. Written by the edge, read by the metrics route."""

from prometheus_client import CollectorRegistry, Counter, Histogram

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
)
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS"})
_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120, 600)


class Traffic:
    def __init__(self) -> None:
        #: Ours alone: the default registry is global to the process.
        self.registry = CollectorRegistry(auto_describe=True)
        self._requests = Counter(
            "neuron_http_requests", "HTTP requests answered", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "neuron_http_request_seconds",
            "Time from a request's headers to the end of its answer",
            ["route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )

    def count(self, method: str, path: str, status: int, seconds: float) -> None:
        """`status` 0: the client left before an answer began. Labels have few values, whatever clients send."""
        route = next((family for family in _FAMILIES if path == family or path.startswith(family + "/")), "other")
        self._requests.labels(method if method in _METHODS else "other", route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
