"""The options of the Spark sink, and the columns that it accepts."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from goq import limits
from goq.client import Client
from goq.errors import InvalidInput, Unavailable
from goq.model import check_name
from goq.pipeline.spark.offset_ranges import option_list
from goq.pipeline.spark.transaction_topics import COMMITS_SUFFIX, STAGED_SUFFIX

_KNOWN = {
    "topic": "",
    "server": "http://127.0.0.1:8080",
    "token": "",
    "txnid": "",
    "batchmessages": "10000",
}
_SPARKS_OWN = ("path", "checkpointlocation")
PATIENCE: Final = "5m"
NAME_CHARS_MAX: Final = limits.NAME_CHARS_MAX - max(len(STAGED_SUFFIX), len(COMMITS_SUFFIX))

_BYTES = ("binary", "string")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_HEADERS = tuple(f"array<struct<key:string,value:{kind}>>" for kind in _BYTES)
COLUMNS: Final = {
    "key": _BYTES,
    "value": _BYTES,
    "headers": _HEADERS,
    "lane": _WHOLE,
    "priority": ("string",),
    "deliver_at": ("timestamp",),
    "tenant": ("string",),
    "partition": _WHOLE,
}
"""The types that a column may have, as Spark writes them shortly."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a writing query; pickled into tasks.

    ``topic`` is empty if each row names its own.
    ``patience`` is how long a request is retried while a node is busy or does not answer.
    """

    topic: str
    servers: tuple[str, ...]
    token: str | None
    transaction: str | None
    frame_messages_max: int
    patience: str = PATIENCE

    @classmethod
    def parse(cls, written: Mapping[str, str]) -> SinkOptions:
        """Return the options of a query; raise ``InvalidInput`` naming the invalid one."""
        given = {name.lower(): value for name, value in dict(written).items()}
        given = {name: value for name, value in given.items() if name not in _SPARKS_OWN}
        for name in given:
            if name not in _KNOWN:
                raise InvalidInput(
                    f"unknown option {name[:80]!r}; there are {', '.join(sorted(_KNOWN))}",
                    field=name[:80],
                )
        options = {**_KNOWN, **given}
        if len(options["txnid"].encode()) > limits.TXN_ID_BYTES_MAX:
            raise InvalidInput(
                f"a txnId has at most {limits.TXN_ID_BYTES_MAX} bytes", field="txnId"
            )
        return cls(
            topic=check_target(options["topic"]) if options["topic"] else "",
            servers=tuple(option_list(options["server"])),
            token=options["token"] or None,
            transaction=options["txnid"] or None,
            frame_messages_max=_messages(options["batchmessages"]),
        )

    @contextmanager
    def client(self) -> Generator[Client, None, None]:
        """Return a client of the node; errors after retries name the time waited."""
        with Client(list(self.servers), token=self.token, retries=self.patience) as client:
            try:
                yield client
            except Unavailable as error:
                raise type(error)(
                    f"{error.detail} (asked for up to {self.patience}; a query that has a"
                    " checkpoint or a txnId can be run again as it is)",
                    retry_after_ms=error.retry_after_ms,
                ) from error


def check_target(name: str) -> str:
    """Return the name of a topic to write to; raise ``InvalidInput`` for an invalid one."""
    topic = check_name(name, "topic")
    if len(topic) > NAME_CHARS_MAX:
        raise InvalidInput(
            f"the name of a topic that Spark writes to has at most {NAME_CHARS_MAX} characters:"
            f" beside it are others that add {STAGED_SUFFIX} and {COMMITS_SUFFIX}",
            field="topic",
        )
    return topic


def check_columns(columns: Iterable[tuple[str, str]], *, with_topic: bool = False) -> None:
    """Raise ``InvalidInput`` unless rows with these columns and types can be messages.

    ``with_topic``: each row names its topic.
    """
    known = {**COLUMNS, "topic": ("string",)} if with_topic else COLUMNS
    names = set()
    for name, kind in columns:
        if name not in known:
            raise InvalidInput(
                f"goq has no column {name[:80]!r} to write; there are {', '.join(known)}:"
                " select those alone",
                field=name[:80],
            )
        if kind not in known[name]:
            raise InvalidInput(
                f"column {name} is {kind[:200]}; it can be {' or '.join(known[name])}: cast it",
                field=name,
            )
        if name in names:
            raise InvalidInput(f"there are two columns {name}", field=name)
        names.add(name)
    if "value" not in names:
        raise InvalidInput("there is no column value: what are the messages?", field="value")
    if with_topic and "topic" not in names:
        raise InvalidInput("give the topic to write to, as an option or a column", field="topic")
    if {"lane", "priority"} <= names:
        raise InvalidInput("give lane or priority, not both", field="priority")


def _messages(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0
    if not 1 <= number <= limits.FRAME_MESSAGES_MAX:
        raise InvalidInput(
            f"batchMessages is 1 to {limits.FRAME_MESSAGES_MAX}, not {text[:50]!r}",
            field="batchMessages",
        )
    return number
