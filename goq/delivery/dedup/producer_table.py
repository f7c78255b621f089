"""The latest batches of each producer of a partition: they make retries exact.

A producer numbers its messages in each partition, from any number on and without gaps. The last few
batches of each producer are remembered; a batch that comes again is answered with its offset. A
batch of which nothing was stored, because the partition had all of it, uses up no numbers. The
table is bounded: when it is full, the producer that wrote longest ago is forgotten, and its next
batch is taken as a first one. A producer with a name only numbers nothing: none of its batches is
remembered.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from goq import limits
from goq.delivery.events.event import SnapshotProducers
from goq.errors import OutOfOrderSequence, ProducerFenced
from goq.frame.header import FrameHeader


class ProducerBatch(NamedTuple):
    """A batch that the partition has.

    ``message_count`` is the producer's; ``left_out`` of them were not stored with the batch,
    because the partition had them already.
    """

    first_sequence: int
    message_count: int
    offset: int
    time_us: int
    left_out: int = 0

    @property
    def end_offset(self) -> int:
        """The offset after the batch."""
        return self.offset + self.message_count - self.left_out


class _Producer(NamedTuple):
    epoch: int
    batches: deque[ProducerBatch]


class ProducerTable:
    """The latest batches of up to ``producers_max`` producers of a partition."""

    def __init__(self, producers_max: int = limits.PRODUCERS_PER_PARTITION_MAX) -> None:
        self._producers_max = producers_max
        self._producers: OrderedDict[int, _Producer] = OrderedDict()

    def find(self, header: FrameHeader) -> ProducerBatch | None:
        """Return the batch that is stored already, None if this one is next.

        Raises ``ProducerFenced`` for an old epoch, and ``OutOfOrderSequence`` for a batch that
        neither follows the last one nor is remembered.
        """
        producer_id = header.sequenced_producer_id
        known = self._producers.get(producer_id) if producer_id else None
        if known is None or header.producer_epoch > known.epoch:
            return None
        if header.producer_epoch < known.epoch:
            raise ProducerFenced(
                f"producer {header.producer_id} is in epoch {known.epoch};"
                f" epoch {header.producer_epoch} is fenced"
            )
        for batch in known.batches:
            if (batch.first_sequence, batch.message_count) == (
                header.first_sequence,
                header.producer_count,
            ):
                return batch
        last = known.batches[-1]
        expected = last.first_sequence + last.message_count
        if header.first_sequence != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} must continue with sequence {expected},"
                f" not {header.first_sequence}"
            )
        return None

    def progress(self, producer_id: int) -> tuple[int, int] | None:
        """Return a producer's epoch and next sequence, None for an unknown producer."""
        known = self._producers.get(producer_id)
        if known is None:
            return None
        last = known.batches[-1]
        return known.epoch, last.first_sequence + last.message_count

    def offset_of(self, producer_id: int, sequence: int) -> int | None:
        """Return the offset of a producer's message, None where it is not remembered."""
        known = self._producers.get(producer_id)
        for batch in known.batches if known is not None else ():
            if batch.first_sequence <= sequence < batch.first_sequence + batch.message_count:
                return batch.offset + sequence - batch.first_sequence
        return None

    def add(self, header: FrameHeader, offset: int, time_us: int) -> None:
        """Remember a batch that was appended at ``offset``."""
        if header.sequenced_producer_id:
            batch = ProducerBatch(
                header.first_sequence, header.producer_count, offset, time_us, header.left_out
            )
            self._add(header.producer_id, header.producer_epoch, batch)

    def _add(self, producer_id: int, epoch: int, batch: ProducerBatch) -> None:
        known = self._producers.get(producer_id)
        if known is None or known.epoch != epoch:
            batches: deque[ProducerBatch] = deque(maxlen=limits.PRODUCER_BATCHES_REMEMBERED)
            known = self._producers[producer_id] = _Producer(epoch, batches)
            if len(self._producers) > self._producers_max:
                self._producers.popitem(last=False)
        known.batches.append(batch)
        self._producers.move_to_end(producer_id)

    def truncate(self, end_offset: int) -> None:
        """Forget batches that end after ``end_offset``: they will come again as new."""
        for producer_id, known in list(self._producers.items()):
            while known.batches and known.batches[-1].end_offset > end_offset:
                known.batches.pop()
            if not known.batches:
                del self._producers[producer_id]

    def end_offset(self) -> int:
        """Return the highest end offset of a batch."""
        return max((known.batches[-1].end_offset for known in self._producers.values()), default=0)

    def copy(self) -> ProducerTable:
        """Return an independent copy of the table."""
        copied = ProducerTable(self._producers_max)
        copied.restore(self.snapshot())
        return copied

    def snapshot(self) -> SnapshotProducers:
        """Return the table as an event, the producer that wrote longest ago first."""
        return SnapshotProducers(
            [
                (producer_id, known.epoch, list(known.batches))
                for producer_id, known in self._producers.items()
            ]
        )

    def snapshot_of(self, producer_id: int) -> SnapshotProducers:
        """Return one producer's batches as an event, an empty one for an unknown producer."""
        known = self._producers.get(producer_id)
        if known is None:
            return SnapshotProducers([])
        return SnapshotProducers([(producer_id, known.epoch, list(known.batches))])

    def clear(self) -> None:
        """Forget everything."""
        self._producers.clear()

    def restore(self, snapshot: SnapshotProducers) -> None:
        """Add the batches of one event of a snapshot."""
        for producer_id, epoch, batches in snapshot.producers:
            for batch in batches:
                self._add(producer_id, epoch, ProducerBatch(*batch))
