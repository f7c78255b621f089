from __future__ import annotations

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq import limits
from goq.errors import BY_CODE, GoqError, InvalidInput
from goq.model import (
    NATIVE_TOPIC_IDS,
    MessageId,
    Receipt,
    check_name,
    delivery_ms,
    draw_topic_id,
    fence_of,
    fenced_id_of,
    parse_receipts,
    parse_topic_folder,
    topic_folder,
)

offsets = st.integers(0, 10**18 - 1)


@given(st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9.-]{0,20}", fullmatch=True), offsets, offsets)
def test_a_message_id_that_was_written_reads_the_same(
    topic: str, partition: int, offset: int
) -> None:
    message_id = MessageId(topic, partition, offset)
    assert MessageId.parse(str(message_id)) == message_id


topic_ids = st.integers(1, 2**53 - 1)


@given(
    st.integers(0, 10**9 - 1),
    st.integers(0, 2**63 - 1),
    offsets,
    st.integers(1, 10**9 - 1),
    topic_ids,
)
def test_a_receipt_that_was_written_reads_the_same(
    partition: int, token: int, start: int, count: int, topic_id: int
) -> None:
    receipt = Receipt(partition, token, start, start + count, fenced_id_of(topic_id))
    assert Receipt.parse(str(receipt)) == receipt
    fenced = Receipt(partition, fence_of(topic_id, token), start, start + count)
    assert str(fenced) == str(receipt)
    assert fenced.fence == receipt.fence == fence_of(topic_id, token)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["0:7", "1:7", "0:" + "9" * 36]),
            st.one_of(st.from_regex(r"[0-9]{1,18}(\+[1-9])?", fullmatch=True), st.text(max_size=3)),
        )
    )
)
def test_receipts_of_one_lease_are_read_as_each_alone(parts: list[tuple[str, str]]) -> None:
    texts = [":".join(each) for each in parts]

    def alone() -> list[Receipt]:
        return [Receipt.parse(text) for text in texts]

    try:
        expected = alone()
    except InvalidInput:
        with pytest.raises(InvalidInput):
            parse_receipts(texts)
    else:
        assert parse_receipts(texts) == expected


def test_a_receipt_of_a_topic_whose_id_was_not_drawn_has_no_id() -> None:
    assert fence_of(NATIVE_TOPIC_IDS - 1, 7) == 7
    assert Receipt.parse("0:7:1").fenced_id == fenced_id_of(NATIVE_TOPIC_IDS - 1) == 0


@given(st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9.-]{0,20}", fullmatch=True), topic_ids)
def test_the_folder_of_a_topic_tells_its_name_and_a_drawn_id(topic: str, topic_id: int) -> None:
    is_drawn = topic_id >= NATIVE_TOPIC_IDS
    folder = topic_folder(topic, topic_id)
    assert parse_topic_folder(folder) == (topic, topic_id if is_drawn else 0)
    assert (folder == topic) is not is_drawn


@pytest.mark.parametrize("folder", ["", "a~1", "a~0123456789abcd", "~1123456789abcd", ".d"])
def test_a_folder_of_no_topic_is_recognized(folder: str) -> None:
    with pytest.raises(InvalidInput):
        parse_topic_folder(folder)


def test_drawn_ids_differ_and_are_numbers_that_json_readers_keep() -> None:
    ids = {draw_topic_id(secrets.randbits) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(NATIVE_TOPIC_IDS <= each < 2**53 for each in ids)


@pytest.mark.parametrize("text", ["", "a", "a:1", "a:1:x", "a:-1:2", ".a:1:2", "a:1:" + "9" * 20])
def test_what_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        MessageId.parse(text)


@pytest.mark.parametrize("text", ["", "1:2", "1:2:3+0", "1:2:3+", "a:2:3", "1:2:3 ", "1:2:-3"])
def test_what_is_no_receipt_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        Receipt.parse(text)


def test_names_have_their_bounds_on_both_sides() -> None:
    assert check_name("a" * limits.NAME_CHARS_MAX, "topic")
    for name in ("", "a" * (limits.NAME_CHARS_MAX + 1), ".a", "__a", "a/b", "ä", "a\n"):
        with pytest.raises(InvalidInput):
            check_name(name, "topic")


def test_every_error_has_a_code_of_its_own() -> None:
    def family(root: type[GoqError]) -> list[type[GoqError]]:
        children = [each for each in root.__subclasses__() if each.__module__ == root.__module__]
        return [root, *(found for child in children for found in family(child))]

    assert len(BY_CODE) == len({error.code for error in family(GoqError)}) == len(family(GoqError))


def test_a_time_that_the_leaders_clock_may_not_have_reached_is_left_to_it() -> None:
    now_us, slack_us = 1_700_000_000_000_001, 1000 * limits.CLOCK_SLACK_MS
    for at_us in (now_us + 1, now_us, now_us - 1, now_us - slack_us + 1):
        assert delivery_ms(at_us, now_us, is_by_clock=False) == -(-at_us // 1000)
    assert delivery_ms(now_us - slack_us, now_us, is_by_clock=False) == 0
    assert delivery_ms(now_us + 1_500, now_us, is_by_clock=True) == -2  # never too early
    for passed_us in (0, 1, 10**9):
        assert delivery_ms(now_us - passed_us, now_us, is_by_clock=True) == 0
