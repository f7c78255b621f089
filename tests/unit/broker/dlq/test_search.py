"""What dead letters say of themselves: within bounds, whatever was in the headers before."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq import limits
from goq.broker.dlq.search import DeadLetterQuery
from goq.broker.log.frame_cache import REDRIVE_GROUP_HEADER
from goq.broker.outbox.dead_letter_headers import (
    DeadLetterOrigin,
    FailedAttempt,
    dead_letter_headers_of,
    read_dead_letter,
    redriven_headers,
)
from goq.model import Header

LIFE = DeadLetterOrigin("t:0:1", "g", 3, "nacked", "2025-01-15T10:30:00.000000Z", "busy")


def size_of(headers: list[Header]) -> int:
    return sum(len(name.encode()) + len(value) for name, value in headers)


def died(number: int, *, reason: str = "r", failures: int = 1) -> DeadLetterOrigin:
    attempts = [FailedAttempt("2025-01-15T10:30:00Z", "nacked", "c", reason)] * failures
    return DeadLetterOrigin(
        f"t:0:{number}", "g", failures, "nacked", "2025-01-15T10:30:00Z", reason, "", attempts
    )


def test_what_is_written_is_read_again() -> None:
    origin = died(1, failures=3)
    letter = read_dead_letter(dead_letter_headers_of([("own", b"\xff"), ("own", b"2")], origin))
    assert letter.origin == origin
    assert (letter.earlier_origins, letter.redrives, letter.lost) == ([], 0, "")
    assert letter.headers == [("own", b"\xff"), ("own", b"2")]


def test_only_so_many_lives_are_told_and_the_newest_are() -> None:
    headers: list[Header] = []
    for number in range(limits.DEAD_LETTER_ORIGINS_MAX + 5):
        headers = redriven_headers(dead_letter_headers_of(headers, died(number)), "t.dlq:0:1", "t")
    letter = read_dead_letter(headers)
    assert letter.redrives == limits.DEAD_LETTER_ORIGINS_MAX + 5
    assert letter.origin
    assert letter.origin.id == f"t:0:{limits.DEAD_LETTER_ORIGINS_MAX + 4}"
    assert [origin.id for origin in letter.earlier_origins] == [
        f"t:0:{n}" for n in range(4, limits.DEAD_LETTER_ORIGINS_MAX + 4)
    ]


@pytest.mark.parametrize(
    ("text", "redrives"),
    [
        (b"999999999", 999_999_999),
        (b"1000000000", 0),
        (b"-1", 0),
        ("²".encode(), 0),
        (b"", 0),
        (b"many", 0),
    ],
)
def test_a_count_of_redrives_that_somebody_made_up_counts_as_none(
    text: bytes, redrives: int
) -> None:
    assert read_dead_letter([("goq-redrives", text)]).redrives == redrives


def test_the_history_gives_way_before_the_limit_of_headers_does() -> None:
    own = [("own", bytes(limits.HEADERS_BYTES_MAX - 4000))]
    headers: list[Header] = own
    for number in range(5):
        origin = died(number, reason="€" * limits.REASON_CHARS_MAX, failures=10)
        headers = dead_letter_headers_of(headers, origin)
        assert size_of(headers) <= limits.HEADERS_BYTES_MAX
    letter = read_dead_letter(headers)
    assert letter.headers == own
    assert letter.origin
    assert letter.origin.reason == "€" * limits.REASON_CHARS_MAX


def test_a_message_full_of_headers_still_tells_where_it_comes_from() -> None:
    own = [("own", bytes(limits.HEADERS_BYTES_MAX - 3))]
    letter = read_dead_letter(dead_letter_headers_of(own, died(1, reason="long " * 100)))
    assert letter.headers == own
    assert letter.origin
    assert (letter.origin.id, letter.origin.reason, letter.origin.failures) == ("t:0:1", "", [])


def test_a_history_is_never_larger_than_its_own_bound() -> None:
    headers: list[Header] = []
    for number in range(12):
        origin = died(number, reason="x" * limits.REASON_CHARS_MAX, failures=10)
        headers = dead_letter_headers_of(headers, origin)
    [history] = [value for name, value in headers if name == "goq-dead-history"]
    assert limits.DEAD_HISTORY_BYTES_MAX // 2 < len(history) <= limits.DEAD_HISTORY_BYTES_MAX
    assert len(msgspec.json.decode(history)["failures"]) == 10


@given(st.lists(st.tuples(st.sampled_from(
    ["own", "goq-dead-id", "goq-dead-history", "goq-redrives", "goq-dead-attempts",
     "goq-dead-time", "goq-redrive-group", "goq-dead-lost"]), st.binary(max_size=40))))  # fmt: skip
def test_headers_that_no_node_wrote_do_no_harm(headers: list[Header]) -> None:
    letter = read_dead_letter(headers)
    assert letter.headers == [header for header in headers if header[0] == "own"]
    DeadLetterQuery(group="g", from_us=1).matches("t:0:0", None, letter)
    again = read_dead_letter(dead_letter_headers_of(headers, LIFE))
    assert again.origin == LIFE
    assert again.headers == letter.headers
    redriven_headers(headers, "t.dlq:0:1", "t")


@pytest.mark.parametrize("value", [b"\xb2", b"-1", b"1" * 30, "٣".encode(), b""])
def test_a_count_that_is_none_counts_as_nothing(value: bytes) -> None:
    assert read_dead_letter([("goq-redrives", value)]).redrives == 0


def test_the_group_that_gave_it_up_is_named_only_where_it_came_from() -> None:
    headers = dead_letter_headers_of([(REDRIVE_GROUP_HEADER, b"old")], LIFE)
    assert REDRIVE_GROUP_HEADER not in dict(headers)
    assert dict(redriven_headers(headers, "t.dlq:0:1", "t"))[REDRIVE_GROUP_HEADER] == b"g"
    assert REDRIVE_GROUP_HEADER not in dict(redriven_headers(headers, "t.dlq:0:1", "other"))
    assert REDRIVE_GROUP_HEADER not in dict(redriven_headers([], "t.dlq:0:1", "t"))


def test_a_dead_letter_that_was_lost_is_for_nobody_if_it_is_put_back() -> None:
    headers = dead_letter_headers_of([], LIFE, lost="damaged")
    assert dict(redriven_headers(headers, "t.dlq:0:1", "t"))[REDRIVE_GROUP_HEADER] == b""
