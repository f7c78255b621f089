"""Retry and dead-letter policy of a partition, from the settings of its topic and groups."""

from __future__ import annotations

from goq.broker.partition_context import PartitionContext, PartitionId
from goq.config.topic import Cleanup, TopicSettings
from goq.delivery.group.retry_policy import RetryPolicy
from goq.delivery.settlement import DeadLetterTarget, FailureContext
from goq.model import DEAD_LETTERS_SUFFIX


def retry_policy(settings: TopicSettings) -> RetryPolicy:
    """Return the retry policy after a failed attempt."""
    return RetryPolicy(
        settings.attempts_max,
        settings.backoff_initial_ms,
        settings.backoff_max_ms,
        settings.backoff_jitter,
        settings.dead_letters,
    )


def failure_context(
    identity: PartitionId, settings: TopicSettings, now_ms: int, context: PartitionContext
) -> FailureContext:
    """Return the context that decides about a failed attempt, by a group's settings.

    A dead letter keeps its partition number in the topic's own dead-letter topic. Another topic may
    have fewer partitions; the letters arrive in its first one. Messages of a dead-letter topic are
    retried without end and stay there.
    """
    policy = retry_policy(settings)
    if identity.topic.endswith(DEAD_LETTERS_SUFFIX):
        policy = policy._replace(attempts_max=None, dead_letters=False)
    chosen, new_id = settings.dead_letter_topic, context.new_id()
    target = (
        DeadLetterTarget(identity.topic + DEAD_LETTERS_SUFFIX, identity.number, new_id)
        if chosen is None or chosen == identity.topic
        else DeadLetterTarget(chosen, 0, new_id)
    )
    return FailureContext(now_ms, policy, target, context.random())


def dead_letter_settings(settings: TopicSettings) -> TopicSettings:
    """Return the settings of a dead-letter topic, from those of its source topic.

    It has the same durability, retention and lanes. It never dead-letters a message and keeps every
    message of a key.
    """
    return settings.changed(
        {
            "delivery.max_attempts": None,
            "delivery.dead_letters": False,
            "cleanup": Cleanup.DELETE,
            "dead_letters.topic": None,
            "sqs": None,
        }
    )
