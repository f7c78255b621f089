"""JSON bodies of groups: receive, settle, streams, progress and reset."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from goq.api.schemas.base import Input, Output
from goq.api.schemas.messages import MessageOut

"""Headers as an object, or as a list where names repeat or values are not text."""


class Receive(Input):
    """What a consumer asks for; durations as ``30s`` or in seconds.

    A receive returns at most ``max_messages``. With ``stream`` the answer does not end: at most
    ``max_in_flight`` messages are unsettled at a time, ``limit`` messages come in all, and ``wait``
    is ignored. Both maxima are 1 by default.
    """

    max_messages: int | UnsetType = UNSET
    max_in_flight: int | UnsetType = UNSET
    stream: bool = False
    limit: int | None = None
    wait: str | float = 0
    visibility: str | float | None = None
    consumer: str = ""


class StreamGrant(Input):
    """How many messages a stream may hand over beyond those in flight now."""

    more: int


class StreamOut(Output):
    """An open stream: ``in_flight`` of at most ``max_in_flight`` messages are unsettled."""

    stream: str
    max_in_flight: int
    in_flight: int


class Settle(Input):
    """Receipts to acknowledge."""

    receipts: list[str]


class Nack(Input):
    """Receipts to give back, to be tried again after ``delay``, or the group's backoff."""

    receipts: list[str]
    delay: str | float | None = None
    reason: str = ""


class Reject(Input):
    """Receipts whose messages are given up at once."""

    receipts: list[str]
    reason: str = ""


class GroupSettings(Input):
    """Settings of a group's own, over those of its topic under ``delivery``."""

    settings: dict[str, Any]


class Extend(Input):
    """Receipts whose messages stay invisible for ``visibility`` from now."""

    receipts: list[str]
    visibility: str | float | None = None


class GroupReset(Input):
    """Where a group goes on: ``earliest``, ``latest``, an offset or a time.

    And where it ends, in the same ways: it gets nothing from there on until it is reset again.
    """

    to: str | int
    end: str | int | None = None
    partition: int | None = None
    dry_run: bool = False


class ReceivedOut(msgspec.Struct):
    """Leased messages."""

    messages: list[MessageOut]


class ReadyOut(msgspec.Struct):
    """How often something became ready for a group on a node."""

    count: int


class FailedOut(msgspec.Struct):
    """A receipt that settled nothing, and why."""

    receipt: str
    code: str


class SettledOut(msgspec.Struct):
    """How many messages were settled, and which receipts were not."""

    settled: int
    failed: list[FailedOut]


class GroupPartitionOut(Output):
    """A group's progress in a partition; with an ``end`` it gets nothing from there on."""

    partition: int
    cursor: int
    lag: int
    ready: int
    leased: int
    retry: int
    blocked: int | None
    scheduled: int
    dead: int
    end: int | UnsetType = UNSET


class LeaseHolderOut(Output):
    """A consumer that holds leases."""

    consumer: str
    leased: int


class GroupGapOut(Output):
    """Why what is told of a partition's past may lack something, and between which times."""

    partition: int
    reason: str
    from_time: str | None = msgspec.field(default=None, name="from")
    to_time: str | None = msgspec.field(default=None, name="to")


class GroupOut(Output):
    """A group: ``lag`` is what it has not done, of which so much is ready, leased, in retry.

    ``blocked`` is what of the ready is known to be held back behind its key, ``scheduled`` what
    is not due yet and not counted in the lag, ``dead`` how many left it as dead letters so far.

    Of the past (``as_of``) it is not known what was blocked, nor what the settings were;
    ``incomplete`` is empty where all the rest is.
    """

    group: str
    lag: int
    ready: int
    leased: int
    retry: int
    blocked: int | None
    scheduled: int
    dead: int
    oldest_ready_age_ms: int | None
    members: list[LeaseHolderOut]
    partitions: list[GroupPartitionOut]
    settings: dict[str, str] | UnsetType = UNSET
    as_of: str | UnsetType = UNSET
    incomplete: list[GroupGapOut] | UnsetType = UNSET
    known: bool | UnsetType = UNSET
    """Of a part, for another node: whether the group was there by then."""


class GroupsOut(msgspec.Struct):
    """The groups of a topic."""

    groups: list[GroupOut]


class ResetPartitionOut(Output):
    """What a reset does, or would do, in a partition.

    ``withholds`` is how many messages there are from the ``end`` on.
    """

    partition: int
    cursor: int
    to: int
    redelivers: int
    skips: int
    voids: int
    end: int | UnsetType = UNSET
    withholds: int | UnsetType = UNSET


class ResetOut(Output):
    """What a reset did, or would do."""

    group: str
    dry_run: bool
    partitions: list[ResetPartitionOut]
