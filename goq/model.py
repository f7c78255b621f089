"""The values that every layer shares: names, ids, offset ranges, messages, receipts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from goq import limits
from goq.errors import InvalidInput, NotAllowed, TooLarge

DEAD_LETTERS_SUFFIX = ".dlq"
"""The name of a topic's dead-letter topic is the topic's name and this suffix."""

AUDIT_TOPIC: Final = "__audit"
"""The topic of the audit trail: only the nodes create it, publish to it and change it."""

_NAME = re.compile(rf"(?!\.|__)[A-Za-z0-9._-]{{1,{limits.NAME_CHARS_MAX}}}")

UNTERMINATED_HEADER = "goq-unterminated"
"""A header of the last line of an input without a final delimiter: ``--raw`` then writes none."""


def check_name(name: str, what: str, *, field: str | None = None) -> str:
    """Return ``name`` if it may name a topic or a group. Raises ``InvalidInput``.

    The longest name of a topic leaves room for the suffix of its dead letters.
    """
    if not isinstance(name, str):
        raise InvalidInput(f"a {what} name is str, not {type(name).__name__}", field=field or what)
    if what == "topic" and name == AUDIT_TOPIC:
        return name
    if not _NAME.fullmatch(name.removesuffix(DEAD_LETTERS_SUFFIX) if what == "topic" else name):
        raise InvalidInput(
            f"{what} name {name[:80]!r} is not allowed: use 1 to {limits.NAME_CHARS_MAX} of"
            " A-Z a-z 0-9 . _ -, not starting with '.' or '__'",
            field=field or what,
        )
    return name


def check_text(text: str, field: str) -> str:
    """Return ``text`` if it is text that UTF-8 can hold; else raise ``InvalidInput``."""
    if not isinstance(text, str):
        raise InvalidInput(f"{field} has text that is {type(text).__name__}, not str", field=field)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{field} has a half of a surrogate pair at {error.start}, which UTF-8 cannot hold",
            field=field,
        ) from None
    return text


def check_not_internal(topic: str) -> None:
    """Raise ``NotAllowed`` for a topic that clients may read, and not change."""
    if topic == AUDIT_TOPIC:
        raise NotAllowed(
            f"{topic} is the audit trail: clients read it, and only the nodes write it",
            field="topic",
        )


def check_partitions(count: int) -> int:
    """Return ``count`` if a topic may have as many partitions. Raises ``InvalidInput``."""
    if not 1 <= count <= limits.PARTITIONS_PER_TOPIC_MAX:
        raise InvalidInput(
            f"a topic has 1 to {limits.PARTITIONS_PER_TOPIC_MAX} partitions, not {count}",
            field="partitions",
        )
    return count


NATIVE_TOPIC_IDS: Final = 2**52
"""The lowest id that is drawn for a new topic. An earlier topic has a lower one."""

NO_TOPIC_ID: Final = 0


def draw_topic_id(bits: Callable[[int], int]) -> int:
    """Return an id for a new topic; ``bits`` returns a random number of so many bits."""
    return NATIVE_TOPIC_IDS + bits(52)


def format_topic_id(topic_id: int) -> str:
    """Return the text of a topic's id: 14 hexadecimal digits."""
    return f"{topic_id:014x}"


def topic_folder(topic: str, topic_id: int) -> str:
    """Return the name of a topic's folder: ``name~id``, or ``name`` if the id was not drawn.

    No two topics share the latter: a name was free only once the earlier topic's files were gone.
    """
    return topic if topic_id < NATIVE_TOPIC_IDS else f"{topic}~{format_topic_id(topic_id)}"


def parse_topic_folder(folder: str) -> tuple[str, int]:
    """Return the topic and the drawn id of a folder, id 0 without one. Raises ``InvalidInput``."""
    match = _FOLDER.fullmatch(folder)
    topic, digits = (folder, "0") if match is None else match.groups()
    return check_name(topic, "topic"), int(digits, 16)


_FOLDER = re.compile(r"([^~]+)~(1[0-9a-f]{13})", re.ASCII)


class MessageId(NamedTuple):
    """The place of a message, which is also its index. Written ``topic:partition:offset``."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Parse a message id from the right, so that a topic may have any name that is allowed."""
        topic, partition, offset = _split_id(text)
        return cls(check_name(topic, "topic", field="id"), partition, offset)


def _split_id(text: str) -> tuple[str, int, int]:
    parts = text.rsplit(":", 2)
    if len(parts) == 3 and all(p.isascii() and p.isdigit() and len(p) < 20 for p in parts[1:]):
        return parts[0], int(parts[1]), int(parts[2])
    raise InvalidInput(
        f"{text[:300]!r} is not a message id; one reads topic:partition:offset,"
        " as in orders:2:45678",
        field="id",
    )


