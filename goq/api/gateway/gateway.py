"""The gateway of a cluster node: any node answers any client.

A request is forwarded at most once. A node that forwards it sets ``Goq-Local``; the receiver
answers from its own partitions or refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from goq import limits
from goq.api.codec.leased import LeaseReturner, read_leased
from goq.api.codec.messages import json_response
from goq.api.codec.problem import problem_response
from goq.api.codec.receive_request import asks_for_stream
from goq.api.codec.request import json_body
from goq.api.gateway.coverage import HeldPartitions, LocalAnswers, partition_moving
from goq.api.gateway.fanout import (
    Fanout,
    LeaderDirectory,
    copy_request,
    decode_document,
    error_code,
    merge_context,
)
from goq.api.gateway.live import LiveGateway
from goq.api.gateway.membership import heartbeat, leave
from goq.api.gateway.miss_retry import Freshness
from goq.api.gateway.receive import ReceiveGateway
from goq.api.gateway.sequential import ask_in_sequence
from goq.api.gateway.settle import settle
from goq.api.gateway.streams import StreamGateway
from goq.api.route import Route
from goq.api.router import Router
from goq.api.routing_policy import (
    CustomRouting,
    LocalThenMerged,
    Sequential,
    ToAllLeaders,
    ToPartitionLeader,
    topic_of_path,
)
from goq.api.schemas.groups import Receive
from goq.cluster.forwarding.relay import RoutedProxy
from goq.errors import GoqError, NotLeader, TimedOut, TopicNotFound, Unavailable
from goq.http.message import LOCAL, Request, Response

_Answering = Callable[[Request, Sequence[str]], Awaitable[Response]]


class Gateway:
    """Answers a request itself, or has other nodes answer it."""

    def __init__(
        self,
        router: Router,
        leaders: LeaderDirectory,
        proxy: RoutedProxy,
        leases: LeaseReturner,
        freshness: Freshness,
        held: HeldPartitions,
    ) -> None:
        """``held`` returns the partitions that this node has."""
        self._router = router
        self._freshness = freshness
        self._leaders = leaders
        self._local = LocalAnswers(router, held)
        self._fanout = Fanout(self._local, leaders, proxy)
        streams = StreamGateway(self._fanout, leases)
        router.on_stop.append(streams.end_all)
        self._special: dict[CustomRouting, _Answering] = {
            CustomRouting.RECEIVE: ReceiveGateway(self._fanout, leases, streams).receive,
            CustomRouting.STREAM: streams.change,
            CustomRouting.LIVE: LiveGateway(self._fanout).answer,
            CustomRouting.SETTLE: self._settle,
            CustomRouting.DELETE_GROUP: self._delete_group,
            CustomRouting.CHANGE_METADATA: self._change_metadata,
            CustomRouting.HEARTBEAT: partial(heartbeat, self._fanout),
            CustomRouting.LEAVE: partial(leave, self._fanout),
        }

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        """Return the answer, or an awaitable of it."""
        if LOCAL in request.headers:
            return self._local.answer(request)
        try:
            route, values = self._router.match(request)
        except GoqError:
            return self._router.handle(request)
        if _shows_metadata(route) and self._freshness.must_catch_up:
            request.outlives_eof = not route.waits
            return self._route_when_current(request, route, values)
        return self._route(request, route, values)

    async def _route_when_current(
        self, request: Request, route: Route, values: Sequence[str]
    ) -> Response:
        """Answer with the changes that were acknowledged while this node was away.

        A node that is cut off cannot know of any. It lists what it knows, and says nothing about a
        single thing that may have been created or deleted since. One that only was too slow to ask
        is not cut off: the client is to ask again. One that has never had any metadata, such as a
        node that the others refuse, knows nothing.
        """
        try:
            await self._freshness.catch_up()
        except Unavailable as error:
            may_list = self._freshness.is_cut_off and self._freshness.version
            if not may_list or self._depends_on_newest(request, route, values):
                return problem_response(error)
        answer = self._route(request, route, values)
        return answer if isinstance(answer, Response) else await answer

    def _depends_on_newest(self, request: Request, route: Route, values: Sequence[str]) -> bool:
        """Whether an answer by older metadata may be untrue.

        That of a change may, of what ``values`` name, and of a topic that is not known here: dead
        letters have no topic before the first one. Other routes ask the leaders.
        """
        if _changes_metadata(route) or (route.routing is CustomRouting.SHOW_METADATA and values):
            return True
        topic = _topic_of(request, route, values)
        try:
            return topic is not None and not self._leaders.leaders(topic)
        except TopicNotFound:
            return True

    def _route(
        self, request: Request, route: Route, values: Sequence[str]
    ) -> Response | Awaitable[Response]:
        try:
            if route.routing in (None, CustomRouting.SHOW_METADATA):
                return self._router.handle(request)
            if isinstance(route.routing, ToPartitionLeader):
                return self._route_to_leader(request, route, route.routing, values)
            topic = _topic_of(request, route, values)
            if self._leads_all(topic) and _may_answer_alone(request, route):
                assert topic is not None
                return self._answer_alone(request, route, values, topic)
        except NotLeader:
            pass  # there will be one in a moment
        except GoqError:
            return self._router.handle(request)
        request.outlives_eof = not route.waits
        answer = self._fan_out(request, route, values)
        return self._router.interruptible(request, route, answer) if route.waits else answer

    def _route_to_leader(
        self, request: Request, route: Route, routing: ToPartitionLeader, values: Sequence[str]
    ) -> Response | Awaitable[Response]:
        found = routing.find(request, values)
        if found is None:
            return self._router.handle(request)
        try:
            if self._leaders.has_session() and self._leaders.leader_url(*found) is None:
                return self._router.handle(request)
        except NotLeader:
            pass
        request.outlives_eof = not route.waits
        answer = self._ask_leader(request, *found)
        return self._router.interruptible(request, route, answer) if route.waits else answer

    async def _ask_leader(self, request: Request, topic: str, number: int) -> Response:
        try:
            return await self._fanout.ask_partition_leader(topic, number, request)
        except GoqError as error:
            return problem_response(error)

    async def _fan_out(self, request: Request, route: Route, values: Sequence[str]) -> Response:
        routing = route.routing
        try:
            route.check_query(request)
            if isinstance(routing, ToAllLeaders):
                return await self._merge_all_leaders(request, routing, values)
            if isinstance(routing, LocalThenMerged):
                return await self._answer_then_merge(request, routing, values)
            if isinstance(routing, Sequential):
                return await ask_in_sequence(self._fanout, request, routing, values)
            assert isinstance(routing, CustomRouting)
            return await self._special[routing](request, values)
        except GoqError as error:
            return problem_response(error)

    async def _merge_all_leaders(
        self, request: Request, routing: ToAllLeaders, values: Sequence[str]
    ) -> Response:
        number = routing.partition_of(request) if routing.partition_of is not None else None
        if number is not None:
            return await self._fanout.ask_partition_leader(values[0], number, request)
        if request.method == "HEAD":
            request = copy_request(request, method="GET")
        topic = routing.topic_of(request, values)
        answers = await self._fanout.ask_all_leaders(
            topic, request, needs_all=routing.needs_all, may_lack=routing.shows_offline
        )
        if answers[0].status >= 300:
            return answers[0]
        documents = [decode_document(answer) for answer in answers]
        asked = merge_context(request, values, self._leaders)
        return json_response(routing.merge(documents, asked), answers[0].status)

    async def _answer_then_merge(
        self, request: Request, routing: LocalThenMerged, values: Sequence[str]
    ) -> Response:
        """Carry the request out here, then answer with the merged view of all leaders.

        What was carried out is not refused. If a leader does not answer in time, the answer shows
        its partitions as offline.
        """
        done = await self._change_metadata(request, values)
        if done.status >= 300:
            return done
        document = decode_document(done)
        path = request.path if routing.path is None else routing.path(document)
        showing = copy_request(request, method="GET", path=path, query="", body=b"")
        asked = merge_context(request, values, self._leaders)
        loop = asyncio.get_running_loop()
        until = loop.time() + limits.FORWARD_LEADER_WAIT_S
        while True:
            try:
                answers = await self._fanout.ask_all_leaders(
                    document.get("name") or values[0], showing, may_lack=True
                )
                if answers[0].status < 300:
                    shown = routing.merge([decode_document(answer) for answer in answers], asked)
                    if routing.is_whole(shown) or loop.time() >= until:
                        return json_response(shown, done.status)
            except (TopicNotFound, Unavailable):
                pass  # it was made a moment ago, or a leader is away
            if loop.time() >= until:
                return json_response(routing.merge([document], asked), done.status)
            await asyncio.sleep(limits.FORWARD_RETRY_PAUSE_S)

    def _answer_alone(
        self, request: Request, route: Route, values: Sequence[str], topic: str
    ) -> Response | Awaitable[Response]:
        """Return this node's answer; it does not count as whole if a partition leaves meanwhile."""
        held = self._local.held(topic)
        answer = self._router.handle(request)
        if isinstance(answer, Response):
            return answer
        if isinstance(route.routing, ToAllLeaders):
            return self._read_alone(request, route, values, answer, topic, held)
        if route.routing is CustomRouting.RECEIVE:
            return self._received_alone(answer, topic, held)
        return answer

    async def _read_alone(
        self,
        request: Request,
        route: Route,
        values: Sequence[str],
        answer: Awaitable[Response],
        topic: str,
        held: Mapping[int, object],
    ) -> Response:
        """Return an answer; ask all leaders instead if a partition has left this node."""
        response = await answer
        if len(self._local.still_held(topic, held)) == len(held):
            return response
        whole = self._fan_out(request, route, values)
        return await (self._router.interruptible(request, route, whole) if route.waits else whole)

    async def _received_alone(
        self, answer: Awaitable[Response], topic: str, held: Mapping[int, object]
    ) -> Response:
        """Return a receive's answer; an error instead of one that may lack all messages."""
        response = await answer
        if response.status != 200 or response.stream is not None:
            return response
        lost = held.keys() - set(self._local.still_held(topic, held))
        if not lost or read_leased(response).message_count:
            return response
        return problem_response(partition_moving(topic, min(lost)))

    def _leads_all(self, topic: str | None) -> bool:
        """Whether this node leads every partition of a topic, and has opened it."""
        if topic is None or self._leaders.leader_urls(topic) != [None]:
            return False
        leaders = self._leaders.leaders(topic)
        return None not in leaders and len(self._local.held(topic)) == len(leaders)

    async def _settle(self, request: Request, values: Sequence[str]) -> Response:
        return await settle(self._fanout, request, values[0], self._freshness.catch_up)

    async def _change_metadata(self, request: Request, _values: Sequence[str]) -> Response:
        """Carry a change out here; answer when all nodes have followed it.

        Also if it was there before: the request before this one may have had no answer.
        """
        answer = await self._fanout.answer_here(request)
        if answer.status < 300:
            await self._freshness.spread()
        return answer

    async def _delete_group(self, request: Request, values: Sequence[str]) -> Response:
        """Delete a group's progress at all leaders, then the group in the cluster metadata."""
        local = copy_request(request, headers={LOCAL: "true"})
        answers = await self._fanout.ask_all_leaders(values[0], local, needs_all=True)
        if answers[0].status >= 300:
            return answers[0]
        answer = await self._change_metadata(request, values)
        if answer.status < 500 and answer.status != NotLeader.http_status:
            return answer
        raise TimedOut(
            f"the progress of the group is deleted, the group not yet ({error_code(answer)})",
            retry_after_ms=1000,
        )


