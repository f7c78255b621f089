"""How often a message is tried, and where it goes when it is given up."""

from __future__ import annotations

from typing import Any

import pytest

from goq.broker.partition.failure_policy import (
    dead_letter_settings,
    failure_context,
    retry_policy,
)
from goq.broker.partition_context import PartitionId
from goq.config.topic import Cleanup, TopicSettings
from goq.delivery.group.retry_policy import RetryPolicy
from goq.delivery.settlement import DeadLetterTarget
from goq.model import DEAD_LETTERS_SUFFIX
from tests.support.broker.context import context_on
from tests.support.storage.disk import SimulatedDisk

SETTINGS = TopicSettings(attempts_max=5, backoff_initial_ms=10, backoff_max_ms=90)


@pytest.mark.parametrize(
    ("chosen", "target"),
    [
        (None, DeadLetterTarget("t" + DEAD_LETTERS_SUFFIX, 3, 42)),
        ("t", DeadLetterTarget("t" + DEAD_LETTERS_SUFFIX, 3, 42)),
        ("grave", DeadLetterTarget("grave", 0, 42)),
    ],
)
def test_a_dead_letter_keeps_its_partition_in_the_topics_own_dead_letters_and_in_no_other(
    chosen: str | None, target: DeadLetterTarget
) -> None:
    context: Any = context_on(SimulatedDisk(), new_id=lambda: 42, random=lambda: 0.25)
    settings = TopicSettings(dead_letter_topic=chosen)
    failing = failure_context(PartitionId("t", 3), settings, 1000, context)
    assert failing.dead_letters == target
    assert (failing.now_ms, failing.random) == (1000, 0.25)
    assert failing.policy == retry_policy(settings)


def test_messages_of_a_dead_letter_topic_are_tried_without_end_and_stay_there() -> None:
    identity = PartitionId("t" + DEAD_LETTERS_SUFFIX, 0)
    failing = failure_context(identity, SETTINGS, 0, context_on(SimulatedDisk()))
    own = retry_policy(SETTINGS)
    assert own == RetryPolicy(5, 10, 90, SETTINGS.backoff_jitter, True)
    assert failing.policy == own._replace(attempts_max=None, dead_letters=False)


def test_a_dead_letter_topic_keeps_all_of_its_messages() -> None:
    source = TopicSettings(cleanup=Cleanup.COMPACT, dead_letter_topic="grave", attempts_max=2)
    found = dead_letter_settings(source)
    assert (found.attempts_max, found.dead_letters) == (None, False)
    assert (found.cleanup, found.dead_letter_topic) == (Cleanup.DELETE, None)
    assert found.fsync == source.fsync
