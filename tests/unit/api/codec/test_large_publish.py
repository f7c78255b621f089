"""Large JSON publishes: decoded in pieces, they mean what the decoder says of the whole."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from typing import Any

import msgspec
import pytest

from goq import clock, limits
from goq.api.codec import large_publish
from goq.api.codec.large_publish import decode_large_publish
from goq.api.codec.request import decode_json
from goq.api.schemas.messages import NewMessage, Publish
from goq.errors import InvalidInput, TooLarge
from tests.support.effort import first_of

_TEXT = ["a", '"', "\\", "\n", "é", "😀", *"{}[],:/0", "\x01"]
_DAMAGE = b'{}[],":\\ \xff\xc3a"u0'

Read = list[dict[str, Any]]


def _read_in_pieces(body: bytes) -> tuple[Read, str | None] | None:
    """Return what the body says, None if it is refused."""
    try:
        found = asyncio.run(decode_large_publish(body))
        read = [
            _fields(new, found.long_values.get(number))
            for number, new in enumerate(found.publish.messages)
        ]
    except (InvalidInput, TooLarge, ValueError):
        return None
    return read, found.publish.acks


def _read_whole(body: bytes) -> tuple[Read, str | None] | None:
    try:
        found = decode_json(body, Publish)
        return [_fields(new, None) for new in found.messages], found.acks
    except (InvalidInput, ValueError):
        return None


def _fields(new: NewMessage, long_value: bytes | None) -> dict[str, Any]:
    fields = msgspec.structs.asdict(new)
    encoded, value = fields.pop("value_base64"), fields.pop("value")
    if isinstance(encoded, str):
        fields["bytes"] = base64.b64decode(encoded, validate=True)
    elif isinstance(value, str):
        fields["text"] = value.encode()
    else:
        fields["none"] = value
    if long_value is not None:
        fields["bytes" if "bytes" in fields else "text"] = long_value
    if isinstance(new.headers, msgspec.Raw):
        fields["headers"] = bytes(new.headers).strip()
    return fields


_BODIES = 160


class _Writer:
    """Writes random bodies, sound ones and damaged ones."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def body(self) -> bytes:
        count = self.draw.choice([0, 1, 2, 5, 20])
        messages = ",".join(self._blank() + self._message() + self._blank() for _ in range(count))
        members = [("messages", f"[{self._blank()}{messages}]")]
        if self.draw.random() < 0.3:
            members.insert(self.draw.randrange(2), ("acks", '"leader"'))
        return (self._blank() + self._object(members) + self._blank()).encode()

    def damaged(self, body: bytes) -> bytes:
        found = bytearray(body)
        for _ in range(self.draw.randrange(1, 3)):
            place = self.draw.randrange(len(found))
            kind = self.draw.randrange(3)
            if kind == 0:
                del found[place]
            elif kind == 1:
                found[place] = self.draw.choice(_DAMAGE)
            else:
                found.insert(place, self.draw.choice(_DAMAGE))
        return bytes(found)

    def _message(self) -> str:
        draw, size = self.draw, self.draw.choice([0, 1, 5, 50, 200, 500])
        if draw.random() < 0.3:
            text = base64.b64encode(draw.randbytes(size)).decode()
            members = [("value_base64", self._quoted(text))]
        else:
            members = [("value", self._quoted(self._text(size)) if size != 1 else "null")]
        if draw.random() < 0.4:
            members.append(("key", self._quoted(self._text(draw.choice([3, 70])))))
        if draw.random() < 0.4:
            headers = [(self._text(3), self._quoted(self._text(90))) for _ in range(3)]
            members.append(("headers", self._object(headers)))
        if draw.random() < 0.2:
            members.append(("partition", "3"))
        draw.shuffle(members)
        return self._object(members)

    def _object(self, members: list[tuple[str, str]]) -> str:
        blank = self._blank
        written = [
            f"{blank()}{self._quoted(name)}{blank()}:{blank()}{value}{blank()}"
            for name, value in members
        ]
        return "{" + ",".join(written) + "}"

    def _text(self, size: int) -> str:
        return "".join(self.draw.choices(_TEXT, k=size))

    def _quoted(self, text: str) -> str:
        quoted = json.dumps(text, ensure_ascii=self.draw.random() < 0.5)
        return quoted.replace("/", "\\/") if self.draw.random() < 0.3 else quoted

    def _blank(self) -> str:
        return self.draw.choice(["", "", "", " ", "\n\t "])


