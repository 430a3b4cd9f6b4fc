"""Histogram: counts of observations by upper bound, kept where the observations are made and read at a scrape."""

from bisect import bisect_left

#: Upper bounds in seconds. From a token of a small model to the longest wait that a queue allows.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)


class Histogram:
    """Belongs to the event loop."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it) in Prometheus' form, ending with "+Inf".

        >>> seen = Histogram((0.1, 1.0))
        >>> seen.observe(0.1)
        >>> seen.observe(5.0)
        >>> seen.cumulative()
        [('0.1', 1), ('1.0', 1), ('+Inf', 2)]
        """
        rows: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows
