"""The internal topics beside a target topic of Spark: staged rows, and the ledger of commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from goq import limits
from goq.client import Client
from goq.client._sync.publish.frame_publisher import FramePublisher
from goq.client.delivery_options import lanes_of
from goq.client.messages import Published, ReadBatch
from goq.client.protocol.frames import StoredFrame
from goq.client.results.topic import TopicDescription
from goq.config.topic import TopicSettings
from goq.errors import Conflict, GoqError, MessageNotFound
from goq.frame.encoder import ProducerMark
from goq.frame.header import HEADER_BYTES, parse_header
from goq.frame.slice import slice_frame
from goq.pipeline.spark.transactions import LedgerEntry, Staged

STAGED_SUFFIX: Final = ".staged"
COMMITS_SUFFIX: Final = ".commits"
REQUEST_BYTES: Final = 4 * limits.MIB
_STAGED_FOR = {"retention.age": "1d", "retention.bytes": "none", "segment.age": "1h"}
_SAME_AS_TARGET = ("priority.lanes", "delay.max", "fsync")
_LEDGER_KEPT = {
    "retention.age": "none",
    "retention.bytes": "none",
    "cleanup": "compact",
    "dedup.window": "7d",
}


class StagedTopic:
    """A target topic and its staging topic, which is created if missing.

    The staging topic has the same settings, so it rejects what the target would reject.
    """

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._publisher = FramePublisher(client)
        self.topic = topic
        self.staging = topic + STAGED_SUFFIX
        found = self._publisher.open_topic(topic)
        self.partitions = len(found.partitions)
        self.lanes: TopicSettings = lanes_of(found.settings["priority.lanes"])
        same = {name: found.settings[name] for name in _SAME_AS_TARGET}
        self._staging_id = _ensure(client, self.staging, self.partitions, _STAGED_FOR, same).id

    def staged(self, stored: StoredFrame) -> Staged:
        """Return the range of a frame that was stored in the staging topic."""
        end = stored.offset + stored.count
        return Staged(stored.partition, stored.offset, end, self._staging_id)

    def check_staged(self, staged: Sequence[Staged]) -> None:
        """Raise ``Conflict`` if ranges are of a staging topic that is not there any more."""
        if self._is_other(staged):
            raise Conflict(
                f"{self.staging} was deleted since rows were staged in it: nothing of them is"
                " published, so run the query again",
                field="topic",
            )

    def _is_other(self, staged: Sequence[Staged]) -> bool:
        known = ("", self._staging_id)
        return self._staging_id != "" and any(each.topic_id not in known for each in staged)

    def reached(self, producer_id: int) -> Mapping[int, int]:
        """Return the producer's next sequence in each partition that knows it."""
        return self._publisher.next_sequences(self.topic, producer_id)

    def frames(self, staged: Sequence[Staged], skipped: int) -> Iterator[Sequence[bytes]]:
        """Yield the staged frames of one partition, from message number ``skipped`` on."""
        if self._is_other(staged):
            raise _unfinishable(f"{self.staging} was deleted before they were published")
        gathered: list[bytes] = []
        size_bytes = 0
        for partition, start, end, _ in staged:
            at = min(start + skipped, end)
            skipped -= at - start
            while at < end:
                for frame, after in self._read(partition, at, end):
                    gathered.append(frame)
                    size_bytes += len(frame)
                    at = after
                    if size_bytes >= REQUEST_BYTES:
                        yield gathered
                        gathered, size_bytes = [], 0
        if gathered:
            yield gathered

    def _read(self, partition: int, start: int, end: int) -> list[tuple[bytes, int]]:
        """Return staged frames from ``start`` on, with their ends; at least one."""
        limit = min(end - start, limits.READ_MESSAGES_MAX)
        piece = self._client.read(self.staging, partition=partition, offset=start, limit=limit)
        is_damaged = any(d.start_offset < end and start < d.end_offset for d in piece.damaged)
        if is_damaged or not piece.frames or piece.frames[0].header.base_offset > start:
            raise _gone(self.staging, piece, start, is_damaged)
        return [
            (bytes(slice_frame(view, start, end)), min(view.header.end_offset, end))
            for view in piece.frames
            if view.header.base_offset < end
        ]

    def publish(
        self, partition: int, frames: Sequence[bytes], producer_id: int, sequence: int
    ) -> int:
        """Publish frames with sequences from ``sequence`` on; return the next one."""
        placed: list[tuple[int, bytes]] = []
        for frame in frames:
            marked, count = _marked(frame, ProducerMark(producer_id, 0, sequence))
            placed.append((partition, marked))
            sequence += count
        self._publisher.publish(self.topic, placed)
        return sequence