class OffsetRange(NamedTuple):
    """Offsets from ``start`` up to but not including ``end``."""

    start: int
    end: int


class Receipt(NamedTuple):
    """The right to settle the messages from ``start`` up to ``end``, given with a lease.

    Written ``partition:token:start``, or ``partition:token:start+count`` for more than one. The
    token is the fence: it names one lease for ever, and no later lease has the same token. Its
    text includes the topic's id, see :func:`fence_of`: a new topic of the same name has another.
    """

    partition: int
    token: int
    start: int
    end: int
    fenced_id: int = NO_TOPIC_ID

    def __str__(self) -> str:
        tail = "" if self.end == self.start + 1 else f"+{self.end - self.start}"
        return f"{self.partition}:{self.fence}:{self.start}{tail}"

    @property
    def fence(self) -> int:
        """The token as its text has it, whether or not the topic's id was split from it."""
        return self.fenced_id << _TOKEN_BITS | self.token

    def covers(self, other: Receipt) -> bool:
        """Return whether this receipt settles all messages of ``other``, by the same lease."""
        return (
            (self.partition, self.fence) == (other.partition, other.fence)
            and self.start <= other.start
            and other.end <= self.end
        )

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Parse what ``str`` wrote. Raises ``InvalidInput`` for anything else."""
        match = _RECEIPT.fullmatch(text)
        if match is None:
            raise InvalidInput(
                f"{text[:100]!r} is not a receipt; send back what receive gave", field="receipts"
            )
        partition, token, start, count = match.groups()
        fenced_id, own = divmod(int(token), 1 << _TOKEN_BITS)
        first = int(start)
        return cls(int(partition), own, first, first + int(count or 1), fenced_id)


def parse_receipts(texts: Iterable[str]) -> list[Receipt]:
    """Parse receipts as :meth:`Receipt.parse` does; those of one lease cost less than one each."""
    found: list[Receipt] = []
    lease = ""
    known: tuple[int, int, int] | None = None
    for text in texts:
        before, _, tail = text.rpartition(":")
        if (
            known is not None
            and before == lease
            and tail.isdecimal()
            and tail.isascii()
            and len(tail) <= _OFFSET_DIGITS_MAX
        ):
            partition, token, fenced_id = known
            start = int(tail)
            found.append(Receipt(partition, token, start, start + 1, fenced_id))
            continue
        receipt = Receipt.parse(text)
        lease, known = before, (receipt.partition, receipt.token, receipt.fenced_id)
        found.append(receipt)
    return found


def fenced_id_of(topic_id: int) -> int:
    """Return the id in a topic's receipts: 0 if it was not drawn, so old receipts stay valid."""
    return topic_id if topic_id >= NATIVE_TOPIC_IDS else NO_TOPIC_ID


def fence_of(topic_id: int, token: int) -> int:
    """Return a lease's token as consumers get it: above its 64 bits is the topic's id."""
    return fenced_id_of(topic_id) << _TOKEN_BITS | token


_TOKEN_BITS: Final = 64
_OFFSET_DIGITS_MAX: Final = 18

_RECEIPT = re.compile(r"(\d{1,9}):(\d{1,36}):(\d{1,18})(?:\+([1-9]\d{0,8}))?", re.ASCII)

Header = tuple[str, bytes]

DEDUP_HASH_BYTES = 16


