"""GET /metrics: Prometheus text, from the edge's counters and the daemon's cached figures."""

from collections.abc import Iterable

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from quart import Quart, Response

from neuron.actors.daemon import Daemon, ModelState
from neuron.api.traffic import Traffic
from neuron.runtime.logs import dropped_lines

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MODEL_GAUGES = ("in_flight", "queue_depth", "max_in_flight", "max_queue_depth", "tok_s_prefill", "tok_s_decode")
_DEVICE_GAUGES = ("vram_used_mb", "vram_free_mb", "vram_total_mb", "utilization_pct", "temp_c")


def register(app: Quart, daemon: Daemon, traffic: Traffic) -> None:
    traffic.registry.register(_DaemonCollector(daemon))

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(traffic.registry), content_type=_CONTENT_TYPE)


class _DaemonCollector(Collector):
    """Reads the daemon at each scrape; keeps nothing."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        yield from self._models()
        yield from self._devices()
        yield GaugeMetricFamily("neuron_draining", "1 while the daemon shuts down", float(self._daemon.draining()))
        yield CounterMetricFamily("neuron_log_lines_dropped", "Log lines lost", float(dropped_lines()))

    def _models(self) -> Iterable[Metric]:
        figures = self._daemon.load_figures()
        for name in _MODEL_GAUGES:
            family = GaugeMetricFamily(f"neuron_model_{name}", name.replace("_", " "), labels=["model"])
            for entry in figures:
                family.add_metric([entry.id], float(getattr(entry, name)))
            yield family
        rejections = CounterMetricFamily("neuron_model_rejections", "Requests refused", labels=["model", "reason"])
        states = GaugeMetricFamily("neuron_model_state", "1 for the state a model is in", labels=["model", "state"])
        for entry in figures:
            rejections.add_metric([entry.id, "queue_full"], entry.rejected_queue_full)
            rejections.add_metric([entry.id, "wait_timeout"], entry.rejected_timeout)
            rejections.add_metric([entry.id, "per_principal"], entry.rejected_per_principal)
            for state in ModelState:
                states.add_metric([entry.id, state.value], float(entry.state is state))
        yield rejections
        yield states

    def _devices(self) -> Iterable[Metric]:
        devices = self._daemon.devices()
        for name in _DEVICE_GAUGES:
            family = GaugeMetricFamily(f"neuron_device_{name}", name.replace("_", " "), labels=["device"])
            for info in devices:
                family.add_metric([info.id], float(getattr(info, name)))
            yield family
        up = GaugeMetricFamily("neuron_device_up", "1 while the device process runs", labels=["device"])
        for info in devices:
            up.add_metric([info.id], float(info.pid is not None))
        yield up
