"""Route of what goes on now: a line a second, for as long as the looker reads."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Final, NamedTuple

import msgspec

from goq import limits
from goq.access.rule import Principal
from goq.api.codec.request import duration_ms, query_int
from goq.api.needs import TOKEN, principal_of
from goq.api.route import NDJSON, Parameter, Route
from goq.api.routing_policy import UNBUFFERED, CustomRouting
from goq.api.schemas.live import LiveNodeOut, LiveOut, LiveTopicOut
from goq.api.values import DURATION, integer, one_of
from goq.api.views.cluster import ClusterInfo, status_of
from goq.api.views.live.board import LiveAsked, LiveBoard, LiveBoards, LiveSample
from goq.api.views.live.node_load import NodeLoadReader
from goq.api.views.live.selection import AT_REST_STEP, BY_NAME, ORDERS, LiveSelection, shortened
from goq.api.views.live.view import LiveView
from goq.clock import TimeSlice
from goq.errors import InvalidInput
from goq.http.message import LOCAL, Item, LiveStream, Request, Response
from goq.model import check_name

LIVE: Final = "/v1/live"
_INTERVAL_MS: Final = 1000
_LONGEST_MS: Final = int(limits.LIVE_INTERVAL_S_MAX * 1000)


class LiveTopicsAsked(NamedTuple):
    """The topics that a looker asks for: by name, None for all, and which of these.

    Of named topics, the groups with ``groups`` in their names.
    """

    names: frozenset[str] | None
    groups: str
    selection: LiveSelection


class LiveRoutes:
    """The current work of this node, on topics that the sender may see."""

    def __init__(self, view: LiveView, load: NodeLoadReader, cluster: ClusterInfo) -> None:
        self._view = view
        self._load = load
        self._cluster = cluster
        self._boards = LiveBoards()

    def routes(self) -> list[Route]:
        """Return the declarations."""
        longest_s = limits.LIVE_INTERVAL_S_MAX
        return [
            Route(
                "GET",
                LIVE,
                self.live,
                "What goes on now, a line a second",
                answer=LiveOut,
                parameters=(
                    Parameter("topics", "only these, as a,b, with lanes and tenants"),
                    Parameter("groups", "of these topics, groups with this in their names"),
                    Parameter("search", "only topics with this in their names"),
                    Parameter(
                        "order",
                        "which topics come first: publish, deliver and ack are by what happened"
                        " since the line before",
                        one_of(ORDERS),
                    ),
                    Parameter(
                        "top",
                        "so many topics, the first in their order",
                        integer(1, limits.LIVE_TOPICS_MAX, limits.LIVE_TOPICS_MAX),
                    ),
                    Parameter(
                        "interval", f"between lines, 500ms to {longest_s:g}s; default 1s", DURATION
                    ),
                    Parameter("after", "the cursor of an earlier line: first what changed since"),
                    Parameter("limit", "so many lines, then end; default no end", integer(1)),
                ),
                gives_lines=True,
                answer_type=NDJSON,
                waits=True,
                routing=CustomRouting.LIVE,
                needs=TOKEN,
            )
        ]

    async def live(self, request: Request) -> Response:
        """Return lines of what this node does."""
        query, principal = asked_topics(request), principal_of(request)
        is_part = LOCAL in request.headers
        sample = partial(self._sample, query, principal, is_part)
        lines = self._boards.lines(
            (principal.id, principal.rules, query, is_part),
            lambda: LiveBoard(sample, self._load.node_id, self._view.clock, query.selection),
            asked_lines(request),
            is_new=query.names is not None,
        )
        return live_response(lines)

    async def _sample(
        self, query: LiveTopicsAsked, principal: Principal, is_part: bool
    ) -> LiveSample:
        """Return what a principal may see; a part, which a node adds up, has all groups."""
        found: dict[str, LiveTopicOut] = {}
        time_slice = TimeSlice()
        sees_all = principal.is_admin and not is_part
        groups_max = limits.LIVE_GROUPS_MAX if sees_all else limits.LIVE_PART_GROUPS_MAX
        if query.names is None:
            topics = await self._view.topics(groups_max)
        else:
            topics = await self._view.named(query.names, query.groups, groups_max)
        if sees_all:
            return LiveSample(self._nodes(), topics)
        for number, (name, topic) in enumerate(topics.items()):
            if principal.is_admin or principal.sees(name):
                seen = topic if principal.is_admin else _visible(topic, principal)
                are_few = len(seen.groups) <= limits.LIVE_GROUPS_MAX
                found[name] = seen if is_part or are_few else shortened(seen)
            if not number % AT_REST_STEP and time_slice.is_over:
                await time_slice.next()
        return LiveSample(self._nodes(), found)

    def _nodes(self) -> list[LiveNodeOut]:
        own = self._load.read()
        if not self._cluster.is_cluster:
            return [own]
        known = self._cluster.state.nodes
        if own.node in known:
            own.status = status_of(known[own.node])
        return [
            own if name == own.node else LiveNodeOut(name, status_of(node))
            for name, node in sorted(known.items())
        ]


def live_response(lines: AsyncGenerator[Item, None]) -> Response:
    """Return the streaming answer of lines."""
    return Response(200, LiveStream(lines, b"\n"), NDJSON, {UNBUFFERED: "no"})


def asked_topics(request: Request) -> LiveTopicsAsked:
    """Return what a request asks for; raises ``InvalidInput``."""
    query = request.query
    for field in ("search", "groups"):
        if len(query.get(field, "")) > limits.LIVE_SEARCH_MAX:
            raise InvalidInput(f"at most {limits.LIVE_SEARCH_MAX} characters", field=field)
    order = query.get("order", BY_NAME)
    if order not in ORDERS:
        raise InvalidInput(f"order by one of {', '.join(ORDERS)}", field="order")
    names = _names(query.get("topics", ""))
    if names is None and "groups" in query:
        raise InvalidInput("say of which topics", field="groups")
    top = query_int(request, "top", limits.LIVE_TOPICS_MAX, minimum=1)
    if top > limits.LIVE_TOPICS_MAX:
        raise InvalidInput(f"at most {limits.LIVE_TOPICS_MAX}", field="top")
    selection = LiveSelection(query.get("search", ""), order, top)
    return LiveTopicsAsked(names, query.get("groups", ""), selection)


def _names(text: str) -> frozenset[str] | None:
    """Return the topics that a request names, None for all."""
    names = frozenset(filter(None, text.split(",")))
    if len(names) > limits.LIVE_NAMED_MAX:
        raise InvalidInput(f"name at most {limits.LIVE_NAMED_MAX} topics, or none", field="topics")
    for name in names:
        check_name(name, "topics")
    return names or None


def asked_lines(request: Request) -> LiveAsked:
    """Return how often a request asks for a line, and for how many; raises ``InvalidInput``."""
    interval_ms = _INTERVAL_MS
    if "interval" in request.query:
        interval_ms = duration_ms(request.query["interval"], "interval", _LONGEST_MS)
    low_s, high_s = limits.LIVE_INTERVAL_S_MIN, limits.LIVE_INTERVAL_S_MAX
    if not low_s * 1000 <= interval_ms <= high_s * 1000:
        raise InvalidInput(f"the interval is {low_s:g} to {high_s:g} s", field="interval")
    is_bounded = "limit" in request.query
    limit = query_int(request, "limit", 1, minimum=1) if is_bounded else None
    return LiveAsked(interval_ms / 1000, limit, request.query.get("after", ""))


def _visible(topic: LiveTopicOut, principal: Principal) -> LiveTopicOut:
    """Return a topic with the groups that a principal may know of."""
    seen = [group for group in topic.groups if principal.sees_group(topic.name, group.group)]
    if len(seen) == len(topic.groups):
        return topic
    return msgspec.structs.replace(
        topic,
        groups=seen,
        group_count=len(seen),
        lag=sum(group.lag for group in seen),
        leased=sum(group.leased for group in seen),
        scheduled=sum(group.scheduled for group in seen),
        oldest_ready=min(filter(None, (group.oldest_ready for group in seen)), default=0),
    )
