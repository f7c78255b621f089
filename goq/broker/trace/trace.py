"""A trace, put together from the lives of a message and of its copies."""

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


class Traced(NamedTuple):
    """One message of a trace. ``message`` is None, and so what it told, where it is not there.

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
    """A step of the message ``id``; ``to`` and ``origin`` are the ids of copies."""

    id: MessageId
    step: Step
    to: MessageId | None = None
    origin: MessageId | None = None
    producer: str | None = None


class Trace(NamedTuple):
    """All that is known of a message and of its copies, in the order of time."""

    message: Traced
    copies: Sequence[Traced]
    steps: Sequence[TracedStep]
    incomplete: Sequence[TraceGap]

    @property
    def attempts(self) -> int:
        """Deliveries, but for those that never left the node."""
        return sum(each.timeline.attempts for each in (self.message, *self.copies))

    @property
    def publish_to_ack_us(self) -> int | None:
        """How long it took from the first publish to the first ack, None where one is not known."""
        began_us = _first(self.steps, StepName.PUBLISHED)
        ended_us = _first(self.steps, StepName.ACKNOWLEDGED)
        return None if began_us is None or ended_us is None else ended_us - began_us


Links = dict[MessageId, dict[int, MessageId]]
"""The copies of each message, by the number of the step that says so."""


def linked(asked: MessageId, links: Links) -> set[MessageId]:
    """Return the message and all that it is a copy of, or that are copies of it."""
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


def in_order(chosen: Sequence[Traced], links: Links) -> list[Traced]:
    """Return messages with each behind what it is a copy of."""
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


def put_together(asked: Traced, messages: Sequence[Traced], links: Links, *, is_cut: bool) -> Trace:
    """Return the trace that messages make, each of which stands behind what it is a copy of.

    ``is_cut`` where there are more.
    """
    origins = _origins(links)
    told = [
        [
            _told(each, number, step, links, origins)
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
        list(merge(*told, key=lambda each: each.step.time_us)),
        list(incomplete),
    )


def _told(
    traced: Traced, number: int, step: Step, links: Links, origins: dict[MessageId, MessageId]
) -> TracedStep:
    to = links.get(traced.id, {}).get(number)
    if step.name is not StepName.PUBLISHED:
        return TracedStep(traced.id, step, to)
    origin = origins.get(traced.id) or _claimed_origin(traced)
    return TracedStep(traced.id, step, to, origin, None if origin else traced.producer)


def _first(steps: Sequence[TracedStep], name: StepName) -> int | None:
    return next((each.step.time_us for each in steps if each.step.name is name), None)


def _claimed_origin(traced: Traced) -> MessageId | None:
    """Return where a dead letter comes from by its headers; other messages may claim anything."""
    if traced.message is None or traced.is_redriven:
        return None
    life = read_dead_letter(traced.message.headers).life
    with suppress(InvalidInput):
        origin = MessageId.parse(life.id) if life is not None else None
        if origin is not None and origin.topic + DEAD_LETTERS_SUFFIX == traced.id.topic:
            return origin
    return None
