"""Output of ``goq trace``: the timeline of a message.

A step has a time, a name and details. Steps of a copy, to dead letters and back, are indented under
the copy's id. Names of several groups are padded to one width, so that a group can be followed down
the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from goq_cli.output.text import escaped, fitting, shown_field, width_of

Json = Mapping[str, Any]

_LABEL_CHARS: Final = 11
_FIELD_CHARS: Final = 17
_TIME_CHARS: Final = len("2025-01-15 10:30:00.000000Z")
_NAME_CHARS: Final = len("ACKNOWLEDGED")
_COPY_INDENT: Final = "  "
_DETAILS: Final[tuple[str, ...]] = (
    "group",
    "consumer",
    "producer",
    "attempt",
    "lane",
    "due",
    "to",
    "from",
)
_UNTOLD: Final[tuple[str, ...]] = ("time", "event", "id", "until", "reason")
_COLOURS: Final = {
    "ACKNOWLEDGED": 32,
    "DELIVERED": 36,
    **dict.fromkeys(("NACKED", "EXPIRED", "RETRY_SCHEDULED", "RETURNED", "RESET"), 33),
    **dict.fromkeys(("REJECTED", "DEAD_LETTERED", "DROPPED", "CORRUPTED", "CANCELLED"), 31),
}
_DIM: Final = 2
_BOLD: Final = 1


@dataclass(slots=True)
class Style:
    """The style of lines; ``width`` 0 never breaks them."""

    width: int = 0
    colour: bool = False

    def paint(self, text: str, code: int) -> str:
        """Return text in a colour, if there are colours."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code and text else text

    def lines(self, *pieces: tuple[str, int]) -> Iterator[str]:
        """Yield coloured pieces of text as one line, and what is over the width on more below."""
        text = "".join(piece for piece, _ in pieces).rstrip()
        indent = ""
        for begin, end in _spans(text, self.width):
            shown, at = indent, 0
            for piece, code in pieces:
                shown += self.paint(piece[max(0, begin - at) : max(0, end - at)], code)
                at += len(piece)
            yield shown
            indent = _hanging(self.width)


