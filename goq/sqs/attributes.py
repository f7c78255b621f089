"""Attributes of queues: checked, as settings of a topic, and back.

What goq has a setting for is that setting, so a change by ``goq topic alter`` shows as an
attribute. The rest, and the tags, are one JSON text in the topic's setting ``sqs``: durable with
the topic. A topic without that setting is a queue with the default attributes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from goq import limits
from goq.config.topic import TopicSettings
from goq.sqs.protocol.bounds import (
    DELAY_S_MAX,
    RECEIVE_COUNT_MAX,
    RETENTION_S_MAX,
    RETENTION_S_MIN,
    SIZE_BYTES_MIN,
    VISIBILITY_S_MAX,
    Bounds,
)
from goq.sqs.protocol.errors import SqsError

FIFO_SUFFIX: Final = ".fifo"
VISIBILITY: Final = "VisibilityTimeout"
RETENTION: Final = "MessageRetentionPeriod"
DELAY: Final = "DelaySeconds"
WAIT: Final = "ReceiveMessageWaitTimeSeconds"
SIZE: Final = "MaximumMessageSize"
FIFO: Final = "FifoQueue"
CONTENT_DEDUP: Final = "ContentBasedDeduplication"
SCOPE: Final = "DeduplicationScope"
THROUGHPUT: Final = "FifoThroughputLimit"
REDRIVE: Final = "RedrivePolicy"
POLICY: Final = "Policy"
RECORD: Final = "sqs"  # the topic setting that a queue's record is
_DEDUP_WINDOW: Final = "5m"
POLICY_CHARS_MAX: Final = 16 * limits.KIB
_DEFAULT_VISIBILITY_S: Final = 30
_DEFAULT_RETENTION_S: Final = 345_600
_SEGMENT_AGE_S_MAX: Final = 86_400
_DIGITS_MAX: Final = 12
_READ_ONLY: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
)
COUNTS: Final = frozenset(_READ_ONLY[:3])


class MoveRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message move task of a dead-letter queue; ``told_ms`` is when its node last wrote this.

    Without ``target`` messages go back to the queues that they come from.
    """

    id: str
    node: str
    status: str = "RUNNING"
    target: str = ""
    rate: int | None = None
    moved: int = 0
    to_move: int = 0
    reason: str = ""
    started_ms: int = 0
    told_ms: int = 0


class QueueRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A queue as the setting ``sqs`` has it; times since 1970.

    ``delayed_until_ms`` is when the messages are due that a FIFO queue got with another delay.
    """

    created_s: int = 0
    modified_s: int = 0
    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}
    moves: list[MoveRecord] = []
    delayed_until_ms: int = 0

    def number(self, name: str, default: int) -> int:
        """Return an attribute that is a number."""
        text = self.attributes.get(name, "")
        return int(text) if _is_digits(text) else default

    def written(self) -> str:
        """Return the text of the setting."""
        return msgspec.json.encode(self).decode()


@lru_cache(maxsize=1024)
def read_record(text: str | None) -> QueueRecord:
    """Return the record of a setting; that of a plain topic for a text that is none."""
    try:
        return msgspec.json.decode(text or "{}", type=QueueRecord)
    except (msgspec.DecodeError, RecursionError):
        return QueueRecord()


Check = Callable[[str], bool]


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def _is_number(low: int, high: int) -> Check:
    return lambda text: _is_digits(text) and low <= int(text) <= high


def _is_one_of(*allowed: str) -> Check:
    return lambda text: text in allowed


def _is_object(text: str) -> bool:
    try:
        return len(text) <= POLICY_CHARS_MAX and (not text or isinstance(json.loads(text), dict))
    except (ValueError, RecursionError):
        return False


_is_truth: Final = _is_one_of("true", "false")
_CHECKS: Final[dict[str, Check]] = {
    DELAY: _is_number(0, DELAY_S_MAX),
    RETENTION: _is_number(RETENTION_S_MIN, RETENTION_S_MAX),
    VISIBILITY: _is_number(0, VISIBILITY_S_MAX),
    FIFO: _is_truth,
    CONTENT_DEDUP: _is_truth,
    SCOPE: _is_one_of("queue", "messageGroup"),
    THROUGHPUT: _is_one_of("perQueue", "perMessageGroupId"),
    POLICY: _is_object,
    REDRIVE: _is_object,
    "RedriveAllowPolicy": _is_object,
    "KmsMasterKeyId": lambda text: len(text) <= limits.KIB,
    "KmsDataKeyReusePeriodSeconds": _is_number(60, 86_400),
    "SqsManagedSseEnabled": _is_truth,
}
_OF_FIFO: Final = (CONTENT_DEDUP, SCOPE, THROUGHPUT)
_NAMES: Final = frozenset((*_CHECKS, SIZE, WAIT, *_READ_ONLY, "All"))


def check_names(names: list[str]) -> None:
    """Raise ``SqsError`` for a name that no attribute has."""
    for name in names:
        if name not in _NAMES:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")


def checked_attributes(
    given: Mapping[str, Any] | None, *, is_fifo: bool, bounds: Bounds
) -> dict[str, str]:
    """Return attributes to set, as text. Raises ``SqsError``."""
    checks = _CHECKS | {
        SIZE: _is_number(SIZE_BYTES_MIN, bounds.size_max),
        WAIT: _is_number(0, bounds.wait_s_max),
    }
    found: dict[str, str] = {}
    for name, value in (given or {}).items():
        check = checks.get(name)
        if check is None or (name in _OF_FIFO and not is_fifo):
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")
        text = _text(value)
        if text is None or not check(text):
            raise SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")
        found[name] = _redrive_policy(text).written() if name == REDRIVE and text else text
    return found


def check_scope(attributes: Mapping[str, str]) -> None:
    """Raise ``SqsError`` for attributes of a queue that would not find all duplicates."""
    is_split = attributes.get(THROUGHPUT) == "perMessageGroupId"
    if is_split and attributes.get(SCOPE) != "messageGroup":
        raise SqsError(
            "InvalidAttributeValue",
            f"{THROUGHPUT} of perMessageGroupId needs a {SCOPE} of messageGroup.",
        )


class RedrivePolicy(msgspec.Struct, frozen=True):
    """Where messages go that were received ``maxReceiveCount`` times without a delete."""

    deadLetterTargetArn: str
    maxReceiveCount: int

    @property
    def queue(self) -> str:
        """The name of the dead-letter queue."""
        return self.deadLetterTargetArn.rpartition(":")[2]

    def written(self) -> str:
        """Return the text of the attribute."""
        return msgspec.json.encode(self).decode()


def _redrive_policy(text: str) -> RedrivePolicy:
    """Return a checked policy. Raises ``SqsError``."""
    try:
        policy = msgspec.json.decode(text, type=RedrivePolicy, strict=False)
    except (msgspec.DecodeError, RecursionError):
        policy = RedrivePolicy("", 0)
    is_arn = policy.deadLetterTargetArn.count(":") == 5 and policy.queue
    if not is_arn or not 1 <= policy.maxReceiveCount <= RECEIVE_COUNT_MAX:
        raise SqsError(
            "InvalidParameterValue",
            f"Value {text[:300]} for parameter RedrivePolicy is invalid. Reason: it has a"
            f" deadLetterTargetArn, and a maxReceiveCount of 1 to {RECEIVE_COUNT_MAX}.",
        )
    return policy


def redrive_policy(attributes: Mapping[str, str]) -> RedrivePolicy | None:
    """Return the policy among checked attributes."""
    text = attributes.get(REDRIVE)
    return _redrive_policy(text) if text else None


def _text(value: Any) -> str | None:
    """Return a value as text: SDKs send text, people also numbers, truths and objects.

    None for what is nested too deep: reading JSON goes deeper than writing it.
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except RecursionError:
        return None


