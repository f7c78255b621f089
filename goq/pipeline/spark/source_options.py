"""The options of the Spark source, with the names of Spark's Kafka source where it has them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from goq.client import Client
from goq.errors import InvalidInput
from goq.pipeline.arrow.tables import MESSAGES_TABLE, TABLES
from goq.pipeline.spark.offset_ranges import (
    Offsets,
    option_list,
    parse_offsets,
    parse_times,
)
from goq.units import parse_duration_ms, parse_size_bytes

QUERY_PATIENCE: Final = "10s"
"""The time that the plan of a query waits for a node; a wrong URL fails after it."""
STREAM_PATIENCE: Final = "1m"
"""A stream outlives the restart of a node."""
TASK_PATIENCE: Final = "5m"
"""A task has been planned with the node: that was there a moment ago."""

_KNOWN = {
    "table": "messages",
    "server": "http://127.0.0.1:8080",
    "token": "",
    "topic": "",
    "subscribe": "",
    "subscribepattern": "",
    "startingoffsets": "",
    "endingoffsets": "",
    "startingtimestamp": "",
    "startingoffsetsbytimestamp": "",
    "endingtimestamp": "",
    "endingoffsetsbytimestamp": "",
    "includedeleted": "false",
    "failondataloss": "true",
    "maxoffsetspertrigger": "0",
    "maxbytespertrigger": "0",
    "minoffsetspertrigger": "0",
    "maxtriggerdelay": "15m",
    "minpartitions": "1",
    "partitions": "",
    "columns": "",
}
_OF_MESSAGES = (
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxBytesPerTrigger",
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a reading query; pickled into tasks."""

    table: str
    servers: tuple[str, ...]
    token: str | None
    topics: tuple[str, ...]
    pattern: str | None
    starting: str | Offsets | None
    ending: str | Offsets
    starting_timestamp: str | Offsets | None
    ending_timestamp: str | Offsets | None
    include_deleted: bool
    fail_on_data_loss: bool
    offsets_per_trigger_max: int | None
    bytes_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_s_max: float
    tasks_min: int
    partitions: frozenset[int] | None
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, written: Mapping[str, str]) -> SourceOptions:
        """Return the options of a query; raise ``InvalidInput`` naming the invalid one."""
        options = _named(written)
        topics, pattern = _topics(options)
        table = options["table"]
        if table not in TABLES:
            raise InvalidInput(
                f"there is no table {table[:80]!r}; there are {', '.join(TABLES)}", field="table"
            )
        for name in _OF_MESSAGES:
            if options[name.lower()] not in ("", "0") and table != MESSAGES_TABLE.name:
                raise InvalidInput(
                    f"{name} is for messages; filter events by their time", field=name
                )
        starting_timestamp = _times(options, "starting")
        ending_timestamp = _times(options, "ending")
        starting, ending = options["startingoffsets"], options["endingoffsets"] or "latest"
        return cls(
            table=table,
            servers=tuple(option_list(options["server"])),
            token=options["token"] or None,
            topics=tuple(topics),
            pattern=pattern,
            starting=parse_offsets(starting, "startingOffsets") if starting else None,
            ending=parse_offsets(ending, "endingOffsets"),
            starting_timestamp=starting_timestamp,
            ending_timestamp=ending_timestamp,
            include_deleted=_truth(options["includedeleted"], "includeDeleted"),
            fail_on_data_loss=_truth(options["failondataloss"], "failOnDataLoss"),
            offsets_per_trigger_max=_count(options["maxoffsetspertrigger"], "maxOffsetsPerTrigger")
            or None,
            bytes_per_trigger_max=_size_bytes(options["maxbytespertrigger"]) or None,
            offsets_per_trigger_min=_count(options["minoffsetspertrigger"], "minOffsetsPerTrigger")
            or None,
            trigger_delay_s_max=_delay_s(options["maxtriggerdelay"]),
            tasks_min=_count(options["minpartitions"], "minPartitions"),
            partitions=frozenset(
                _count(one, "partitions") for one in option_list(options["partitions"])
            )
            or None,
            columns=tuple(_columns(option_list(options["columns"]), TABLES[table].schema.names)),
        )

    def client(self, patience: str = QUERY_PATIENCE) -> Client:
        """Return a client of the node with these options; a context manager."""
        return Client(list(self.servers), token=self.token, retries=patience)


def _named(written: Mapping[str, str]) -> dict[str, str]:
    """Return all options, by their names in lower case; raise ``InvalidInput`` for unknown ones."""
    given = {name.lower(): value for name, value in dict(written).items() if name != "path"}
    if "provider" in given:
        raise InvalidInput(
            "Spark does not give a Python source the options of a table when it reads it: use"
            " CREATE TEMPORARY VIEW … USING goq OPTIONS (…), in each session"
        )
    for name in given:
        if name not in _KNOWN:
            raise InvalidInput(
                f"unknown option {name[:80]!r}; there are {', '.join(sorted(_KNOWN))}",
                field=name[:80],
            )
    return {**_KNOWN, **given}


def _topics(options: Mapping[str, str]) -> tuple[Sequence[str], str | None]:
    """Return the topic names, or a pattern of names."""
    ways = [name for name in ("topic", "subscribe", "subscribepattern") if options[name]]
    topics = option_list(options["topic"] or options["subscribe"])
    pattern = options["subscribepattern"] or None
    if len(ways) != 1 or not (topics or pattern):
        raise InvalidInput("give one of topic, subscribe and subscribePattern", field="topic")
    if pattern is not None:
        _check_pattern(pattern)
    return topics, pattern


def _times(options: Mapping[str, str], end: str) -> str | Offsets | None:
    """Return the time of one end of the read: of all partitions, or of each."""
    names = [f"{end}Offsets", f"{end}Timestamp", f"{end}OffsetsByTimestamp"]
    given = [name for name in names if options[name.lower()]]
    if len(given) > 1:
        raise InvalidInput(f"give {' or '.join(given)}, not both", field=given[0])
    by_partition = options[names[2].lower()]
    if by_partition:
        return parse_times(by_partition, names[2])
    return options[names[1].lower()] or None


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidInput(
            f"{pattern[:200]!r} is no pattern: {error}", field="subscribePattern"
        ) from None


def _truth(text: str, field: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidInput(f"{text[:50]!r} is neither true nor false", field=field)
    return text.lower() == "true"


def _count(text: str, field: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidInput(f"{text[:50]!r} is not a number", field=field)
    return int(text)


def _size_bytes(text: str) -> int:
    return 0 if text == "0" else parse_size_bytes(text, field="maxBytesPerTrigger")


def _delay_s(text: str) -> float:
    return parse_duration_ms(text, field="maxTriggerDelay") / 1000


def _columns(chosen: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    for name in chosen:
        if chosen.count(name) > 1:
            raise InvalidInput(f"the column {name[:80]!r} is named twice", field="columns")
        if name not in known:
            raise InvalidInput(
                f"there is no column {name[:80]!r}; there are {', '.join(known)}", field="columns"
            )
    return chosen or known
