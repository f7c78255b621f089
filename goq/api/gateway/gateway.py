"""The API of a node that is one of several: any of them answers any client.

A request goes to where it can be answered, once: what one node passes on to another says so
(``Goq-Local``), and is answered there or refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from goq import limits
from goq.api.app import Api
from goq.api.codec.leased import GiveBack
from goq.api.codec.messages import json_response
from goq.api.errors import problem_response
from goq.api.gateway.fanout import Asking, Places, changed, document_of, merged_query
from goq.api.gateway.membership import heartbeat, leave
from goq.api.gateway.receive import ReceivingEverywhere
from goq.api.gateway.sequential import one_after_another
from goq.api.gateway.settle import settle
from goq.api.gateway.streams import StreamsEverywhere
from goq.api.router import Route
from goq.api.routing_policy import (
    AtLeaders,
    AtPartition,
    HereThenShown,
    InTurn,
    Special,
    is_local,
    named_topic,
)
from goq.cluster.forwarding.http_proxy import HttpProxy
from goq.errors import GoqError, NotLeader, TopicNotFound
from goq.http.message import LOCAL, Request, Response

_Answering = Callable[[Request, Sequence[str]], Awaitable[Response]]


class Front:
    """Answers a request by itself, or has other nodes answer it."""

    def __init__(self, api: Api, places: Places, relay: HttpProxy, give_back: GiveBack) -> None:
        self._api = api
        self._places = places
        self._asking = Asking(api, places, relay)
        streams = StreamsEverywhere(self._asking, give_back)
        api.on_stop.append(streams.end_all)
        self._special: dict[Special, _Answering] = {
            Special.RECEIVE: ReceivingEverywhere(self._asking, give_back, streams).receive,
            Special.STREAM: streams.change,
            Special.SETTLE: self._settle,
            Special.DELETE_GROUP: self._delete_group,
            Special.HEARTBEAT: partial(heartbeat, self._asking),
            Special.LEAVE: partial(leave, self._asking),
        }

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        """Return the answer, or what to await for it."""
        if is_local(request):
            return self._api.handle(request)
        try:
            route, values = self._api.match(request)
            if route.spread is None:
                return self._api.handle(request)
            if isinstance(route.spread, AtPartition):
                return self._at_partition(request, route, route.spread, values)
            topic = None if route.spread is Special.STREAM else _topic_of(route, values)
            if self._places.leader_urls(topic) == [None] and _is_led(self._places, topic):
                return self._api.handle(request)
        except NotLeader:
            pass  # there will be one in a moment
        except TopicNotFound:
            if not isinstance(route.spread, HereThenShown):  # which may make it
                return self._api.handle(request)
        except GoqError:
            return self._api.handle(request)
        request.outlives_eof = not route.waits
        answer = self._answered(request, route, values)
        return self._api.interruptible(answer) if route.waits else answer

    def _at_partition(
        self, request: Request, route: Route, spread: AtPartition, values: Sequence[str]
    ) -> Response | Awaitable[Response]:
        found = spread.find(request, values)
        if found is None:
            return self._api.handle(request)
        try:
            if self._places.leader_url(*found) is None:
                return self._api.handle(request)
        except NotLeader:
            pass
        request.outlives_eof = not route.waits
        answer = self._relayed(request, *found)
        return self._api.interruptible(answer) if route.waits else answer

    async def _relayed(self, request: Request, topic: str, number: int) -> Response:
        try:
            return await self._asking.at_partition(topic, number, request)
        except GoqError as error:
            return problem_response(error)

    async def _answered(self, request: Request, route: Route, values: Sequence[str]) -> Response:
        spread = route.spread
        try:
            route.check_query(request)
            if isinstance(spread, AtLeaders):
                return await self._at_leaders(request, spread, values)
            if isinstance(spread, HereThenShown):
                return await self._here_then_shown(request, spread, values)
            if isinstance(spread, InTurn):
                return await one_after_another(self._asking, request, spread, values)
            assert isinstance(spread, Special)
            return await self._special[spread](request, values)
        except GoqError as error:
            return problem_response(error)

    async def _at_leaders(
        self, request: Request, spread: AtLeaders, values: Sequence[str]
    ) -> Response:
        number = spread.partition_of(request) if spread.partition_of is not None else None
        if number is not None:
            return await self._asking.at_partition(values[0], number, request)
        if request.method == "HEAD":
            request = changed(request, method="GET")
        topic = spread.topic_of(values)
        answers = await self._asking.ask_all(topic, request, needs_all=spread.needs_all)
        if answers[0].status >= 300:
            return answers[0]
        documents = [document_of(answer) for answer in answers]
        asked = merged_query(request, values, self._places)
        return json_response(spread.merge(documents, asked), answers[0].status)

    async def _here_then_shown(
        self, request: Request, spread: HereThenShown, values: Sequence[str]
    ) -> Response:
        """Do it here, and show it as all leaders do, which may have to hear of it first."""
        done = await self._asking.here(request)
        if done.status >= 300:
            return done
        document = document_of(done)
        path = request.path if spread.path is None else spread.path(document)
        showing = changed(request, method="GET", path=path, query="", body=b"")
        asked = merged_query(request, values, self._places)
        loop = asyncio.get_running_loop()
        until = loop.time() + limits.RELAY_PATIENCE_S
        while True:
            try:
                answers = await self._asking.ask_all(document.get("name") or values[0], showing)
                if answers[0].status >= 300:
                    return answers[0]
                shown = spread.merge([document_of(answer) for answer in answers], asked)
                if spread.is_whole(shown) or loop.time() >= until:
                    return json_response(shown, done.status)
            except TopicNotFound:  # it has just been made
                if loop.time() >= until:
                    raise
            await asyncio.sleep(limits.RELAY_PAUSE_S)

    async def _settle(self, request: Request, values: Sequence[str]) -> Response:
        return await settle(self._asking, request, values[0])

    async def _delete_group(self, request: Request, values: Sequence[str]) -> Response:
        """Let all leaders forget what they know of a group, and then all nodes the group."""
        local = changed(request, headers={LOCAL: "true"})
        answers = await self._asking.ask_all(values[0], local, needs_all=True)
        if answers[0].status >= 300:
            return answers[0]
        return await self._asking.here(request)


def _topic_of(route: Route, values: Sequence[str]) -> str | None:
    """Return whose leaders are to answer, None for all nodes."""
    if isinstance(route.spread, AtLeaders | InTurn):
        return route.spread.topic_of(values)
    return named_topic(values)


def _is_led(places: Places, topic: str | None) -> bool:
    """Whether all partitions of a topic have a leader."""
    return topic is not None and None not in places.leaders(topic)
