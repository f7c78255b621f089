"""Random histories of a partition: what may happen to it, one step at a time."""

from __future__ import annotations

import random

from msgspec.structs import replace

from goq.config.topic import Ordering, TopicSettings
from goq.delivery.group.retry_policy import RetryPolicy
from goq.delivery.selection.redelivery import RetryRule
from goq.model import Receipt
from tests.support.delivery.model import Message
from tests.support.delivery.pair import Pair

GROUPS = {"a": Ordering.KEY, "b": Ordering.NONE, "c": Ordering.PARTITION}
MESSAGES_MAX = 60
_HOUR_MS = 3_600_000


def random_pair(rng: random.Random) -> Pair:
    """Return a partition of random settings, plain ones more often than not."""
    weights = rng.choice([None, None, None, (4, 2, 1), (1, 1, 1)])
    cap = rng.choice([None, None, 1, 3])
    settings = TopicSettings(
        lane_weights=weights,
        starvation_ms=rng.choice([None, None, None, 20]),
        tenant_weights=rng.choice([(), (("x", 3.0), ("y", 0.4))]),
        tenant_in_flight_max=cap,
        dead_letter_expired=rng.random() < 0.3,
    )
    policy = RetryPolicy(
        attempts_max=rng.choice([None, 1, 2, 3]),
        initial_ms=rng.choice([0, 4, 30]),
        max_ms=50,
        jitter=rng.choice([0.0, 0.2]),
        dead_letters=rng.random() < 0.7,
    )
    pair = Pair(settings, GROUPS, policy)
    pair.has_tenants = rng.random() < 0.4
    pair.key_count = rng.choice([0, 1, 3, 3, 8])
    pair.has_rows = rng.random() < 0.7
    return pair


def random_messages(pair: Pair, rng: random.Random, count: int, *, is_plain: bool) -> list[Message]:
    messages = []
    now_ms, default_lane = pair.now_ms, pair.settings.default_lane
    for _ in range(count):
        key = rng.randint(0, pair.key_count)
        expires_ms = now_ms + rng.choice([-1, 5, 50, 500]) if rng.random() < 0.1 else 0
        only = rng.choice(["a", "b"]) if rng.random() < 0.03 else None
        lane, tenant, due_ms = default_lane, None, 0
        if not is_plain:
            lane = rng.randrange(3)
            if rng.random() < 0.2:
                due_ms = now_ms + rng.choice([-5, 0, 1, 3, 40, 2 * _HOUR_MS, 50 * _HOUR_MS])
            if pair.has_tenants:
                tenant = rng.choice([None, "x", "x", "y", "z"])
        messages.append(Message(lane, tenant, key, due_ms, expires_ms, only))
    return messages


def random_receipts(pair: Pair, rng: random.Random) -> list[Receipt]:
    """Return receipts as consumers send them: right, late, twice, in part, overlapping, foreign."""
    known = pair.receipts[-12:] or [Receipt(0, 1, 0, 1)]
    chosen = []
    for _ in range(rng.randint(1, 5)):
        receipt = rng.choice(known)
        kind = rng.randrange(5)
        if kind == 0:
            start = rng.randint(receipt.start, receipt.end - 1)
            receipt = receipt._replace(start=start, end=rng.randint(start + 1, receipt.end))
        elif kind == 1:
            start = max(0, receipt.start - rng.randint(0, 3))
            receipt = receipt._replace(start=start, end=receipt.end + rng.randint(0, 3))
        elif kind == 2 and rng.random() < 0.3:
            receipt = receipt._replace(token=receipt.token + rng.choice([1, 2**40]))
        chosen.append(receipt)
    return chosen


def step(pair: Pair, rng: random.Random) -> None:
    """Do one random thing."""
    _STEPS[rng.choices(range(len(_STEPS)), _WEIGHTS)[0]](pair, rng)


def _publish(pair: Pair, rng: random.Random) -> None:
    room = MESSAGES_MAX - pair.twin.end
    if room > 0:
        is_plain = not pair.has_rows or rng.random() < 0.4
        messages = random_messages(pair, rng, rng.randint(1, min(room, 10)), is_plain=is_plain)
        pair.publish(messages, is_plain=is_plain)


def _receive(pair: Pair, rng: random.Random) -> None:
    reads_max = 10**6 if rng.random() < 0.8 else rng.randint(0, 4)
    visibility_ms = rng.choice([0, 5, 50, 5000])
    rule = RetryRule()
    if rng.random() < 0.4:
        others_wait = rng.random() < 0.7
        rule = RetryRule(rng.choice("xy"), rng.random() < 0.3, lambda: others_wait)
    pair.receive(_group(rng), rng.choice([1, 2, 3, 7, 100]), visibility_ms, reads_max, rule)