@pytest.mark.parametrize("window_bytes", first_of([33, 200, 16, 64], quick=2))
def test_a_body_in_pieces_means_what_the_whole_body_means(
    monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    for name in ("_WINDOW_BYTES", "_PIECE_BYTES", "_LONG_TEXT_BYTES"):
        monkeypatch.setattr(large_publish, name, window_bytes)
    writer, sound = _Writer(window_bytes), 0
    for number in range(_BODIES):
        body = writer.body()
        if number % 2:
            body = writer.damaged(body)
        whole = _read_whole(body)
        assert _read_in_pieces(body) == whole, body
        sound += whole is not None
    assert _BODIES / 2 <= sound < 0.9 * _BODIES


def _large(*messages: dict[str, Any]) -> bytes:
    body = json.dumps({"messages": messages}, ensure_ascii=False).encode()
    assert len(body) > large_publish.LARGE_BYTES
    return body


@pytest.mark.parametrize(
    "text",
    [
        "v" * limits.VALUE_BYTES_MAX,
        "\n" * limits.VALUE_BYTES_MAX,
        "\\" * limits.VALUE_BYTES_MAX,
        "é" * (limits.VALUE_BYTES_MAX // 2),
        "😀" * (limits.VALUE_BYTES_MAX // 4),
    ],
    ids=["plain", "escapes", "backslashes", "two bytes", "four bytes"],
)
def test_a_value_of_the_largest_size_is_read(text: str) -> None:
    found = asyncio.run(decode_large_publish(_large({"value": text}, {"value": "next"})))
    assert found.long_values == {0: text.encode()}
    assert [new.value for new in found.publish.messages] == ["", "next"]


def test_pairs_of_surrogates_are_not_cut() -> None:
    body = b'{"messages":[{"value":"%s"}]}' % (b"\\ud83d\\ude00" * 200_000)
    found = asyncio.run(decode_large_publish(body))
    assert found.long_values == {0: "😀".encode() * 200_000}


@pytest.mark.parametrize("surplus", [0, 1, 2])
def test_base64_of_any_length_is_read(surplus: int) -> None:
    data = random.Random(surplus).randbytes(3 * limits.MIB + surplus)
    text = base64.b64encode(data).decode()
    found = asyncio.run(decode_large_publish(_large({"value_base64": text})))
    assert found.long_values == {0: data}


def test_base64_behind_its_padding_is_refused() -> None:
    half = base64.b64encode(bytes(large_publish._PIECE_BYTES * 3 // 4 - 1)).decode()
    with pytest.raises(InvalidInput, match="not base64") as caught:
        asyncio.run(decode_large_publish(_large({"value_base64": half * 20})))
    assert caught.value.field == "messages[0].value_base64"


def test_an_error_names_the_message_and_the_byte_of_the_whole_body() -> None:
    messages = [{"value": "v" * 1000} for _ in range(5000)]
    wrong = _large(*messages[:4000], {"value": 7}, *messages[4000:])
    with pytest.raises(InvalidInput) as caught:
        asyncio.run(decode_large_publish(wrong))
    assert caught.value.field == "messages[4000].value"
    body = _large(*messages)
    place = body.index(b": ", len(body) * 3 // 4)
    with pytest.raises(InvalidInput, match=rf"\(byte {place}\)"):
        asyncio.run(decode_large_publish(body[:place] + b"?" + body[place + 1 :]))


@pytest.mark.parametrize(
    ("error", "body"),
    [
        (TooLarge, b'{"messages":[' + b"{}," * 1_000_000 + b"{}]}"),
        (TooLarge, b'{"messages":[{"value":"v","headers":{' + b'"a":"b",' * 400_000 + b"}}]}"),
        (TooLarge, b'{"messages":[' + b" " * 3_000_000 + b"]}"),
        (TooLarge, b'{"messages":[{"value":"v"}]' + b" " * 3_000_000 + b"}"),
        (TooLarge, b'{"messages":[{"key":"' + b"k" * 3_000_000 + b'"}]}'),
        (TooLarge, b'{"messages":[{"value":"' + b"v" * 9_000_000 + b'"}]}'),
        (InvalidInput, b'{"messages":[{"value":"v"}' + b',{"value":"v"}' * 9_000),
        (InvalidInput, b'{"messages":[],"messages":[{"value":"' + b"v" * 3_000_000 + b'"}]}'),
        (InvalidInput, b'{"mesages":[{"value":"' + b"v" * 3_000_000 + b'"}]}'),
    ],
    ids=[
        "too many",
        "headers",
        "blanks",
        "blanks behind",
        "a key",
        "a value",
        "cut off",
        "twice",
        "misspelt",
    ],
)
def test_a_body_without_bounds_is_refused(error: type[InvalidInput], body: bytes) -> None:
    with pytest.raises(error):
        asyncio.run(decode_large_publish(body))


def test_a_large_body_gives_others_a_turn_after_each_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock, "SLICE_S", 0.0)
    turns: list[None] = []

    async def decode_beside_another() -> None:
        decoding = asyncio.ensure_future(decode_large_publish(_large({"value": "v" * 8_000_000})))
        while not decoding.done():
            turns.append(None)
            await asyncio.sleep(0)
        decoding.result()

    asyncio.run(decode_beside_another())
    assert len(turns) > 2 * 8_000_000 // large_publish._WINDOW_BYTES
