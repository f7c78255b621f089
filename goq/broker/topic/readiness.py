"""How often something became ready in a topic: what tells a consumer whether to look again."""

from __future__ import annotations


class Readiness:
    """Counts, for a group or for all of them.

    Who looks in vain remembers the count from before, and waits for it to change.
    """

    def __init__(self) -> None:
        self._of_all = 0
        self._of_group: dict[str, int] = {}

    def note(self, group: str | None) -> None:
        """Count that something became ready for a group, None for all."""
        if group is None:
            self._of_all += 1
        else:
            self._of_group[group] = self._of_group.get(group, 0) + 1

    def count(self, group: str) -> int:
        """Return the count of a group, which never falls while the topic is open."""
        return self._of_all + self._of_group.get(group, 0)
