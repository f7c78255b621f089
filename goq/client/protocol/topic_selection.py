"""The topics that a loop reads: by name, and by pattern.

A pattern has ``*``, ``?`` or ``[…]`` as in a shell, none of which a name may have. It leaves out
dead-letter topics, unless it ends as their names do: else a loop over all orders would consume
those that have failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from goq import limits
from goq.client.arguments import as_texts
from goq.errors import InvalidInput, TopicNotFound
from goq.model import DEAD_LETTERS_SUFFIX, check_name

_WILD: Final = frozenset("*?[")


class TopicSelection:
    """Names and patterns of topics; raises ``InvalidInput`` if there is none."""

    def __init__(self, topics: str | Sequence[str]) -> None:
        written = list(dict.fromkeys(as_texts(topics, "topics")))
        if not written:
            raise InvalidInput("at least one topic is needed", field="topics")
        self.names = tuple(
            check_name(name, "topic", field="topics") for name in written if not _WILD & set(name)
        )
        self.patterns = tuple(name for name in written if _WILD & set(name))

    @property
    def is_one_name(self) -> bool:
        """Whether it is one topic, whatever topics there are."""
        return len(self.names) == 1 and not self.patterns

    def matches(self, name: str) -> bool:
        """Return whether a pattern chooses a topic."""
        is_dead = name.endswith(DEAD_LETTERS_SUFFIX)
        return any(
            fnmatchcase(name, pattern)
            for pattern in self.patterns
            if not is_dead or pattern.endswith(DEAD_LETTERS_SUFFIX)
        )

    def chosen(self, existing: Iterable[str]) -> list[str]:
        """Return the topics among ``existing``; raise ``InvalidInput`` if they are too many."""
        found = [name for name in existing if name in self.names or self.matches(name)]
        if len(found) > limits.PATTERN_TOPICS_MAX and self.patterns:
            raise InvalidInput(
                f"{' '.join(self.patterns)} matches {len(found)} topics; one loop reads at most"
                f" {limits.PATTERN_TOPICS_MAX}: use narrower patterns",
                field="topics",
            )
        return found

    def missing(self, found: Collection[str]) -> TopicNotFound | None:
        """Return an error for names that are not there, or if no topic is; else None."""
        if names := [name for name in self.names if name not in found]:
            return TopicNotFound(f"there is no topic {' '.join(names)}", field="topics")
        if found:
            return None
        return TopicNotFound(f"no topic matches {' '.join(self.patterns)}", field="topics")
