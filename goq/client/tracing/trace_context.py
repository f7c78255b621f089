"""W3C Trace Context (https://www.w3.org/TR/trace-context/) in the headers of messages.

A message carries ``traceparent`` and ``tracestate`` like any header. A malformed one is stored as
it is; readers ignore it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from goq.errors import InvalidInput
from goq.model import Header, Message, check_message

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
OPENTELEMETRY: Final = "opentelemetry.trace"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_INVALID_VERSION: Final = "ff"
_KNOWN_VERSION: Final = "00"


class TraceParent(NamedTuple):
    """The parent span: its trace, its own id, and its flags."""

    trace_id: int
    span_id: int
    flags: int


def parse_traceparent(text: str) -> TraceParent | None:
    """Return a parsed ``traceparent``, None if it is malformed."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == _INVALID_VERSION or (version == _KNOWN_VERSION and more is not None):
        return None
    parent = TraceParent(int(trace_id, 16), int(span_id, 16), int(flags, 16))
    return parent if parent.trace_id and parent.span_id else None


def traceparent_of(headers: Iterable[Header]) -> str | None:
    """Return the text of the first ``traceparent``, unchecked; None where there is none."""
    return next((_text(value) for name, value in headers if name.lower() == TRACEPARENT), None)


def tracestate_of(headers: Iterable[Header]) -> str | None:
    """Return the texts of all ``tracestate`` as one; None where there is none."""
    found = [_text(value) for name, value in headers if name.lower() == TRACESTATE]
    return ",".join(found) if found else None


def with_current_span(message: Message) -> Message:
    """Return a message with the OpenTelemetry span that is active here, if there is one.

    A message that has a ``traceparent`` keeps its own. A message without room for another header
    gets none. If the program does not use OpenTelemetry, this costs one dict lookup.
    """
    if OPENTELEMETRY not in sys.modules:
        return message
    return _with_headers(message, _current_headers())


def all_with_current_span(messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages as :func:`with_current_span` does each."""
    if OPENTELEMETRY not in sys.modules or not (headers := _current_headers()):
        return messages
    return [_with_headers(message, headers) for message in messages]


def has_current_span() -> bool:
    """Return whether an OpenTelemetry span is active here."""
    return OPENTELEMETRY in sys.modules and bool(_current_headers())


def span_headers() -> tuple[tuple[bytes, bytes], ...]:
    """Return the active OpenTelemetry span as headers of a request; none without one."""
    if OPENTELEMETRY not in sys.modules:
        return ()
    return tuple((name.encode(), value) for name, value in _current_headers())


def _with_headers(message: Message, headers: Sequence[Header]) -> Message:
    if not headers or any(name.lower() == TRACEPARENT for name, _ in message.headers):
        return message
    others = [header for header in message.headers if header[0].lower() != TRACESTATE]
    traced = msgspec.structs.replace(message, headers=(*others, *headers))
    try:
        check_message(traced, field="message")
    except InvalidInput:
        return message
    return traced


def _current_headers() -> Sequence[Header]:
    get_current_span = getattr(sys.modules[OPENTELEMETRY], "get_current_span", None)
    if get_current_span is None:  # it is being imported just now
        return []
    context = get_current_span().get_span_context()
    if not context.is_valid:
        return []
    parent = f"{_KNOWN_VERSION}-{context.trace_id:032x}-{context.span_id:016x}"
    headers = [(TRACEPARENT, f"{parent}-{int(context.trace_flags):02x}".encode())]
    if context.trace_state:
        headers.append((TRACESTATE, context.trace_state.to_header().encode()))
    return headers


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
