"""A trace: the histories of a message and of its copies, merged by time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from heapq import merge
from typing import NamedTuple

from goq.broker.outbox.dead_letter_headers import read_dead_letter
from goq.delivery.trace.steps import Step, StepName, TraceGap
from goq.delivery.trace.timeline import Timeline
from goq.errors import InvalidInput
from goq.model import DEAD_LETTERS_SUFFIX, Message, MessageId

_CUT = "there are more copies than a trace follows"


class MessageHistory(NamedTuple):
    """The history of one message of a trace. ``message`` is None if the message cannot be read.

    ``retained_until_us`` is the time before which retention by age does not delete it.
    """

    id: MessageId
    state: str
    message: Message | None
    published_us: int | None
    producer: str | None
    is_redriven: bool
    retained_until_us: int | None
    timeline: Timeline


class TracedStep(NamedTuple):
    """A step of the message ``id``. ``to`` and ``origin`` are the ids of copies."""

    id: MessageId
    step: Step
    to: MessageId | None = None
    origin: MessageId | None = None
    producer: str | None = None


class Trace(NamedTuple):
    """The known steps of a message and of its copies, in time order."""

    message: MessageHistory
    copies: Sequence[MessageHistory]
    steps: Sequence[TracedStep]
    incomplete: Sequence[TraceGap]

    @property
    def attempts(self) -> int:
        """The number of deliveries, without those that never left the node."""
        return sum(each.timeline.attempts for each in (self.message, *self.copies))

    @property
    def publish_to_ack_us(self) -> int | None:
        """The time from the first publish to the first ack, or None if either is unknown."""
        began_us = _first(self.steps, StepName.PUBLISHED)
        ended_us = _first(self.steps, StepName.ACKNOWLEDGED)
        return None if began_us is None or ended_us is None else ended_us - began_us


Links = dict[MessageId, dict[int, MessageId]]
"""The copies of each message, by the number of the step that made the copy."""


def linked_messages(asked: MessageId, links: Links) -> set[MessageId]:
    """Return the message, its origins and its copies, directly or indirectly."""
    near: dict[MessageId, set[MessageId]] = {}
    for origin, copies in links.items():
        for copy in copies.values():
            near.setdefault(origin, set()).add(copy)
            near.setdefault(copy, set()).add(origin)
    reached, waiting = {asked}, [asked]
    while waiting:
        for each in near.get(waiting.pop(), set()) - reached:
            reached.add(each)
            waiting.append(each)
    return reached


def order_by_origin(chosen: Sequence[MessageHistory], links: Links) -> list[MessageHistory]:
    """Return the messages, each after the message that it is a copy of."""
    origins = _origins(links)
    depths: dict[MessageId, int] = {}
    for each in chosen:
        depth, at = 0, each.id
        while at in origins and depth <= len(chosen):
            at, depth = origins[at], depth + 1
        depths[each.id] = depth
    return sorted(chosen, key=lambda each: (depths[each.id], each.id))


def _origins(links: Links) -> dict[MessageId, MessageId]:
    return {copy: origin for origin, copies in links.items() for copy in copies.values()}


def build_trace(
    asked: MessageHistory, messages: Sequence[MessageHistory], links: Links, *, is_cut: bool
) -> Trace:
    """Return the trace of these messages. Each message has to come after its origin.

    ``is_cut`` means that there are more copies than these.
    """
    origins = _origins(links)
    steps = [
        [
            _traced_step(each, number, step, links, origins)
            for number, step in enumerate(each.timeline.steps)
        ]
        for each in messages
    ]
    incomplete = dict.fromkeys(gap for each in messages for gap in each.timeline.incomplete)
    if is_cut:
        incomplete[TraceGap(None, None, _CUT)] = None
    return Trace(
        asked,
        [each for each in messages if each is not asked],
        list(merge(*steps, key=lambda each: each.step.time_us)),
        list(incomplete),
    )


def _traced_step(
    history: MessageHistory,
    number: int,
    step: Step,
    links: Links,
    origins: dict[MessageId, MessageId],
) -> TracedStep:
    to = links.get(history.id, {}).get(number)
    if step.name is not StepName.PUBLISHED:
        return TracedStep(history.id, step, to)
    origin = origins.get(history.id) or _claimed_origin(history)
    return TracedStep(history.id, step, to, origin, None if origin else history.producer)


def _first(steps: Sequence[TracedStep], name: StepName) -> int | None:
    return next((each.step.time_us for each in steps if each.step.name is name), None)


def _claimed_origin(history: MessageHistory) -> MessageId | None:
    """Return the origin of a dead letter by its headers. Headers of other messages do not count."""
    if history.message is None or history.is_redriven:
        return None
    claimed = read_dead_letter(history.message.headers).origin
    with suppress(InvalidInput):
        origin = MessageId.parse(claimed.id) if claimed is not None else None
        if origin is not None and origin.topic + DEAD_LETTERS_SUFFIX == history.id.topic:
            return origin
    return None
