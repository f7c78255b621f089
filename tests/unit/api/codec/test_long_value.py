"""Long values as JSON in parts: the same text as whole, however it is cut."""

from __future__ import annotations

import asyncio
import base64
import json
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goq.api.codec import long_value
from goq.api.codec.long_value import LONG_BYTES, LongValue, message_parts
from goq.api.codec.messages import JsonMessages, json_response, put_message
from goq.api.schemas.messages import MessageOut, MessagesOut
from goq.model import Message
from tests.support.broker.harness import run

_PART = long_value._PART_BYTES
_TEXTS = ["a", '"', "\\", "\x00", "\x1f", "\x7f", "é", "€", "\u2028", "😀", "\uffff"]


def _out(value: bytes | None, **more: object) -> MessageOut:
    out = MessageOut(id="t:0:1", partition=0, offset=1, timestamp="2026-11-23T00:00:00Z")
    put_message(out, Message(value, **more))
    return out


def _text_of(out: MessageOut) -> dict[str, object]:
    found = json.loads(b"".join(message_parts(out)))
    assert isinstance(found, dict)
    return found


@settings(deadline=None, max_examples=40)
@given(st.randoms(use_true_random=False), st.integers(0, 8))
def test_a_long_text_is_the_same_in_parts_as_whole(draw: random.Random, lead: int) -> None:
    text = "a" * lead + "".join(draw.choices(_TEXTS, k=200)) * 900
    data = text.encode()
    assert len(data) > LONG_BYTES
    out = _out(data)
    assert _text_of(out)["value"] == text
    found = LongValue.of(out)
    assert found is not None
    assert all(len(part) <= 6 * _PART for part in found.parts)


@pytest.mark.parametrize("at", [0, 1, _PART - 1, _PART, _PART + 1, 2 * _PART, -1])
@pytest.mark.parametrize("bad", [b"\xff", b"\x80", b"\xc3", b"\xed\xa0\x80", b"\x80" * 9])
def test_a_long_value_with_one_bad_byte_is_in_base64(at: int, bad: bytes) -> None:
    data = bytearray(b"x" * (LONG_BYTES * 2 + 1))
    data[at : at + len(bad) or None] = bad
    shown = _text_of(_out(bytes(data)))
    assert "value" not in shown
    assert base64.b64decode(str(shown["value_base64"]), validate=True) == bytes(data)


@pytest.mark.parametrize("size", [0, 1, LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1, 3 * _PART + 1])
def test_each_size_is_shown_whole(size: int) -> None:
    for data in (b"v" * size, b"\xff" * size):
        shown = _text_of(_out(data))
        value = shown.get("value")
        text = str(shown["value_base64"]) if value is None else ""
        assert (base64.b64decode(text) if value is None else str(value).encode()) == data


def test_fields_that_look_like_the_value_do_not_take_its_place() -> None:
    headers = (("value", b""), ("value_base64", b""), ("n", b'"value":""'))
    for data in (b"v" * (LONG_BYTES + 1), b"\xff" * (LONG_BYTES + 1)):
        shown = _text_of(_out(data, key=b'"value":""', headers=headers))
        assert shown["headers"] == {name: value.decode() for name, value in headers}
        assert shown["key"] == '"value":""'
        assert len(str(shown.get("value", shown.get("value_base64")))) > LONG_BYTES


def test_an_answer_in_parts_is_the_answer_as_a_whole() -> None:
    values = [
        b"a",
        b"x" * (LONG_BYTES + 1),
        b"b",
        None,
        b"\xff" * LONG_BYTES * 2,
        b"c" * LONG_BYTES,
        b"d",
    ]

    async def answer(chosen: list[bytes | None]) -> object:
        found = JsonMessages(1 << 30)
        for value in chosen:
            assert await found.add(_out(value))
        body = found.body(MessagesOut([], 7, [{"partition": 1}], 9))
        return json.loads(body if isinstance(body, bytes) else b"".join(body))

    for count in range(len(values) + 1):
        for chosen in (values[:count], values[count:]):
            messages = [_text_of(_out(value)) for value in chosen]
            whole = {"messages": messages, "next": 7, "damaged": [{"partition": 1}], "end": 9}
            assert run(answer(chosen)) == whole


def test_many_short_messages_are_an_answer_in_parts() -> None:
    found = JsonMessages(1 << 30)
    for _ in range(1_000):
        assert found.add_at_once(_out(b"v" * 1_000))
    body = found.body(MessagesOut([]))
    assert isinstance(body, list)
    assert 10 < len(body) < 100
    assert len(json.loads(b"".join(body))["messages"]) == len(found) == 1_000


def test_others_get_a_turn_while_a_long_value_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goq.clock.SLICE_S", 0.0)
    turns: list[int] = []

    async def main() -> None:
        async def count() -> None:
            while True:
                turns.append(1)
                await asyncio.sleep(0)

        task = asyncio.ensure_future(count())
        await JsonMessages(1 << 30).add(_out(b"\x01" * 20 * _PART))
        task.cancel()

    run(main())
    assert len(turns) >= 20


def test_a_long_value_that_was_not_made_is_an_error_and_not_an_empty_value() -> None:
    with pytest.raises(TypeError):
        json_response(_out(b"v" * (LONG_BYTES + 1)))
    with pytest.raises(TypeError):
        msgspec.json.encode(MessagesOut([_out(b"v" * (LONG_BYTES + 1))]))
