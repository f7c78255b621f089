from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq import limits
from goq.errors import BY_CODE, GoqError, InvalidInput
from goq.model import MessageId, Receipt, check_name

offsets = st.integers(0, 10**18 - 1)


@given(st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9.-]{0,20}", fullmatch=True), offsets, offsets)
def test_a_message_id_that_was_written_reads_the_same(
    topic: str, partition: int, offset: int
) -> None:
    message_id = MessageId(topic, partition, offset)
    assert MessageId.parse(str(message_id)) == message_id


@given(st.integers(0, 10**9 - 1), st.integers(0, 2**63 - 1), offsets, st.integers(1, 10**9 - 1))
def test_a_receipt_that_was_written_reads_the_same(
    partition: int, token: int, start: int, count: int
) -> None:
    receipt = Receipt(partition, token, start, start + count)
    assert Receipt.parse(str(receipt)) == receipt


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
        return [root, *(found for child in root.__subclasses__() for found in family(child))]

    assert len(BY_CODE) == len({error.code for error in family(GoqError)}) == len(family(GoqError))
