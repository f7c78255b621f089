"""The API of a node that is one of several: any of them answers any client.

A request goes to where it can be answered, once: what one node passes on to another says so
(``Goq-Local``), and is answered there or refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Protocol, cast

import msgspec

from goq import limits
from goq.api.app import Api
from goq.api.messages_out import json_response
from goq.api.problems import problem_response
from goq.api.route import Route
from goq.api.spread import AtLeaders, AtPartition
from goq.cluster.relaying import LOCAL, Relay
from goq.errors import GoqError, NotLeader, PartitionOffline
from goq.http.message import Request, Response

LEADER = "Goq-Leader"


class Places(Protocol):
    """Where the partitions of topics are led."""

    def leader_url(self, topic: str, number: int) -> str | None:
        """Return where a partition is led, None for this node.

        Raises ``NotLeader`` while nobody does, ``NotFound`` where there is no such partition.
        """

    def leader_urls(self, topic: str | None) -> list[str | None]:
        """Return who leads a partition of a topic, each once, None for this node.

        Without a topic, all nodes that are up.
        """


class Front:
    """Answers a request by itself, or has other nodes answer it."""

    def __init__(self, api: Api, places: Places, relay: Relay) -> None:
        self._api = api
        self._places = places
        self._relay = relay

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        """Return the answer, or what to await for it."""
        if LOCAL in request.headers:
            return self._api.handle(request)
        try:
            route, values = self._api.match(request)
        except GoqError:
            return self._api.handle(request)
        if isinstance(route.spread, AtPartition):
            return self._at_partition(request, route, route.spread, values)
        if isinstance(route.spread, AtLeaders):
            return self._at_leaders(request, route, route.spread, values)
        return self._api.handle(request)

    def _at_partition(
        self, request: Request, route: Route, spread: AtPartition, values: Sequence[str]
    ) -> Response | Awaitable[Response]:
        try:
            found = spread.find(request, values)
            if found is None or self._places.leader_url(*found) is None:
                return self._api.handle(request)
        except NotLeader:
            pass  # there will be one in a moment
        except GoqError:
            return self._api.handle(request)
        request.outlives_eof = not route.waits
        assert found is not None
        return self._relayed(request, *found)

    async def _relayed(self, request: Request, topic: str, number: int) -> Response:
        """Have a partition's leader answer, whoever becomes that while we wait."""
        loop = asyncio.get_running_loop()
        until = loop.time() + limits.RELAY_PATIENCE_S
        while True:
            try:
                url = self._places.leader_url(topic, number)
                response = await self._from(url, request)
                if response.status != NotLeader.http_status:
                    return response
            except NotLeader:
                pass
            except GoqError as error:
                return problem_response(error)
            if loop.time() >= until:
                return problem_response(
                    PartitionOffline(
                        f"partition {number} of {topic} has no leader now; goq cluster status says"
                        " why",
                        retry_after_ms=1000,
                    )
                )
            await asyncio.sleep(limits.RELAY_PAUSE_S)

    async def _from(self, url: str | None, request: Request) -> Response:
        """Return the answer of one node, this one for None."""
        if url is not None:
            return await self._relay.ask(url, request)
        answer = self._api.handle(request)
        return answer if isinstance(answer, Response) else await answer

    def _at_leaders(
        self, request: Request, route: Route, spread: AtLeaders, values: Sequence[str]
    ) -> Response | Awaitable[Response]:
        topic = values[0] if "{topic}" in route.path else None
        try:
            urls = self._places.leader_urls(topic)
        except GoqError:
            return self._api.handle(request)
        if urls == [None]:
            return self._api.handle(request)
        request.outlives_eof = not route.waits
        return self._gathered(request, spread, urls)

    async def _gathered(
        self, request: Request, spread: AtLeaders, urls: Sequence[str | None]
    ) -> Response:
        try:
            answers = await asyncio.gather(*(self._from(url, request) for url in urls))
            for answer in answers:
                if answer.status >= 300:
                    return answer
            documents = [msgspec.json.decode(cast(bytes, answer.body)) for answer in answers]
            return json_response(spread.merge(documents, request.query), answers[0].status)
        except GoqError as error:
            return problem_response(error)
