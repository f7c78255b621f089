"""A trace: the histories of a message and of its copies, as one list of steps.

Steps of one message stay in the order of its log, and those of a copy come after the step that made
the copy. Times decide only between steps of different messages: a clock may have been set back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from goq.broker.outbox.dead_letter_headers import copy_origin
from goq.broker.partition_context import PartitionId
from goq.broker.runtime.disposal import Container
from goq.delivery.trace.steps import Step, StepName, TraceGap
from goq.delivery.trace.timeline import Timeline
from goq.errors import InvalidInput
from goq.model import Message, MessageId

_ELSEWHERE = "another node leads partition {1} of {0}: a trace of the message there tells the rest"
_CUT = "there are more copies than a trace follows"


class MessageHistory(NamedTuple):
    """The history of one message of a trace. ``message`` is None if the message cannot be read.

    ``is_copy`` means that an outbox published it, so that its headers tell where it comes from.
    ``retained_until_us`` is the time before which retention by age does not delete it.
    """

    id: MessageId
    state: str
    message: Message | None
    published_us: int | None
    producer: str | None
    is_copy: bool
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
    """The known steps of a message and of its copies, in order."""

    message: MessageHistory
    copies: Sequence[MessageHistory]
    steps: list[TracedStep]
    incomplete: Sequence[TraceGap]

    def containers(self) -> list[Container]:
        """Return what holds the steps, to be emptied once the trace has been told."""
        histories = (self.message, *self.copies)
        return [self.steps, *(part for each in histories for part in each.timeline.containers())]

    @property
    def attempts(self) -> int:
        """The number of deliveries, without those that never left the node."""
        return sum(each.timeline.attempts for each in (self.message, *self.copies))

    @property
    def publish_to_ack_us(self) -> int | None:
        """The time from the first publish to the first ack, or None if it is unknown.

        It is also unknown if a clock was set back in between.
        """
        names = [each.step.name for each in self.steps]
        if StepName.ACKNOWLEDGED not in names or names[0] is not StepName.PUBLISHED:
            return None
        end = names.index(StepName.ACKNOWLEDGED) + 1
        times_us = [each.step.time_us for each in self.steps[:end]]
        if any(before_us > after_us for before_us, after_us in pairwise(times_us)):
            return None
        return times_us[-1] - times_us[0]


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
    asked: MessageHistory,
    messages: Sequence[MessageHistory],
    links: Links,
    may_name: Callable[[str], bool] = lambda _topic: True,
    *,
    is_cut: bool,
    elsewhere: Sequence[PartitionId] = (),
) -> Trace:
    """Return the trace of these messages. Each message has to come after its origin.

    An origin that only the headers of a message tell of is named if ``may_name`` its topic.
    ``is_cut`` means that there are more copies than these. Other nodes lead the partitions
    ``elsewhere``, which have more of it.
    """
    origins = _origins(links)
    steps = [
        [
            _traced_step(each, number, step, links, origins, may_name)
            for number, step in enumerate(each.timeline.steps)
        ]
        for each in messages
    ]
    incomplete = dict.fromkeys(gap for each in messages for gap in each.timeline.incomplete)
    for place in elsewhere:
        incomplete[TraceGap(None, None, _ELSEWHERE.format(*place))] = None
    if is_cut:
        incomplete[TraceGap(None, None, _CUT)] = None
    return Trace(
        asked,
        [each for each in messages if each is not asked],
        _merge(steps),
        list(incomplete),
    )


def _merge(histories: Sequence[Sequence[TracedStep]]) -> list[TracedStep]:
    """Return the steps of all histories, each of which is in order. See the module."""
    numbers = {steps[0].id: number for number, steps in enumerate(histories) if steps}
    waiting = {
        numbers[each.to] for steps in histories for each in steps if each.to in numbers
    }  # for the step that made them
    merged: list[TracedStep] = []
    heads: list[tuple[int, int, int]] = []  # time, history, step

    def push(number: int, at: int) -> None:
        if at < len(histories[number]):
            heappush(heads, (histories[number][at].step.time_us, number, at))

    for number in set(numbers.values()) - waiting:
        push(number, 0)
    while heads or waiting:
        if not heads:  # copies of each other: an offset was used twice
            waiting.remove(first := min(waiting))
            push(first, 0)
        _, number, at = heappop(heads)
        step = histories[number][at]
        merged.append(step)
        push(number, at + 1)
        copy = None if step.to is None else numbers.get(step.to)
        if copy in waiting:
            waiting.remove(copy)
            push(copy, 0)
    return merged


def _traced_step(
    history: MessageHistory,
    number: int,
    step: Step,
    links: Links,
    origins: dict[MessageId, MessageId],
    may_name: Callable[[str], bool],
) -> TracedStep:
    to = links.get(history.id, {}).get(number)
    if step.name is not StepName.PUBLISHED:
        return TracedStep(history.id, step, to)
    origin = origins.get(history.id) or _claimed_origin(history)
    named = origin if origin is not None and may_name(origin.topic) else None
    return TracedStep(history.id, step, to, named, None if origin else history.producer)


def _claimed_origin(history: MessageHistory) -> MessageId | None:
    """Return the origin of a copy by its headers. Headers of other messages do not count."""
    if history.message is None or not history.is_copy:
        return None
    died_as, redriven_from = copy_origin(history.message.headers)
    with suppress(InvalidInput):
        return MessageId.parse(redriven_from or died_as or "")
    return None
