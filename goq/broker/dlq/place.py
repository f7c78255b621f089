"""Where the dead letters of a topic are, by the name of the topic or of its dead-letter topic.

A topic with the setting ``dead_letters.topic`` shares its dead-letter topic with others. Only
letters that died in it are its own there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from goq.broker.topic.topic import Topic
from goq.model import DEAD_LETTERS_SUFFIX
from goq.storage.catalog.rows import TopicRow

_SETTING: Final = "dead_letters.topic"


class DeadLetterPlace(NamedTuple):
    """A dead-letter topic, and the topic that its letters died in.

    ``origin`` is None for all letters of a dead-letter topic that several topics may share.
    """

    origin: str | None
    dead: str

    @property
    def is_shared(self) -> bool:
        """Whether letters of other topics may be there too."""
        return self.origin is None or self.dead != self.origin + DEAD_LETTERS_SUFFIX


def dead_letter_place(
    name: str, topics: Mapping[str, Topic], queued: Mapping[str, TopicRow]
) -> DeadLetterPlace:
    """Return the place for the name of a topic or of a dead-letter topic; either may be missing.

    ``queued`` are the topics that a start has not opened yet.
    """

    def chosen_by(each: str) -> str | None:
        topic = topics.get(each)
        if topic is not None:
            return topic.settings.dead_letter_topic
        row = queued.get(each)
        return None if row is None else row.settings.get(_SETTING)

    if name.endswith(DEAD_LETTERS_SUFFIX):
        return DeadLetterPlace(name.removesuffix(DEAD_LETTERS_SUFFIX), name)
    chosen = chosen_by(name)
    if chosen is not None and chosen != name:
        return DeadLetterPlace(name, chosen)
    if any(chosen_by(each) == name for each in (*topics, *queued) if each != name):
        return DeadLetterPlace(None, name)
    return DeadLetterPlace(name, name + DEAD_LETTERS_SUFFIX)