def _changes_metadata(route: Route) -> bool:
    return isinstance(route.routing, LocalThenMerged) or route.routing in (
        CustomRouting.CHANGE_METADATA,
        CustomRouting.DELETE_GROUP,
    )


def _may_answer_alone(request: Request, route: Route) -> bool:
    """Whether a node that leads all partitions answers without :meth:`_fan_out`.

    Not where a partition that leaves the node meanwhile would be left out of a write, or of a
    stream from then on.
    """
    if isinstance(route.routing, ToAllLeaders):
        return request.method in ("GET", "HEAD")
    if route.routing is CustomRouting.RECEIVE:
        return not asks_for_stream(request, json_body(request, Receive))
    return not isinstance(route.routing, Sequential)


def _shows_metadata(route: Route) -> bool:
    return (
        _changes_metadata(route)
        or isinstance(route.routing, ToAllLeaders | Sequential)
        or route.routing is CustomRouting.SHOW_METADATA
    )


def _topic_of(request: Request, route: Route, values: Sequence[str]) -> str | None:
    """Return the topic whose leaders answer.

    ``None`` for all nodes, the one with a stream, and a change of the metadata: any node makes it,
    and its path may name a schedule, a token or a node.
    """
    if route.routing is CustomRouting.STREAM or _changes_metadata(route):
        return None
    if isinstance(route.routing, ToAllLeaders | Sequential):
        return route.routing.topic_of(request, values)
    return topic_of_path(request, values)