class TopicLedger:
    """The ledger of all transactions into a topic, stored in a topic.

    Entries of an earlier topic of the name do not count.
    """

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic_id = FramePublisher(client).open_topic(topic).id
        self._topic = topic + COMMITS_SUFFIX
        _ensure(client, self._topic, 1, _LEDGER_KEPT, {})

    def newest(self, transaction: str) -> LedgerEntry | None:
        """Return the entry of the latest batch: its ``done`` if it has one, else its ``begin``."""
        entries = self._entries(transaction)
        latest = max([entry.batch for entry in entries], default=None)
        same = [entry for entry in entries if entry.batch == latest]
        return next((entry for entry in same if entry.done), same[0] if same else None)

    def begin(self, transaction: str, entry: LedgerEntry) -> LedgerEntry:
        """Append a ``begin``, unless the batch has one; return the batch's entry."""
        stored = self._append(transaction, entry, f"{transaction}/{entry.batch}")
        return self._entry(stored.id.offset) if stored.duplicate else entry

    def done(self, transaction: str, entry: LedgerEntry) -> None:
        """Append the ``done`` of a batch."""
        self._append(transaction, entry, f"{transaction}/{entry.batch}/done")

    def _append(self, transaction: str, entry: LedgerEntry, dedup_text: str) -> Published:
        value = msgspec.json.encode(msgspec.structs.replace(entry, topic_id=self._topic_id))
        if self._topic_id:
            dedup_text = f"{self._topic_id}/{dedup_text}"
        return self._client.publish(self._topic, value, key=transaction, dedup_id=dedup_text)

    def _entries(self, transaction: str) -> list[LedgerEntry]:
        """Return the entries of a transaction's latest batch, perhaps after earlier ones."""
        found: list[int] = []
        cursor: str | None = None
        while True:
            try:
                page = self._client.search_traces(self._topic, key=transaction, cursor=cursor)
            except MessageNotFound:
                return []
            messages = [trace.message for trace in page.traces]
            found += [message.offset for message in messages if message.state != "compacted"]
            cursor = page.next
            if found or cursor is None:
                entries = [self._entry(offset) for offset in sorted(found)]
                known = ("", self._topic_id)
                return [e for e in entries if not self._topic_id or e.topic_id in known]

    def _entry(self, offset: int) -> LedgerEntry:
        piece = self._client.read(self._topic, partition=0, offset=offset, limit=1)
        for message in piece.messages:
            if message.offset == offset and message.value is not None:
                return msgspec.json.decode(message.value, type=LedgerEntry)
        raise Conflict(
            f"{self._topic} does not have its entry at offset {offset} any more: somebody deleted"
            " of it, and what was committed is not known; use another txnId",
            field="txnId",
        )


def _ensure(
    client: Client,
    name: str,
    partitions: int,
    settings: Mapping[str, str],
    same: Mapping[str, object],
) -> TopicDescription:
    """Return a topic, created, or given as many partitions and the settings ``same``."""
    found = FramePublisher(client).ensure_topic(name, partitions, {**settings, **same})
    if len(found.partitions) < partitions:
        client.alter_topic(name, partitions=partitions)
    if any(found.settings[key] != value for key, value in same.items()):
        client.alter_topic(name, settings=dict(same))
    return found


def _marked(frame: bytes, mark: ProducerMark) -> tuple[bytes, int]:
    """Return a stored frame with a producer's sequence set, and its message count."""
    header = parse_header(frame)._replace(
        base_offset=0,
        append_time_us=0,
        leader_epoch=0,
        producer_epoch=mark.epoch,
        producer_id=mark.producer_id,
        first_sequence=mark.first_sequence,
    )
    return header.pack() + frame[HEADER_BYTES:], header.message_count


def _gone(staging: str, piece: ReadBatch, offset: int, is_damaged: bool) -> GoqError:
    why = (
        "some of them are damaged on the node, which goq doctor shows"
        if is_damaged
        else f"what is staged is kept for {_STAGED_FOR['retention.age']}"
    )
    return _unfinishable(
        f"messages from {offset} on of {staging}, partition {piece.partition}, are gone before they"
        f" were published: {why}"
    )


def _unfinishable(why: str) -> GoqError:
    return Conflict(
        f"{why}. The batch cannot be finished: write what is missing of it under another txnId",
        field="txnId",
    )
