"""Delivery options of a message, and what they mean in a topic: lane, times, tenant, dedup id."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from goq import limits
from goq.client.arguments import Duration, Time, as_time
from goq.errors import InvalidInput
from goq.frame.hashes import dedup_hash
from goq.frame.header import Attribute
from goq.frame.view import DELIVERY_COLUMNS, FrameView
from goq.model import Message, check_dedup_text, check_message, delivery_ms
from goq.units import format_duration_ms, is_by_clock, parse_duration_ms, parse_time_us

if TYPE_CHECKING:
    from goq.config.topic import TopicSettings

DEFAULT_LANES: Final = "high,normal,low"


@lru_cache(maxsize=256)
def lanes_of(written: str) -> TopicSettings:
    """Return the settings of a topic that has lanes of these names; the rest are defaults."""
    from goq.config.topic import TopicSettings  # 4 ms, which plain messages need not cost

    return TopicSettings().changed({"priority.lanes": written})


def delivery_fields(
    frame: FrameView, start: int, end: int, lanes: str
) -> tuple[Iterable[str], Iterable[str | None], Iterable[int | None], Iterable[int | None]]:
    """Return priority, tenant, deliver_at and expires_at of messages ``start`` up to ``end``.

    Times are microseconds. Some of the four may never end.
    """
    named = lanes_of(lanes)
    default = repeat(named.lane_name(named.default_lane))
    if not frame.header.attributes & DELIVERY_COLUMNS:
        return default, repeat(None), repeat(None), repeat(None)
    numbers = frame.lanes(start, end)
    return (
        default if numbers is None else map(named.lane_name, numbers),
        frame.tenants_of(start, end) or repeat(None),
        _times_us(frame.times_ms(Attribute.DELIVER_AT, start, end)),
        _times_us(frame.times_ms(Attribute.EXPIRES_AT, start, end)),
    )


def _times_us(times_ms: list[int] | None) -> Iterable[int | None]:
    if times_ms is None:
        return repeat(None)
    return [time_ms * 1000 if time_ms else None for time_ms in times_ms]


_SAMPLE_US_MAX: Final = 250_000


class DeliveryOptions(NamedTuple):
    """The options as the caller gave them, see :meth:`~goq.client.Client.publish`."""

    priority: str | int | None = None
    delay: Duration | None = None
    deliver_at: Time | None = None
    ttl: Duration | None = None
    tenant: str | None = None
    dedup_id: str | None = None


PLAIN: Final = DeliveryOptions()


class MessageInNamedLane(Message, frozen=True):
    """A message whose lane was named: it has the number that the lane has when it is sent."""

    lane_name: str = ""


class NodeClock:
    """An estimate of the node's wall clock: delays do not depend on the clock of this machine.

    It is never behind the node's clock unless that is set, and ahead by at most the duration of a
    request.
    """

    def __init__(self) -> None:
        self._ahead_us: int | None = None

    @staticmethod
    def monotonic_us() -> int:
        """Return monotonic microseconds, for :meth:`note`."""
        return time.monotonic_ns() // 1000

    def note(self, node_us: int, asked_us: int) -> None:
        """Note the node's time in an answer to a request that was sent at ``asked_us``."""
        if self._ahead_us is None or self.monotonic_us() - asked_us <= _SAMPLE_US_MAX:
            self._ahead_us = node_us - asked_us

    def now_us(self) -> int:
        """Return the node's time in microseconds; this machine's if no answer had one."""
        if self._ahead_us is None:
            return time.time_ns() // 1000
        return self._ahead_us + self.monotonic_us()


class TopicPublishSettings(NamedTuple):
    """The settings of a topic that matter to publishing."""

    lanes: str = DEFAULT_LANES
    delay_ms_max: int = limits.DELAY_MS_MAX

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> TopicPublishSettings:
        """Return those among the settings of a topic."""
        delay_max = settings.get("delay.max")
        return cls(
            settings.get("priority.lanes", DEFAULT_LANES),
            limits.DELAY_MS_MAX if delay_max is None else parse_duration_ms(delay_max),
        )

    def lane(self, priority: str | int) -> int:
        """Return the number of a lane; raise ``InvalidInput`` if there is no such one."""
        return lanes_of(self.lanes).lane(priority, field="priority")

    @property
    def default_lane(self) -> int:
        """The lane of a message that names none."""
        return lanes_of(self.lanes).default_lane

    def applied(self, message: Message, options: DeliveryOptions, now_us: int) -> Message:
        """Return a message with options applied; raise ``InvalidInput`` naming a bad one."""
        dedup_id = message.dedup_id
        if options.dedup_id is not None:
            dedup_id = dedup_hash(check_dedup_text(options.dedup_id, field="dedup_id"))
        applied = msgspec.structs.replace(
            message,
            lane=message.lane if options.priority is None else self.lane(options.priority),
            deliver_at_ms=self._deliver_at_ms(options, now_us) or message.deliver_at_ms,
            expires_at_ms=_expires_at_ms(options) or message.expires_at_ms,
            tenant=message.tenant if options.tenant is None else options.tenant,
            dedup_id=dedup_id,
        )
        check_message(applied, field="message")
        if isinstance(options.priority, str):
            fields = msgspec.structs.asdict(applied)
            return MessageInNamedLane(**fields, lane_name=options.priority)
        return applied

    def numbered(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages with the numbers that named lanes have; raise ``InvalidInput``."""
        return [
            msgspec.structs.replace(message, lane=self.lane(message.lane_name))
            if isinstance(message, MessageInNamedLane)
            else message
            for message in messages
        ]

    def _deliver_at_ms(self, options: DeliveryOptions, now_us: int) -> int:
        """Return the delivery time, 0 for at once; a delay negative, for the leader to count."""
        field = "delay" if options.delay is not None else "deliver_at"
        if options.delay is not None:
            if options.deliver_at is not None:
                raise InvalidInput("give delay or deliver_at, not both", field=field)
            at_us = now_us + 1000 * parse_duration_ms(options.delay, field=field)
        elif options.deliver_at is not None:
            at_us = parse_time_us(as_time(options.deliver_at, field), now_us=now_us, field=field)
        else:
            return 0
        if at_us > now_us + 1000 * self.delay_ms_max:
            raise InvalidInput(
                "that is later than the topic's delay.max allows, which is"
                f" {format_duration_ms(self.delay_ms_max)} from now",
                field=field,
            )
        from_now = options.delay is not None or is_by_clock(options.deliver_at)
        return delivery_ms(at_us, now_us, is_by_clock=from_now)


def _expires_at_ms(options: DeliveryOptions) -> int:
    """Return the time to live, negative for the leader to count; 0 for none."""
    if options.ttl is None:
        return 0
    ttl_ms = parse_duration_ms(options.ttl, field="ttl")
    if not 0 < ttl_ms <= limits.TTL_MS_MAX:
        raise InvalidInput(
            f"a time to live is over 0 and at most {format_duration_ms(limits.TTL_MS_MAX)}",
            field="ttl",
        )
    return -ttl_ms