def settings_of(attributes: Mapping[str, str], record: QueueRecord) -> dict[str, str]:
    """Return the topic settings of attributes that are set, with the record of the queue."""
    settings = {RECORD: record.written()}
    if VISIBILITY in attributes:
        seconds = int(attributes[VISIBILITY])
        settings["delivery.visibility_timeout"] = f"{seconds}s" if seconds else "1ms"
    if RETENTION in attributes:
        seconds = int(attributes[RETENTION])
        settings["retention.age"] = f"{seconds}s"
        settings["segment.age"] = f"{min(seconds // 10, _SEGMENT_AGE_S_MAX)}s"
    policy = redrive_policy(attributes)
    if policy is not None:
        settings["delivery.max_attempts"] = str(policy.maxReceiveCount)
        settings["delivery.dead_letters"] = "true"
        settings["dead_letters.topic"] = policy.queue
    elif REDRIVE in attributes:
        settings["delivery.max_attempts"] = "none"
        settings["delivery.dead_letters"] = "false"
        settings["dead_letters.topic"] = "none"
    return settings


def new_queue_settings(attributes: Mapping[str, str], record: QueueRecord) -> dict[str, str]:
    """Return the topic settings of a new queue."""
    defaults = {VISIBILITY: str(_DEFAULT_VISIBILITY_S), RETENTION: str(_DEFAULT_RETENTION_S)}
    return {
        "retention.bytes": "none",
        "delivery.max_attempts": "none",
        "delivery.dead_letters": "false",
        "delivery.backoff.initial": "0s",
        "delivery.backoff.max": "0s",
        "delivery.ordering": "key" if FIFO in attributes else "none",
        "dedup.window": _DEDUP_WINDOW,
        **settings_of({**defaults, **attributes}, record),
    }


def shown_attributes(
    name: str, settings: TopicSettings, bounds: Bounds, arn: str
) -> dict[str, str]:
    """Return all attributes of a queue but its counts."""
    record = read_record(settings.sqs)
    shown = {
        VISIBILITY: str(round(settings.visibility_timeout_ms / 1000)),
        RETENTION: str((settings.retention_age_ms or RETENTION_S_MAX * 1000) // 1000),
        DELAY: "0",
        WAIT: "0",
        SIZE: str(bounds.size_max),
        "SqsManagedSseEnabled": "false",
        "CreatedTimestamp": str(record.created_s),
        "LastModifiedTimestamp": str(record.modified_s),
        "QueueArn": arn,
    }
    if name.endswith(FIFO_SUFFIX):
        shown |= {FIFO: "true", CONTENT_DEDUP: "false", SCOPE: "queue", THROUGHPUT: "perQueue"}
    target, count = settings.dead_letter_topic, settings.attempts_max
    if target is not None and count is not None:
        target_arn = f"{arn.rpartition(':')[0]}:{target}"
        shown[REDRIVE] = RedrivePolicy(target_arn, count).written()
    mapped = (VISIBILITY, RETENTION, REDRIVE)
    kept = {key: value for key, value in record.attributes.items() if key not in mapped}
    return {key: value for key, value in (shown | kept).items() if value}
