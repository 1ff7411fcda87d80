"""A token bucket: so many at once, so many a second for ever."""

_ROUNDING = 1e-6
"""What floating-point sums may lack of a whole token."""


class TokenBucket:
    """Holds up to `burst` tokens and gains `rate_per_s` of them a second. Times are seconds of one steady clock."""

    __slots__ = ("_burst", "_rate_per_s", "_seen_s", "_tokens")

    def __init__(self, rate_per_s: float, burst: int, now_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._tokens = float(burst)
        self._seen_s = now_s

    def take(self, now_s: float) -> bool:
        """Take a token; False if there is none."""
        self._fill(now_s)
        if self._tokens < 1 - _ROUNDING:
            return False
        self._tokens -= 1
        return True

    def wait_s(self, now_s: float) -> float:
        """How long until `take` would succeed; 0 if it would now."""
        self._fill(now_s)
        return max(0.0, (1 - self._tokens) / self._rate_per_s)

    def _fill(self, now_s: float) -> None:
        gained = max(0.0, now_s - self._seen_s) * self._rate_per_s
        self._tokens = min(float(self._burst), self._tokens + gained)
        self._seen_s = max(self._seen_s, now_s)
