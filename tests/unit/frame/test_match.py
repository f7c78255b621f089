"""Searching a frame finds what decoding each message finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq.errors import InvalidFrame
from goq.frame import match
from goq.frame.encoder import Columns, encode_frame
from goq.frame.header import HEADER_BYTES, Attribute
from goq.frame.match import MessagePart, has_dedup_id, has_key, rows_with_header, rows_with_text
from goq.frame.slice import remove_rows
from goq.frame.view import FrameView

NAMES = st.sampled_from(["a", "b", "ab", "é"])
VALUES = st.sampled_from([b"", b"a", b"aa", b"aaa", b"b", b"ab", b"\xff"])
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=4)


@given(st.lists(HEADERS, min_size=1, max_size=12), st.booleans())
def test_the_messages_with_a_header_are_those_that_have_it(
    headers: list[list[tuple[str, bytes]]], compress: bool
) -> None:
    values = [b"aaa" * 20] * len(headers)
    view = FrameView.parse(encode_frame(Columns(values, headers=headers), compress=compress))
    for name in ("a", "b", "ab", "é", "c", "aab"):
        for value in (b"", b"a", b"aa", b"aaa", b"b", b"ab", b"\xff", b"c"):
            rows = [row for row, own in enumerate(headers) if (name, value) in own]
            assert rows_with_header(view, name, value) == rows


def test_a_frame_without_headers_has_none() -> None:
    assert rows_with_header(FrameView.parse(encode_frame(Columns([b"a=b"]))), "a", b"b") == []


TEXTS = st.sampled_from([b"", b"a", b"aA", b"Ab", b"bab", b"\xc3\xa9", b"aab" * 3])


@given(
    st.lists(st.tuples(TEXTS, st.none() | TEXTS, HEADERS), min_size=1, max_size=12),
    st.sampled_from([b"a", b"ab", b"aa", b"AB", b"\xa9", b"ba"]),
    st.sets(st.sampled_from(list(MessagePart)), min_size=1),
    st.booleans(),
    st.integers(1, 7),
    st.sets(st.integers(0, 11)),
)
def test_the_messages_with_a_text_are_those_that_contain_it(
    messages: list[tuple[bytes, bytes | None, list[tuple[str, bytes]]]],
    text: bytes,
    parts: set[MessagePart],
    ignores_case: bool,
    piece_bytes: int,
    removed: set[int],
) -> None:
    values, keys, headers = map(list, zip(*messages, strict=True))
    frame = encode_frame(Columns(values, keys=keys, headers=headers))
    gone = sorted(row for row in removed if row < len(values))
    if gone and len(gone) < len(values):
        frame = remove_rows(FrameView.parse(frame), gone)
    else:
        gone = []

    def has_it(row: int) -> bool:
        looked_at = {
            MessagePart.VALUE: [values[row]],
            MessagePart.KEY: [keys[row] or b""],
            MessagePart.HEADER: [value for _, value in headers[row]],
        }
        fold = bytes.lower if ignores_case else bytes
        return any(fold(text) in fold(each) for part in parts for each in looked_at[part])

    wanted = [row for row in range(len(values)) if row not in gone and has_it(row)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match, "_PIECE_BYTES", piece_bytes)
        found = rows_with_text(FrameView.parse(frame), text, parts, ignores_case=ignores_case)
    assert found == wanted


def test_a_message_without_key_has_not_the_empty_one() -> None:
    view = FrameView.parse(encode_frame(Columns([b""] * 3, keys=[None, b"", b"k"])))
    assert [has_key(view, row, b"") for row in range(3)] == [False, True, False]
    assert [has_key(view, row, b"k") for row in range(3)] == [False, False, True]
    plain = FrameView.parse(encode_frame(Columns([b""])))
    assert not has_key(plain, 0, b"")


def test_a_dedup_id_is_compared_whole() -> None:
    ids = [bytes(16), b"\1" * 16, b"\1" * 8 + b"\2" * 8]
    view = FrameView.parse(encode_frame(Columns([b""] * 3, dedup_ids=ids)))
    assert [has_dedup_id(view, row, ids[2]) for row in range(3)] == [False, False, True]
    assert not has_dedup_id(FrameView.parse(encode_frame(Columns([b""]))), 0, ids[1])


@given(st.integers(1, 5), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_a_first_column_is_the_column(
    count: int, delayed: bool, timed: bool, keyed: bool, named: bool
) -> None:
    columns = Columns(
        [b"value"] * count,
        keys=[b"k%d" % n for n in range(count)] if keyed else None,
        deliver_at_ms=[5] * count if delayed else None,
        client_time_ms=[7] * count if timed else None,
        dedup_ids=[bytes([n + 1] * 16) for n in range(count)] if named else None,
        lanes=[3] * count,
    )
    whole = FrameView.parse(encode_frame(columns))
    for view in (whole, *([FrameView.parse(remove_rows(whole, [0]))] if count > 1 else [])):
        for attribute in (
            Attribute.DELIVER_AT,
            Attribute.EXPIRES_AT,
            Attribute.CLIENT_TIME,
            Attribute.KEY_HASH,
            Attribute.DEDUP_ID,
        ):
            assert view.leading_column(attribute) == view.column(attribute)


def test_a_first_column_that_ends_behind_the_frame_is_refused() -> None:
    view = FrameView.parse(encode_frame(Columns([b""], keys=[b"k"])))
    cut = FrameView(view.header, view.buffer[: HEADER_BYTES + 7])
    with pytest.raises(InvalidFrame):
        cut.leading_column(Attribute.KEY_HASH)
