"""How often something may be started again before it is given up."""

import time
from collections import deque
from collections.abc import Callable


class RestartBudget:
    """At most `count` restarts within any `window_s` seconds, by a monotonic clock."""

    def __init__(self, count: int, window_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if count < 0 or window_s <= 0:
            raise ValueError("a budget has a count of 0 or more and a window above 0")
        self.count = count
        self.window_s = window_s
        self._clock = clock
        self._spent: deque[float] = deque()

    def spend(self) -> bool:
        """Take one restart; False, and nothing taken, when none is left."""
        if self.left <= 0:
            return False
        self._spent.append(self._clock())
        return True

    @property
    def left(self) -> int:
        oldest = self._clock() - self.window_s
        while self._spent and self._spent[0] <= oldest:
            self._spent.popleft()
        return self.count - len(self._spent)

    @property
    def retry_after_s(self) -> float:
        """Seconds until a restart is allowed again; 0 when one is."""
        if self.left > 0:
            return 0.0
        if not self._spent:
            return self.window_s
        return max(0.0, self._spent[0] + self.window_s - self._clock())

    def reset(self) -> None:
        """Forget what was spent (an operator asked for the restart)."""
        self._spent.clear()
