"""Reads the daemon's cached figures at each scrape of GET /metrics; keeps nothing and waits for nothing."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import neuron
from neuron.actors.daemon import Daemon, DeviceInfo, ModelLoadFigures, ModelState, PrefixCacheFigures
from neuron.actors.figures import Figures
from neuron.actors.histogram import Histogram
from neuron.api import metric_table as table
from neuron.api.metric_table import Family, Kind
from neuron.runtime.logs import dropped_lines

_MIB = 1 << 20
Rows = Iterable[tuple[tuple[str, ...], float]]

_COUNTERS: tuple[tuple[Family, Callable[[Figures], float]], ...] = (
    (table.PROMPT_TOKENS, lambda figures: figures.prompt_tokens),
    (table.CACHED_TOKENS, lambda figures: figures.cached_tokens),
    (table.COMPLETION_TOKENS, lambda figures: figures.completion_tokens),
    (table.REASONING_TOKENS, lambda figures: figures.reasoning_tokens),
    (table.UNHEALTHY, lambda figures: figures.unhealthy_logits),
    (table.POISONINGS, lambda figures: figures.poisonings),
)
_HISTOGRAMS: tuple[tuple[Family, Callable[[Figures], Histogram]], ...] = (
    (table.QUEUE_SECONDS, lambda figures: figures.queue_wait),
    (table.FIRST_TOKEN, lambda figures: figures.first_token),
    (table.INTER_TOKEN, lambda figures: figures.inter_token),
    (table.DURATION, lambda figures: figures.duration),
)
_LOADS: tuple[tuple[Family, Callable[[ModelLoadFigures], float]], ...] = (
    (table.IN_FLIGHT, lambda load: load.in_flight),
    (table.QUEUE_DEPTH, lambda load: load.queue_depth),
    (table.QUEUE_LIMIT, lambda load: load.max_queue_depth),
    (table.PREFILL_RATE, lambda load: load.tok_s_prefill),
    (table.DECODE_RATE, lambda load: load.tok_s_decode),
)
_PREFIXES: tuple[tuple[Family, Callable[[PrefixCacheFigures], float]], ...] = (
    (table.PREFIX_TOKENS, lambda prefix: prefix.reused_tokens),
    (table.PREFIX_ENTRIES, lambda prefix: prefix.entries),
    (table.PREFIX_EVICTIONS, lambda prefix: prefix.evictions),
    (table.PREFIX_REFUSED, lambda prefix: prefix.refused),
    (table.PREFIX_FAILED, lambda prefix: prefix.failed_restores),
    (table.PREFIX_SECONDS, lambda prefix: prefix.restore_ms / 1e3),
)
_DEVICES: tuple[tuple[Family, Callable[[DeviceInfo], float]], ...] = (
    (table.DEVICE_UP, lambda device: float(device.state in ("starting", "ready"))),
    (table.DEVICE_BUSY, lambda device: device.utilization_pct / 100),
    (table.DEVICE_HEAT, lambda device: device.temp_c),
    (table.DEVICE_STARTS, lambda device: device.starts),
    (table.DEVICE_DEATHS, lambda device: device.deaths),
)


class DaemonCollector(Collector):
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        yield from self._figures()
        yield from self._models()
        yield from self._prefixes()
        yield from self._devices()
        yield _metric(table.DRAINING, [((), float(self._daemon.draining()))])
        yield _metric(table.DROPPED_LINES, [((), float(dropped_lines()))])
        yield _metric(table.INFO, [((neuron.__version__,), 1.0)])

    def _figures(self) -> Iterable[Metric]:
        figures = self._daemon.figures()
        outcomes = [((model, code), n) for model, own in figures.items() for code, n in own.outcomes.items()]
        yield _metric(table.REQUESTS, outcomes)
        for family, read in _COUNTERS:
            yield _metric(family, [((model,), read(own)) for model, own in figures.items()])
        for family, pick in _HISTOGRAMS:
            metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
            for model, own in figures.items():
                histogram = pick(own)
                metric.add_metric([model], histogram.cumulative(), histogram.sum)
            yield metric

    def _models(self) -> Iterable[Metric]:
        loads = self._daemon.load_figures()
        for family, read in _LOADS:
            yield _metric(family, [((load.id,), read(load)) for load in loads])
        states = [((load.id, state.value), float(load.state is state)) for load in loads for state in ModelState]
        yield _metric(table.STATE, states)
        rejected: list[tuple[tuple[str, ...], float]] = []
        for load in loads:
            rejected.append(((load.id, "queue_full"), load.rejected_queue_full))
            rejected.append(((load.id, "wait_timeout"), load.rejected_timeout))
            rejected.append(((load.id, "per_principal"), load.rejected_per_principal))
        yield _metric(table.REJECTIONS, rejected)
        infos = self._daemon.models()
        held = [((info.id,), float(info.vram_used_mb * _MIB)) for info in infos if info.vram_used_mb is not None]
        yield _metric(table.MODEL_MEMORY, held)

    def _prefixes(self) -> Iterable[Metric]:
        kept = [(load.id, load.prefix_cache) for load in self._daemon.load_figures() if load.prefix_cache is not None]
        for family, read in _PREFIXES:
            yield _metric(family, [((model,), read(prefix)) for model, prefix in kept])
        results: list[tuple[tuple[str, ...], float]] = []
        sizes: list[tuple[tuple[str, ...], float]] = []
        for model, prefix in kept:
            results += [((model, "hit"), prefix.hits), ((model, "miss"), prefix.misses)]
            sizes += [((model, "used"), prefix.bytes_used), ((model, "budget"), prefix.bytes_budget)]
        yield _metric(table.PREFIX_REQUESTS, results)
        yield _metric(table.PREFIX_BYTES, sizes)

    def _devices(self) -> Iterable[Metric]:
        devices = self._daemon.devices()
        for family, read in _DEVICES:
            yield _metric(family, [((device.id,), read(device)) for device in devices])
        memory: list[tuple[tuple[str, ...], float]] = []
        for device in devices:
            memory.append(((device.id, "used"), float(device.vram_used_mb * _MIB)))
            memory.append(((device.id, "free"), float(device.vram_free_mb * _MIB)))
            memory.append(((device.id, "total"), float(device.vram_total_mb * _MIB)))
        yield _metric(table.DEVICE_MEMORY, memory)


def _metric(family: Family, rows: Rows) -> Metric:
    """A counter or gauge with its samples."""
    metric = (
        CounterMetricFamily(family.name, family.help, labels=family.labels)
        if family.kind is Kind.COUNTER
        else GaugeMetricFamily(family.name, family.help, labels=family.labels)
    )
    for labels, value in rows:
        metric.add_metric(labels, value)
    return metric
