"""Routes for operators: health, version, metrics, OpenAPI; and calls between nodes."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from goq import __version__
from goq.access.rule import Principal
from goq.api.codec.messages import encode_json, json_response
from goq.api.metrics.sources import CONTENT_TYPE, MetricSources
from goq.api.needs import OPEN, TOKEN, Needs, principal_of
from goq.api.openapi import docs_page, openapi
from goq.api.route import JSON, Route, RouteHandler
from goq.api.views.health import ProblemOut, offline_and_damaged, problems_of, troubled_topics
from goq.broker.broker import Broker
from goq.cluster.rpc.server import CALL_PREFIX
from goq.http.message import Request, Response
from goq.http.tls.server_certificate import ServerCertificate
from goq.storage.disk_space import DiskSpace, SpaceState
from goq.units import format_time_us

if TYPE_CHECKING:
    from goq.cluster.rpc.server import RpcServer


_TOPIC_LABEL = re.compile(rb'[{,]topic="([^"]*)"')
_PRINCIPAL_LABEL = re.compile(rb'[{,]principal="([^"]*)"')
_GROUP_LABEL = re.compile(rb'[{,]group="([^"]*)"')


class HealthOut(msgspec.Struct, omit_defaults=True):
    """The health of the node, and its problems. ``disk`` is "full" or "nearly full".

    ``limits_reached`` says why no further topic fits; what is there works as before.
    ``certificate_expires`` is there in the last 14 days of the node's certificate.
    ``opening`` counts partitions that the start has not opened and checked yet. ``offline`` and
    ``damaged`` are partitions. ``waits_for`` says why a node is "starting", or "unavailable" once
    it had started. ``problems`` says why partitions are offline, and
    which topics wait for a decision: those that are "adopted" or "read-only".
    """

    status: str
    disk: str = ""
    limits_reached: list[str] = msgspec.field(default_factory=list)
    opening: int = 0
    offline: list[str] = msgspec.field(default_factory=list)
    damaged: list[str] = msgspec.field(default_factory=list)
    problems: list[ProblemOut] = msgspec.field(default_factory=list)
    waits_for: list[str] = msgspec.field(default_factory=list)
    certificate_expires: str | None = None


class VersionOut(msgspec.Struct):
    """Version of goq and Python, and the node id."""

    version: str
    python: str
    node: str


class OperationRoutes:
    """Health, version, metrics and OpenAPI."""

    def __init__(
        self,
        broker: Broker,
        node_id: str,
        metrics: MetricSources,
        is_draining: Callable[[], bool],
        waits_for: Callable[[], list[str]] = list,
        has_started: Callable[[], bool] = lambda: False,
        space: DiskSpace | None = None,
        certificate: ServerCertificate | None = None,
        cluster_problems: Callable[[], list[ProblemOut]] = list,
    ) -> None:
        self._cluster_problems = cluster_problems
        self._certificate = certificate
        self._space = space
        self._broker = broker
        self._node_id = node_id
        self._metrics = metrics
        self._is_draining = is_draining
        self._waits_for = waits_for
        self._has_started = has_started
        self._described: Sequence[Route] = ()
        self._document: bytes | None = None

    def describe(self, routes: Sequence[Route]) -> None:
        """Set the routes that OpenAPI describes."""
        self._described = routes

    def routes(self) -> list[Route]:
        """Return the declarations."""
        text, page = "text/plain", "text/html"
        return [
            _route("/healthz", self.health, "How the node is", answer=HealthOut),
            _route("/livez", self.live, "Whether the process answers", answer_type=text),
            _route("/readyz", self.ready, "Whether to send traffic here", answer=HealthOut),
            _route("/version", self.version, "What runs here", TOKEN, answer=VersionOut),
            _route("/metrics", self.metrics, "For Prometheus", TOKEN, answer_type=text),
            _route("/openapi.json", self.openapi, "This API, described", answer=dict[str, Any]),
            _route("/docs", self.docs, "This API, to read", answer_type=page),
        ]

    async def health(self, request: Request) -> Response:
        """Return 200, or 503 with what is offline, damaged, in doubt or full.

        The sender learns the names of topics that it may know of.
        """
        troubled = await troubled_topics(self._broker)
        offline, damaged = await offline_and_damaged(troubled)
        problems = [*await problems_of(self._broker, troubled), *self._cluster_problems()]
        space = SpaceState.OK if self._space is None else self._space.state
        is_degraded = offline or damaged or problems or space is SpaceState.FULL
        disk = "" if space is SpaceState.OK else str(space)
        status = "degraded" if is_degraded else "ok"
        health = HealthOut(
            status,
            disk,
            self._limits_reached(),
            self._broker.start_queue.partition_count,
            offline,
            damaged,
            problems,
        )
        ending_s = None if self._certificate is None else self._certificate.ending_s
        if ending_s is not None:
            health.certificate_expires = format_time_us(int(ending_s) * 1_000_000)
        principal = principal_of(request)
        if not principal.is_admin:
            health.offline = _visible(offline, principal)
            health.damaged = _visible(damaged, principal)
            health.problems = []
        return json_response(health, 503 if is_degraded else 200)

    def live(self, _request: Request) -> Response:
        """Return 200 whenever the process can answer."""
        return Response(200, b"ok\n", "text/plain")

    def ready(self, request: Request) -> Response:
        """Return 200 if the node takes traffic.

        Return 503 until it has started, while it stops, and while the cluster cannot count on it.
        """
        if self._is_draining():
            return json_response(HealthOut("draining"), 503)
        if waits_for := self._waits_for():
            shown = waits_for if principal_of(request).is_admin else []
            status = "unavailable" if self._has_started() else "starting"
            return json_response(HealthOut(status, waits_for=shown), 503)
        return json_response(HealthOut("ok", limits_reached=self._limits_reached()))

    def _limits_reached(self) -> list[str]:
        shortage = self._broker.capacity.shortage()
        return [] if shortage is None else [f"no further topic fits: {shortage}"]

    def version(self, _request: Request) -> Response:
        """Return the version."""
        return json_response(VersionOut(__version__, sys.version.split()[0], self._node_id))

    async def metrics(self, request: Request) -> Response:
        """Return the metrics, those of topics that the sender may know of."""
        text = await self._metrics.render()
        principal = principal_of(request)
        if not principal.is_admin:
            text = await asyncio.to_thread(_visible_series, text, principal)
        return Response(200, text, CONTENT_TYPE)

    async def openapi(self, _request: Request) -> Response:
        """Return the OpenAPI document; a thread makes it, once."""
        if self._document is None:
            self._document = await asyncio.to_thread(self._describe)
        return Response(200, self._document, JSON)

    def _describe(self) -> bytes:
        return encode_json(openapi(self._described))

    def docs(self, _request: Request) -> Response:
        """Return a page about the API."""
        return Response(200, docs_page(self._described).encode(), "text/html; charset=utf-8")


def _visible(partitions: Sequence[str], principal: Principal) -> list[str]:
    """Return the partitions of topics that a principal may know of."""
    return [name for name in partitions if principal.sees(name.rpartition(":")[0])]


def _visible_series(text: bytes, principal: Principal) -> bytes:
    """Return metrics without the series of topics and groups that a principal may not know of,
    and those of other principals."""
    seen: dict[tuple[str, str | None], bool] = {}
    kept = []
    for line in text.split(b"\n"):  # a tenant may have other line ends in its name
        if (topic := _TOPIC_LABEL.search(line)) is not None:
            group = _GROUP_LABEL.search(line)
            key = topic[1].decode(), None if group is None else group[1].decode()
            if key not in seen:
                seen[key] = (
                    principal.sees(key[0])
                    if key[1] is None
                    else principal.sees_group(key[0], key[1])
                )
            if not seen[key]:
                continue
        label = _PRINCIPAL_LABEL.search(line)
        if label is not None and label[1].decode() != principal.id:
            continue
        kept.append(line)
    return b"\n".join(kept)


def _route(
    path: str,
    handler: RouteHandler,
    summary: str,
    needs: Needs = OPEN,
    *,
    answer: Any = None,
    answer_type: str = JSON,
) -> Route:
    return Route(
        "GET",
        path,
        handler,
        summary,
        answer=answer,
        answer_type=answer_type,
        ignores_query=True,
        needs=needs,
    )


class NodeCallRoutes:
    """Passes calls from other nodes to the RPC server, which authenticates them."""

    def __init__(self, rpc_server: RpcServer) -> None:
        self._rpc_server = rpc_server

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                CALL_PREFIX + "{call}",
                self.answer,
                "Called by other nodes",
                waits=True,
                needs=OPEN,
            )
        ]

    async def answer(self, request: Request, _call: str) -> Response:
        """Answer a call of another node."""
        answered = await self._rpc_server.handle(request.path, request.headers, request.body)
        return Response(
            answered.status, list(answered.body), "application/octet-stream", answered.headers
        )
