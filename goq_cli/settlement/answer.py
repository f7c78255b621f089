"""The records that a worker of ``goq consume --coproc`` reads, and the answers that it writes."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

from goq.errors import InvalidInput
from goq.units import parse_duration_ms
from goq_cli.settlement.settlements import ACK, Outcome

if TYPE_CHECKING:
    from goq.client import ReceivedMessage

ANSWER_BYTES_MAX = 64 * 1024


class Framing(StrEnum):
    """How a record ends: by a newline, by NUL, or by its length in decimal on a line before it."""

    LINE = "line"
    NULL = "null"
    LENGTH = "length"


class UnfitRecord(ValueError):
    """A record that its framing cannot hold; the text says why."""


class UnknownAnswer(ValueError):
    """A line that is no answer."""


def make_record_form(
    framing: Framing, content: Callable[[ReceivedMessage], bytes]
) -> Callable[[ReceivedMessage], bytes]:
    """Return the record of a message; it raises ``UnfitRecord``."""
    if framing is Framing.LENGTH:

        def with_length(message: ReceivedMessage) -> bytes:
            data = content(message)
            return b"%d\n%b" % (len(data), data)

        return with_length
    end = b"\n" if framing is Framing.LINE else b"\0"
    name = "a newline" if framing is Framing.LINE else "a NUL"

    def with_end(message: ReceivedMessage) -> bytes:
        data = content(message)
        if end in data:
            raise UnfitRecord(f"the record has {name}: use --json, or --framing length")
        return data + end

    return with_end


def parse_answer(line: bytes, retry_delay: str) -> Outcome:
    """Return the outcome that a line names; raise ``UnknownAnswer``.

    ``ok``, ``fail [delay] [reason]`` or ``reject [reason]``; without a delay it is ``retry_delay``.
    """
    if line == b"ok":
        return ACK
    text = line.decode(errors="replace").strip()
    verb, _, rest = text.partition(" ")
    rest = rest.strip()
    if verb == "ok" and not rest:
        return ACK
    if verb == "reject":
        return Outcome("reject", None, rest or None)
    if verb == "fail":
        delay, _, reason = rest.partition(" ")
        if _is_duration(delay):
            return Outcome("nack", delay, reason.strip() or None)
        return Outcome("nack", retry_delay, rest or None)
    raise UnknownAnswer(f"{text[:80]!r} is no answer: ok, fail [delay] [reason], reject [reason]")


def _is_duration(text: str) -> bool:
    try:
        parse_duration_ms(text, field="delay")
    except InvalidInput:
        return False
    return not text.isdigit()
