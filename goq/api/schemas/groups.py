"""JSON bodies of groups: receive, settle, streams, progress and reset."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from goq.api.schemas.base import Input, Output
from goq.api.schemas.messages import MessageOut
from goq.api.values import Consumer, DateTime, Duration, Index, Taken

"""Headers as an object, or as a list where names repeat or values are not text."""


class Receive(Input):
    """A receive, or with ``stream`` a stream; durations as ``30s`` or in seconds.

    A receive returns at most ``max_messages``. A stream does not end: at most ``max_in_flight``
    messages are unsettled at a time, ``limit`` messages come in all, and ``wait`` is ignored. Both
    maxima are 1 by default.
    """

    max_messages: Taken | UnsetType = UNSET
    max_in_flight: Taken | UnsetType = UNSET
    stream: bool = False
    limit: Index | None = None
    wait: Duration = 0
    visibility: Duration | None = None
    consumer: Consumer = ""


class StreamGrant(Input):
    """One of both: the messages beyond those in flight now, or the maximum in flight.

    With ``max_in_flight`` of 0 a stream delivers nothing until the next grant.
    """

    more: Taken | UnsetType = UNSET
    max_in_flight: Index | UnsetType = UNSET


class StreamOut(Output):
    """An open stream: ``in_flight`` of at most ``max_in_flight`` messages are unsettled."""

    stream: str
    max_in_flight: int
    in_flight: int


class Settle(Input):
    """Receipts to acknowledge, or to release."""

    receipts: list[str]


class Nack(Input):
    """Receipts to return for a retry after ``delay``, or after the group's backoff."""

    receipts: list[str]
    delay: Duration | None = None
    reason: str = ""


class Reject(Input):
    """Receipts whose messages become dead letters at once."""

    receipts: list[str]
    reason: str = ""


class GroupSettings(Input):
    """Settings of a group; they override those of its topic under ``delivery``."""

    settings: dict[str, Any]


class Extend(Input):
    """Receipts whose leases end ``visibility`` from now."""

    receipts: list[str]
    visibility: Duration | None = None


class GroupReset(Input):
    """The position where a group continues: ``earliest``, ``latest``, an offset or a time.

    ``end`` is a position of the same kind: messages from there on are withheld until another reset.
    """

    to: str | int
    end: str | int | None = None
    partition: Index | None = None
    dry_run: bool = False


class ReceivedOut(msgspec.Struct):
    """Leased messages."""

    messages: list[MessageOut]


class ReadyOut(msgspec.Struct):
    """The number of times that a group became ready on a node."""

    count: Index


class FailedOut(msgspec.Struct):
    """A receipt that was not settled, and the error code."""

    receipt: str
    code: str


class SettledOut(msgspec.Struct):
    """The number of settled messages, and the receipts that were not settled."""

    settled: Index
    failed: list[FailedOut]


class GroupPartitionOut(Output):
    """A group's progress in a partition; messages from ``end`` on are withheld."""

    partition: Index
    cursor: Index
    lag: Index
    ready: Index
    leased: Index
    retry: Index
    blocked: int | None
    scheduled: Index
    dead: Index
    end: int | UnsetType = UNSET


class LeaseHolderOut(Output):
    """A consumer that holds leases."""

    consumer: str
    leased: Index


class GroupGapOut(Output):
    """Why a partition's history may be incomplete, and between which times."""

    partition: Index
    reason: str
    from_time: DateTime | None = msgspec.field(default=None, name="from")
    to_time: DateTime | None = msgspec.field(default=None, name="to")


class GroupOut(Output):
    """A group: ``lag`` counts unfinished messages; ``ready``, ``leased`` and ``retry`` are part of
    it.

    ``blocked`` counts ready messages that are known to wait for their key. ``scheduled`` messages
    are not due yet and not part of the lag. ``dead`` counts the dead letters so far.

    At an earlier time (``as_of``) the blocked messages and the settings are not known;
    ``incomplete`` is empty if everything else is.
    """

    group: str
    lag: Index
    ready: Index
    leased: Index
    retry: Index
    blocked: int | None
    scheduled: Index
    dead: Index
    oldest_ready_age_ms: int | None
    members: list[LeaseHolderOut]
    partitions: list[GroupPartitionOut]
    settings: dict[str, str] | UnsetType = UNSET
    as_of: DateTime | UnsetType = UNSET
    incomplete: list[GroupGapOut] | UnsetType = UNSET
    known: bool | UnsetType = UNSET
    """For another node: whether the group existed in this part at that time."""


class GroupsOut(msgspec.Struct):
    """The groups of a topic."""

    groups: list[GroupOut]


class ResetPartitionOut(Output):
    """The effect of a reset in a partition; ``withholds`` counts messages from ``end`` on."""

    partition: Index
    cursor: Index
    to: int
    redelivers: int
    skips: int
    voids: int
    end: int | UnsetType = UNSET
    withholds: int | UnsetType = UNSET


class ResetOut(Output):
    """The effect of a reset, or of a dry run."""

    group: str
    dry_run: bool
    partitions: list[ResetPartitionOut]
