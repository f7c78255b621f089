"""Route of a producer's progress, which lets it continue without duplicates."""

from __future__ import annotations

from goq.api.codec.messages import json_response
from goq.api.needs import PUBLISH
from goq.api.route import Route
from goq.api.routing_policy import ToAllLeaders
from goq.api.schemas.messages import ProducerOut, ProducerPartitionOut
from goq.api.values import PRODUCER_ID_MAX
from goq.api.views.merge import merge_partitions
from goq.broker.broker import Broker
from goq.broker.partition.partition import Partition
from goq.errors import InvalidInput
from goq.http.message import Request, Response

_DIGITS_MAX = 20


class ProducerRoutes:
    """Progress of producers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/v1/topics/{topic}/producers/{producer_id}",
                self.show,
                "Show how far a producer got in each partition",
                answer=ProducerOut,
                errors=("topic_not_found", "partition_offline"),
                routing=ToAllLeaders(merge_partitions, needs_all=True),
                needs=PUBLISH,
            )
        ]

    async def show(self, _request: Request, name: str, producer_id: str) -> Response:
        """Show a producer's next sequence and the position of its last message.

        Only durable messages count. Partitions that do not know the producer are left out.
        """
        topic = self._broker.topic(name)
        number = _producer_id(producer_id)
        shown = [_shown(partition, number) for partition in topic.partitions]
        return json_response(ProducerOut([each for each in shown if each is not None]))


def _shown(partition: Partition, producer_id: int) -> ProducerPartitionOut | None:
    partition.check_room()  # an offline partition's memory may differ from its disk
    progress = partition.producers.progress(producer_id)
    if progress is None:
        return None
    return ProducerPartitionOut(
        partition=partition.identity.number,
        epoch=progress.epoch,
        next_sequence=progress.next_sequence,
        offset=progress.offset,
    )


def _producer_id(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    number = int(text) if is_number else 0
    if not 1 <= number <= PRODUCER_ID_MAX:
        raise InvalidInput(
            f"a producer's id is a number from 1 to {PRODUCER_ID_MAX}, not {text[:50]!r}",
            field="producer_id",
        )
    return number