class Message(msgspec.Struct, frozen=True):
    """One message as it is published or read.

    ``value`` None is a tombstone, ``key`` None a message without key; both differ from empty.
    Headers keep their order and may repeat a name. ``lane`` None is the topic's default lane. Times
    are milliseconds since 1970, 0 for none: delivered not before ``deliver_at_ms``, and not from
    ``expires_at_ms`` on. In a message to publish, a negative ``deliver_at_ms`` is a delay and a
    negative ``expires_at_ms`` a time to live, which the leader counts from its time. ``dedup_id``
    is the 16-byte hash of the producer's dedup id.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    lane: int | None = None
    deliver_at_ms: int = 0
    expires_at_ms: int = 0
    tenant: str | None = None
    dedup_id: bytes | None = None


def has_delivery_options(message: Message) -> bool:
    """Return whether a message has any option of its delivery: lane, times, tenant or dedup id."""
    return (
        message.lane is not None
        or message.deliver_at_ms != 0
        or message.expires_at_ms != 0
        or message.tenant is not None
        or message.dedup_id is not None
    )


def delivery_ms(at_us: int, now_us: int, *, is_by_clock: bool) -> int:
    """Return when to deliver, as a message to publish states it; 0 for at once.

    ``now_us`` is by another clock than the leader's, and perhaps ahead of it. So a time that is
    counted from now becomes a delay, and one that has just passed goes along: the leader finds out
    whether it has. One that is long past does not matter.
    """
    if is_by_clock:
        return min(0, (now_us - at_us) // 1000)
    return 0 if at_us <= now_us - 1000 * limits.CLOCK_SLACK_MS else -(-at_us // 1000)


def check_tenant(name: str, *, field: str) -> str:
    """Return ``name`` if it may name a tenant. Raises ``InvalidInput``."""
    if not 1 <= len(check_text(name, field).encode()) <= limits.TENANT_NAME_BYTES_MAX:
        raise InvalidInput(
            f"a tenant's name has 1 to {limits.TENANT_NAME_BYTES_MAX} bytes", field=field
        )
    return name


def check_client_id(name: str, *, field: str) -> str:
    """Return ``name`` if it may be a client id. Raises ``InvalidInput``."""
    if not isinstance(name, str):
        raise InvalidInput(f"{field} is text, not {type(name).__name__}", field=field)
    if not 1 <= len(name) <= limits.CLIENT_ID_CHARS_MAX or not name.isprintable():
        raise InvalidInput(
            f"a client id has 1 to {limits.CLIENT_ID_CHARS_MAX} printable characters", field=field
        )
    if name != name.strip():
        raise InvalidInput("a client id has no space at its beginning or end", field=field)
    return name


def check_dedup_text(text: str, *, field: str) -> str:
    """Return ``text`` if it may be a dedup id. Raises ``InvalidInput``."""
    if not 1 <= len(check_text(text, field).encode()) <= limits.DEDUP_ID_BYTES_MAX:
        raise InvalidInput(f"a dedup id has 1 to {limits.DEDUP_ID_BYTES_MAX} bytes", field=field)
    return text


def check_message(message: Message, *, field: str) -> None:
    """Check a message against the limits. Raises ``TooLarge`` or ``InvalidInput``."""
    if message.value is not None and len(message.value) > limits.VALUE_BYTES_MAX:
        raise TooLarge(
            f"a value of {len(message.value)} bytes is over the limit of {limits.VALUE_BYTES_MAX}",
            field=f"{field}.value",
        )
    if message.key is not None and len(message.key) > limits.KEY_BYTES_MAX:
        raise TooLarge(
            f"a key of {len(message.key)} bytes is over the limit of {limits.KEY_BYTES_MAX}",
            field=f"{field}.key",
        )
    if message.headers:
        _check_headers(message.headers, field)
    if message.tenant is not None:
        check_tenant(message.tenant, field=f"{field}.tenant")
    if message.lane is not None and not 0 <= message.lane < limits.LANES_MAX:
        raise InvalidInput(
            f"a lane is 0 to {limits.LANES_MAX - 1}, not {message.lane}", field=f"{field}.priority"
        )
    if not -limits.DELAY_MS_MAX <= message.deliver_at_ms <= limits.TIME_MS_MAX:
        raise InvalidInput("a time is from 1970 to 9999", field=f"{field}.deliver_at")
    if not -limits.TTL_MS_MAX <= message.expires_at_ms <= limits.TIME_MS_MAX:
        raise InvalidInput("a time is from 1970 to 9999", field=f"{field}.ttl")
    if message.dedup_id is not None and len(message.dedup_id) != DEDUP_HASH_BYTES:
        raise InvalidInput(
            f"the hash of a dedup id has {DEDUP_HASH_BYTES} bytes", field=f"{field}.dedup_id"
        )


def _check_headers(headers: Sequence[Header], field: str) -> None:
    if len(headers) > limits.HEADERS_PER_MESSAGE_MAX:
        raise TooLarge(
            f"{len(headers)} headers are over the limit of"
            f" {limits.HEADERS_PER_MESSAGE_MAX} a message",
            field=f"{field}.headers",
        )
    total_bytes = 0
    for name, value in headers:
        name_bytes = len(name.encode())
        if not 1 <= name_bytes <= limits.HEADER_NAME_BYTES_MAX:
            raise InvalidInput(
                f"a header name has 1 to {limits.HEADER_NAME_BYTES_MAX} bytes, not {name_bytes}",
                field=f"{field}.headers",
            )
        total_bytes += name_bytes + len(value)
    if total_bytes > limits.HEADERS_BYTES_MAX:
        raise TooLarge(
            f"headers of {total_bytes} bytes are over the limit of {limits.HEADERS_BYTES_MAX}",
            field=f"{field}.headers",
        )


class Acks(StrEnum):
    """The replicas that store a publish before its acknowledgement: in-sync set or leader."""

    QUORUM = "quorum"
    LEADER = "leader"
