"""What a topic's settings mean to the delivery of its messages."""

from __future__ import annotations

from goq.broker.partition_context import PartitionContext, PartitionId
from goq.config.topic import Cleanup, TopicSettings
from goq.delivery.group.retry_policy import RetryPolicy
from goq.delivery.settlement import DeadLetterTarget, FailureContext
from goq.model import DEAD_LETTERS_SUFFIX


def retry_policy(settings: TopicSettings) -> RetryPolicy:
    """Return what is done with messages whose attempt failed."""
    return RetryPolicy(
        settings.attempts_max,
        settings.backoff_initial_ms,
        settings.backoff_max_ms,
        settings.backoff_jitter,
        settings.dead_letters,
    )


def failure_context(
    identity: PartitionId, policy: RetryPolicy, now_ms: int, context: PartitionContext
) -> FailureContext:
    """Return what is to be known when an attempt fails in a partition.

    Dead letters keep the number of their partition. Those of a topic of dead letters stay there:
    they are tried for ever.
    """
    if identity.topic.endswith(DEAD_LETTERS_SUFFIX):
        policy = policy._replace(attempts_max=None, dead_letters=False)
    grave = DeadLetterTarget(
        identity.topic + DEAD_LETTERS_SUFFIX, identity.number, context.new_id()
    )
    return FailureContext(now_ms, policy, grave, context.random())


def dead_letter_settings(settings: TopicSettings) -> TopicSettings:
    """Return the settings of a topic of dead letters, from those of the topic that they are of.

    It is as durable, is kept as long and queues by the same lanes, but gives nothing up, and keeps
    every message of a key.
    """
    return settings.changed(
        {"delivery.max_attempts": None, "delivery.dead_letters": False, "cleanup": Cleanup.DELETE}
    )