def _settle(pair: Pair, rng: random.Random) -> None:
    group, receipts = _group(rng), random_receipts(pair, rng)
    how = rng.choice(["ack", "ack", "nack", "nack", "nack", "reject", "extend"])
    if how == "extend":
        pair.settle(how, group, receipts, pair.now_ms + rng.choice([0, 3, 60]))
    else:
        delay_ms = rng.choice([None, None, 0, 3, 60]) if how == "nack" else None
        pair.settle(how, group, receipts, delay_ms)


def _give_up(pair: Pair, rng: random.Random) -> None:
    group = _group(rng)
    lease = rng.choice([*pair.real.group(group).leases.values(), None])
    if lease is not None and rng.random() < 0.5:
        pair.give_back_all(group, lease.token)
    elif lease is not None:
        spans = [(p.start, p.end, p.attempt) for p in lease.parts if rng.random() < 0.8]
        pair.release_undelivered(group, lease.token, spans)


def _move_clock(pair: Pair, rng: random.Random) -> None:
    pair.move_clock(rng.choice([-_HOUR_MS, -40, -2, 0, 1, 4, 4, 30, 30, 200, 5000, _HOUR_MS]))


def _offset(pair: Pair, rng: random.Random) -> int | None:
    start, end = pair.twin.start, pair.twin.end
    return rng.randrange(start, end) if start < end else None


def _cancel(pair: Pair, rng: random.Random) -> None:
    offset = _offset(pair, rng)
    if offset is not None and offset not in pair.twin.cancelled:
        pair.cancel(offset)


def _move(pair: Pair, rng: random.Random) -> None:
    offset = _offset(pair, rng)
    if offset is not None:
        pair.move(offset, rng.randrange(3))


def _reschedule(pair: Pair, rng: random.Random) -> None:
    if pair.twin.waiting:
        offset = rng.choice(sorted(pair.twin.waiting))
        pair.reschedule(offset, pair.now_ms + rng.choice([-20, 1, 30, 3 * _HOUR_MS]))


def _reset(pair: Pair, rng: random.Random) -> None:
    offset = rng.randint(pair.twin.start, pair.twin.end)
    end = rng.choice([None, rng.randint(offset, pair.twin.end)])
    pair.reset(_group(rng), offset, end)


def _trim(pair: Pair, rng: random.Random) -> None:
    start, end = pair.twin.start, pair.twin.end
    pair.trim(rng.randint(start, min(end, start + 6)))


def _corrupt(pair: Pair, rng: random.Random) -> None:
    offset = _offset(pair, rng)
    if offset is not None:
        end = min(pair.twin.end, offset + rng.randint(1, 4))
        if rng.random() < 0.5:
            pair.corrupt(offset, end)
        else:
            pair.rotten[offset] = end


def _compact(pair: Pair, rng: random.Random) -> None:
    offset = _offset(pair, rng)
    if offset is not None:
        pair.compact(offset, min(pair.twin.end, offset + rng.randint(1, 5)))


def _lose(pair: Pair, rng: random.Random) -> None:
    if pair.twin.start < pair.twin.end:
        pair.lose(rng.randint(pair.twin.start, pair.twin.end))


def _configure(pair: Pair, rng: random.Random) -> None:
    cap, weights = rng.choice([None, 1, 3]), rng.choice([(), (("x", 3.0), ("y", 0.4))])
    pair.configure(replace(pair.settings, tenant_in_flight_max=cap, tenant_weights=weights))


def _group(rng: random.Random) -> str:
    return rng.choice("aaabbc")


_CHOICES = [
    (14, _publish),
    (30, _receive),
    (30, _settle),
    (4, _give_up),
    (14, _move_clock),
    (2, _cancel),
    (3, _move),
    (2, _reschedule),
    (2, _reset),
    (1, lambda pair, rng: pair.delete_group(_group(rng))),
    (2, _trim),
    (2, _corrupt),
    (2, _compact),
    (1, _lose),
    (1, lambda pair, _: pair.arrive()),
    (2, _configure),
    (2, lambda pair, _: pair.release()),
    (2, lambda pair, _: pair.restore()),
    (1, lambda pair, _: pair.restart()),
]
_WEIGHTS = [weight for weight, _ in _CHOICES]
_STEPS = [each for _, each in _CHOICES]


def run_history(seed: int, steps: int, *, checks_each: bool = True) -> Pair:
    """Run a history; what it finds names the seed."""
    rng = random.Random(seed)
    pair = random_pair(rng)
    try:
        for _ in range(steps):
            step(pair, rng)
            if checks_each:
                pair.check()
        pair.restart()
        pair.restore()
        pair.check()
        pair.drain()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return pair