@dataclass(slots=True)
class TimelinePrinter:
    """Renders one trace; column widths only grow, so later steps can be appended."""

    trace: Json
    style: Style = field(default_factory=Style)
    _name_chars: int = _NAME_CHARS
    _group_chars: int = 0

    def __post_init__(self) -> None:
        self._widen(self.trace["events"])

    @property
    def _id(self) -> str:
        return str(self.trace["message"]["id"])

    def whole(self) -> Iterator[str]:
        """Yield all lines."""
        yield from self.head()
        yield ""
        yield from self.steps(self.trace["events"])
        yield from self._standing()
        yield ""
        yield from self._summary()

    def head(self) -> Iterator[str]:
        """Yield the header of the message."""
        message = self.trace["message"]
        yield from self.style.lines(("Message".ljust(_LABEL_CHARS), 0), (self._id, _BOLD))
        labelled = [
            (label, value)
            for label, value in (
                ("Key", _key(message)),
                ("Lane", message.get("lane")),
                ("Size", _size(message.get("size_bytes"))),
                ("Tenant", message.get("tenant")),
                ("State", message["state"] if message["state"] != "live" else None),
            )
            if value is not None
        ]
        if labelled:
            (label, value), *others = labelled
            fields = [label.ljust(_LABEL_CHARS) + escaped(value)]
            fields += [f"{label} {escaped(value)}" for label, value in others]
            widths = [_LABEL_CHARS + _FIELD_CHARS, *[_FIELD_CHARS] * len(others)]
            text = "".join(f.ljust(w - 2) + "  " for f, w in zip(fields, widths, strict=True))
            yield from self.style.lines((text.rstrip(), 0))
        if "traceparent" in message:
            text = "Trace".ljust(_LABEL_CHARS) + escaped(message["traceparent"])
            yield from self.style.lines((text, 0))

    def steps(self, events: Sequence[Json]) -> Iterator[str]:
        """Yield the line of each event, or its lines where it is wider than the terminal."""
        self._widen(events)
        for event in events:
            name, details = str(event["event"]), self._details(event)
            shown = (self._indent(event) + name).ljust(self._name_chars)
            yield from self.style.lines(
                (_time(event["time"]), _DIM),
                (f"  {shown}" if details else f"  {shown.rstrip()}", _COLOURS.get(name, 0)),
                (f"  {details}" if details else "", 0),
            )

    def incomplete(self) -> Iterator[str]:
        """Yield the gaps of the trace and their reasons."""
        for gap in self.trace["incomplete"]:
            between = [
                f"{word} {_time(gap[name])}"
                for word, name in (("from", "from"), ("up to", "to"))
                if name in gap
            ]
            where = " ".join(["steps", *between])
            yield f"the trace of {self._id} is incomplete: {where} may be missing: {gap['reason']}"

    def _widen(self, events: Sequence[Json]) -> None:
        groups = {event["group"] for event in self.trace["events"] if "group" in event}
        groups |= {event["group"] for event in events if "group" in event}
        if len(groups) > 1:
            self._group_chars = max(self._group_chars, *(len(_value(group)) for group in groups))
        shown = [len(self._indent(event)) + len(event["event"]) for event in events]
        self._name_chars = max(self._name_chars, *shown, 0)

    def _indent(self, event: Json) -> str:
        return _COPY_INDENT if event.get("id", self._id) != self._id else ""

    def _details(self, event: Json) -> str:
        names = [name for name in _DETAILS if name in event]
        if event["event"] != "DELIVERED" and "attempt" in names:
            names.remove("attempt")  # the same as of the delivery before
        names += [name for name in event if name not in _DETAILS and name not in _UNTOLD]
        details = [f"id={event['id']}"] if self._indent(event) else []
        details += [self._detail(event, name) for name in names]
        if "reason" in event:
            details.append(f"reason={_value(event['reason'])}")
        if "until" in event:
            details.append(f"visible until {_until(event['until'], event['time'])}")
        return " ".join(details)

    def _detail(self, event: Json, name: str) -> str:
        if name == "group":
            return f"group={_value(event[name])}".ljust(len("group=") + self._group_chars)
        value = _due(event[name], event["time"]) if name == "due" else event[name]
        return f"{name}={_value(value)}"

    def _standing(self) -> Iterator[str]:
        """Yield the current state, which has no time."""
        message = self.trace["message"]
        if "nodes" in message:
            yield from self._now(
                "REPLICATED", f"nodes=[{', '.join(map(_value, message['nodes']))}]"
            )
        if "retained_until" in message:
            yield from self._now("RETAINED", f"until {_second(message['retained_until'])}")

    def _now(self, name: str, text: str) -> Iterator[str]:
        return self.style.lines((f"{'':{_TIME_CHARS}}  {name:{self._name_chars}}  {text}", _DIM))

    def _summary(self) -> Iterator[str]:
        attempts, took_ms = self.trace["attempts"], self.trace["publish_to_ack_ms"]
        text = f"{attempts} attempt" + ("" if attempts == 1 else "s")
        if took_ms is not None:
            text += f" · {took_ms / 1000:.3f} s from publish to ack"
        elif any(event["event"] == "ACKNOWLEDGED" for event in self.trace["events"]):
            text += " · acknowledged"
        else:
            text += " · no ack is known" if self.trace["incomplete"] else " · not acknowledged"
        return self.style.lines((text, 0))


def _hanging(width: int) -> str:
    """Return the indent of continued lines: below the name of a step, if there is room."""
    return " " * min(_TIME_CHARS + 2, width // 2)


def _spans(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Yield where the lines of a text begin and end; they break at spaces, long words anywhere."""
    begin, room = 0, width
    while width and width_of(text[begin:]) > room:
        end = begin + max(1, fitting(text[begin:], room))
        space = text.rfind(" ", begin, end + 1)
        if space > begin and not text[begin:space].isspace():
            end = space
        yield begin, begin + len(text[begin:end].rstrip())
        begin = len(text) - len(text[end:].lstrip())
        room = width - len(_hanging(width))
    yield begin, len(text)


def _key(message: Json) -> str | None:
    has_key = message.get("key") is not None or "key_base64" in message
    return shown_field(message, "key") if has_key else None


def _size(size_bytes: int | None) -> str | None:
    if size_bytes is None:
        return None
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} B"


def _time(time: str) -> str:
    return time.replace("T", " ")


def _second(time: str) -> str:
    """Return a time without its fraction, as ``2025-01-15 10:30:00Z``."""
    return f"{_time(time)[:19]}Z"


def _until(until: str, now: str) -> str:
    """Return an end time: the time of day alone on the day of ``now``."""
    return until[11:19] if until[:10] == now[:10] else _second(until)


def _due(due: str, now: str) -> str:
    """Return a due time with milliseconds, the resolution of delays."""
    return due[11:23] if due[:10] == now[:10] else f"{due[:23]}Z"


def _value(value: object) -> str:
    """Return a value on one line, quoted if its end would be unclear."""
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    text = escaped(value)
    if text and " " not in text and '"' not in text:
        return text
    quoted = text.replace('"', '\\"')
    return f'"{quoted}"'
