"""Delays and times to live that a producer states, against a slow version; times are arguments."""

from __future__ import annotations

import random

import pytest

from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import Attribute
from goq.frame.relative_times import with_absolute_times
from goq.frame.validation import check_body_crc, check_frame
from goq.frame.view import FrameView

NOW_US = 1_700_000_000_000_001
NOW_MS = 1_700_000_000_001  # rounded up: never too early


def counted(deliver_ms: int, expires_ms: int) -> tuple[int, int]:
    if deliver_ms < 0:
        deliver_ms = NOW_MS - deliver_ms
    if expires_ms < 0:
        expires_ms = max(deliver_ms, NOW_MS) - expires_ms
    return deliver_ms, expires_ms


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_relative_times_count_from_the_leaders_time(seed: int, compress: bool) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 9)
    delivers = [rng.choice([0, NOW_MS + 5, NOW_MS - 5, -1, -90_000]) for _ in range(count)]
    expires = [rng.choice([0, NOW_MS + 9, -7, -800_000]) for _ in range(count)]
    columns = Columns(
        [b"v" * rng.randint(0, 50)] * count,
        [b"k"] * count,
        deliver_at_ms=rng.choice([delivers, delivers, None]),
        expires_at_ms=rng.choice([expires, expires, None]),
        client_time_ms=[-3] * count,
        lanes=[1] * count,
    )
    mark = ProducerMark(7, 1, 5)
    view = FrameView.parse(encode_frame(columns, producer=mark, compress=compress))
    found = with_absolute_times(view, NOW_US)
    check_body_crc(found)
    check_frame(FrameView.parse(bytes(found.buffer)))
    wanted = [
        counted(deliver, expire)
        for deliver, expire in zip(
            columns.deliver_at_ms or [0] * count, columns.expires_at_ms or [0] * count, strict=True
        )
    ]
    if columns.deliver_at_ms is not None:
        assert found.times_ms(Attribute.DELIVER_AT, 0, count) == [each for each, _ in wanted]
    if columns.expires_at_ms is not None:
        assert found.times_ms(Attribute.EXPIRES_AT, 0, count) == [each for _, each in wanted]
    assert found.times_ms(Attribute.CLIENT_TIME, 0, count) == [-3] * count
    assert found.header._replace(body_crc32c=0) == view.header._replace(body_crc32c=0)
    assert found.values(0, count) == view.values(0, count)


def test_a_frame_without_relative_times_stays_as_it_is() -> None:
    for columns in (
        Columns([b"x"]),
        Columns([b"x"], deliver_at_ms=[NOW_MS], expires_at_ms=[NOW_MS]),
        Columns([b"x"], client_time_ms=[-1]),
    ):
        view = FrameView.parse(encode_frame(columns))
        assert with_absolute_times(view, NOW_US) is view
