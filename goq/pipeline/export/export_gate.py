"""When a following export writes files: enough rows for a file of a useful size, or long enough."""

from __future__ import annotations


class ExportGate:
    """Decides by topic. All times are seconds of a monotonic clock.

    A topic is due with ``rows_min`` new rows, or ``wait_s_max`` after its first new row was seen.
    Without a minimum every topic is always due, also without rows.
    """

    def __init__(self, rows_min: int = 0, wait_s_max: float = 0.0) -> None:
        self._rows_min = rows_min
        self._wait_s_max = wait_s_max
        self._seen_s: dict[str, float] = {}

    def is_due(self, topic: str, rows: int, now_s: float) -> bool:
        """Whether to export a topic that has so many new rows now; if so, its wait begins anew."""
        if not self._rows_min:
            return True
        if not rows:
            return False
        seen_s = self._seen_s.setdefault(topic, now_s)
        if rows < self._rows_min and now_s - seen_s < self._wait_s_max:
            return False
        del self._seen_s[topic]
        return True
