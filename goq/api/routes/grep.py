"""Route of messages newest first: all, or those with a text in value, key or headers."""

from __future__ import annotations

from collections.abc import Sequence

from goq import limits
from goq.api.codec.messages import JsonMessages, messages_json
from goq.api.codec.request import query_flag, query_int
from goq.api.needs import READ
from goq.api.route import Parameter, Route
from goq.api.routes.search import range_parameters, searched_times
from goq.api.routing_policy import Document, MergeContext, ToAllLeaders
from goq.api.schemas.messages import FoundMessagesOut
from goq.api.values import FLAG
from goq.api.views.merge_pages import merge_found_messages, next_cursor
from goq.broker.broker import Broker
from goq.broker.search.partition_search import FoundMessage, MessageQuery, TextQuery
from goq.broker.topic.topic import Topic
from goq.errors import InvalidInput
from goq.frame.match import MessagePart
from goq.frame.view import FrameView
from goq.http.message import Request, Response

_LIMIT = 100
_PARTS = ",".join(MessagePart)


class GrepRoutes:
    """Search by text."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/v1/topics/{topic}/search",
                self.find,
                "List messages newest first: all, or those that contain a text",
                answer=FoundMessagesOut,
                parameters=(
                    Parameter("text", "the text, as UTF-8; without it all messages match"),
                    Parameter("in", f"where to look, some of {_PARTS}; default all"),
                    Parameter("ignore_case", "whether A to Z match a to z", FLAG),
                    *range_parameters(_LIMIT),
                ),
                errors=("topic_not_found", "partition_offline"),
                waits=True,
                routing=ToAllLeaders(_merged, needs_all=True),
                needs=READ,
            )
        ]

    async def find(self, request: Request, name: str) -> Response:
        """Return a page of messages, newest first; it may be empty and not be the last."""
        wanted = self._wanted(request)
        limit = query_int(request, "limit", _LIMIT, minimum=1, maximum=limits.SEARCH_MESSAGES_MAX)
        topic = self._broker.topic(name)
        page = await self._broker.finder.find(topic, wanted, limit, request.query.get("cursor"))
        messages = JsonMessages(limits.READ_BYTES_MAX)
        taken = await self._read(topic, page.found, messages)
        left = [{"partition": f.partition, "offset": f.offset} for f in page.found[taken:]]
        cursor = next_cursor([{"next": page.next}], left)
        return messages.response(FoundMessagesOut([], cursor, page.scanned))

    async def _read(
        self, topic: Topic, found: Sequence[FoundMessage], messages: JsonMessages
    ) -> int:
        """Add the first messages that fit into an answer; return how many were taken for that."""
        frames: dict[int, FrameView] = {}
        for taken, one in enumerate(found):
            view = frames.get(one.partition)
            if view is None or not view.header.base_offset <= one.offset < view.header.end_offset:
                view = await self._broker.finder.read(topic, one)
                if view is None:
                    continue
                frames = {one.partition: view}
            for out in messages_json(topic, one.partition, [view], one.offset, one.offset + 1):
                if not await messages.add(out):
                    return taken
        return len(found)

    def _wanted(self, request: Request) -> MessageQuery:
        query = request.query
        from_us, to_us = searched_times(query, self._broker.clock.wall_us())
        if not {"text", "in", "ignore_case"} & query.keys():
            return MessageQuery(from_us=from_us, to_us=to_us)
        text = query.get("text", "").encode()
        if not 0 < len(text) <= limits.SEARCH_TEXT_BYTES_MAX:
            raise InvalidInput(
                f"say what to look for: 1 to {limits.SEARCH_TEXT_BYTES_MAX} bytes", field="text"
            )
        wanted = TextQuery(text, _parts(query.get("in")), query_flag(request, "ignore_case"))
        return MessageQuery(text=wanted, from_us=from_us, to_us=to_us)


def _parts(text: str | None) -> frozenset[MessagePart]:
    if text is None:
        return frozenset(MessagePart)
    try:
        return frozenset(map(MessagePart, text.split(",")))
    except ValueError:
        raise InvalidInput(
            f"{text[:50]!r} is not of the parts {_PARTS}, separated by commas", field="in"
        ) from None


def _merged(documents: Sequence[Document], asked: MergeContext) -> Document:
    return merge_found_messages(documents, int(asked.query.get("limit", _LIMIT)))
