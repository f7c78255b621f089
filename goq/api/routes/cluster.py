"""Routes of the cluster: its state, and its operations. Any node answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goq import limits
from goq.api.codec.messages import json_response
from goq.api.codec.request import duration_ms, json_body, number_of
from goq.api.needs import OPERATE, TOKEN, principal_of
from goq.api.route import Parameter, Route, RouteHandler
from goq.api.routing_policy import CustomRouting
from goq.api.schemas.cluster import (
    ClusterOut,
    ClusterSettingsChange,
    ClusterSettingsOut,
    Election,
    ElectionOut,
    NewNode,
    NewReassignment,
    PlannedReassignmentOut,
    RebalancePlanOut,
    RebalanceRequest,
    ReplicaEndOut,
)
from goq.api.values import DURATION, FLAG, integer
from goq.api.views.cluster import ClusterInfo, cluster_out
from goq.errors import Conflict, InvalidInput
from goq.http.message import Request, Response
from goq.model import check_name

if TYPE_CHECKING:
    from goq.cluster.admin.operations import ClusterOperations

_CLUSTER = "/v1/cluster"


class ClusterRoutes:
    """Cluster state and cluster operations."""

    def __init__(self, cluster: ClusterInfo) -> None:
        self._cluster = cluster

    def routes(self) -> list[Route]:
        """Return the declarations."""
        alone = ("conflict",)
        missing = (*alone, "topic_not_found", "partition_not_found")
        return [
            Route(
                "GET",
                _CLUSTER,
                self.show,
                "Show nodes, leaders and replicas",
                answer=ClusterOut,
                parameters=(
                    Parameter("topic", "Only these, as a,b"),
                    Parameter("version", "Answer when the version is another", integer()),
                    Parameter("wait", "How long to wait for that", DURATION),
                    Parameter("lag", "Ask leaders how far replicas are", FLAG),
                ),
                waits=True,
                needs=TOKEN,
            ),
            _changing("POST", "nodes", self.join, "Let a node in", NewNode, alone),
            Route(
                "DELETE",
                f"{_CLUSTER}/nodes/{{node}}",
                self.leave,
                "Have a node give away what it has, then go",
                parameters=(Parameter("fewer_replicas", "The others may be too few", FLAG),),
                status=204,
                errors=(*alone, "node_not_found"),
                routing=CustomRouting.CHANGE_METADATA,
                needs=OPERATE,
            ),
            _changing(
                "POST",
                "rebalance",
                self.rebalance,
                "Make the nodes' shares even",
                RebalanceRequest,
                alone,
                RebalancePlanOut,
            ),
            _changing("POST", "moves", self.move, "Move a partition", NewReassignment, missing),
            Route(
                "DELETE",
                f"{_CLUSTER}/moves/{{topic}}/{{partition}}",
                self.cancel_move,
                "Give a move up",
                status=204,
                errors=missing,
                routing=CustomRouting.CHANGE_METADATA,
                needs=OPERATE,
            ),
            _changing(
                "POST",
                "elections",
                self.elect,
                "Elect who leads a partition",
                Election,
                missing,
                ElectionOut,
            ),
            _changing(
                "PATCH",
                "settings",
                self.change_settings,
                "Change settings of the whole cluster",
                ClusterSettingsChange,
                alone,
                ClusterSettingsOut,
            ),
        ]

    async def show(self, request: Request) -> Response:
        """Return the state, at once or after a change."""
        query, cluster = request.query, self._cluster
        names = {name for name in query.get("topic", "").split(",") if name} or None
        principal = principal_of(request)
        if not principal.is_admin:
            names = {name for name in names or cluster.state.topics if principal.sees(name)}
        lag = _truth(request, "lag")
        wait_ms = duration_ms(query.get("wait", "0"), "wait", limits.WAIT_MS_MAX)
        if "version" in query:
            await cluster.wait_for_change(number_of(query["version"], "version"), wait_ms / 1000)
        only = next(iter(names)) if names is not None and len(names) == 1 else None
        reports = await cluster.leader_reports(only) if lag else {}
        return json_response(cluster_out(cluster, names, reports))

    async def join(self, request: Request) -> Response:
        """Add a node."""
        new = json_body(request, NewNode)
        await self._operations.add_node(check_name(new.node, "node"), new.address)
        return Response(204)

    async def leave(self, request: Request, node: str) -> Response:
        """Begin to decommission a node."""
        fewer = _truth(request, "fewer_replicas")
        await self._operations.decommission_node(node, fewer_replicas=fewer)
        return Response(204)

    async def rebalance(self, request: Request) -> Response:
        """Plan reassignments and begin them."""
        dry_run = json_body(request, RebalanceRequest).dry_run
        moves = await self._operations.rebalance(dry_run=dry_run)
        planned = [
            PlannedReassignmentOut(
                m.topic, m.partition, list(m.replicas), list(m.target), m.refusal or None
            )
            for m in moves
        ]
        return json_response(RebalancePlanOut(dry_run, planned))

    async def move(self, request: Request) -> Response:
        """Begin a reassignment."""
        new = json_body(request, NewReassignment)
        await self._operations.reassign_partition(new.topic, new.partition, tuple(new.replicas))
        return Response(204)

    async def cancel_move(self, _request: Request, topic: str, partition: str) -> Response:
        """Cancel a reassignment."""
        await self._operations.cancel_reassignment(topic, number_of(partition, "partition"))
        return Response(204)

    async def elect(self, request: Request) -> Response:
        """Elect a leader, or return what an unclean election would lose."""
        asked = json_body(request, Election)
        where = asked.topic, asked.partition
        if not asked.unclean:
            if asked.dry_run:
                raise InvalidInput("only an unclean election loses anything", field="dry_run")
            leader = await self._operations.elect_leader(*where, asked.leader)
            return json_response(ElectionOut(*where, leader))
        if asked.leader is None:
            raise InvalidInput("an unclean election names its leader", field="leader")
        ends = await self._operations.elect_unclean_leader(
            *where, asked.leader, dry_run=asked.dry_run
        )
        replicas = [ReplicaEndOut(node, end) for node, end in ends.by_node.items()]
        return json_response(ElectionOut(*where, asked.leader, asked.dry_run, replicas, ends.lost))

    async def change_settings(self, request: Request) -> Response:
        """Change the cluster's settings."""
        change = json_body(request, ClusterSettingsChange)
        await self._operations.change_settings(
            replication_factor=change.replication_factor,
            min_insync=change.min_insync,
            moves_at_once=change.moves_at_once,
            move_bytes_per_s=change.move_bytes_per_s,
        )
        now = self._cluster.state.settings
        return json_response(
            ClusterSettingsOut(
                now.replication_factor, now.min_insync, now.moves_at_once, now.move_bytes_per_s
            )
        )

    @property
    def _operations(self) -> ClusterOperations:
        operations = self._cluster.operations
        if operations is None:
            raise Conflict(
                "this node is on its own; docs/cluster.md says how to start one that is not"
            )
        return operations


def _changing(
    method: str,
    what: str,
    handler: RouteHandler,
    summary: str,
    body: type[object],
    errors: tuple[str, ...],
    answer: object = None,
) -> Route:
    return Route(
        method,
        f"{_CLUSTER}/{what}",
        handler,
        summary,
        body=body,
        is_body_audited=True,
        answer=answer,
        status=204 if answer is None else 200,
        errors=errors,
        routing=CustomRouting.CHANGE_METADATA,
        needs=OPERATE,
    )


def _truth(request: Request, name: str) -> bool:
    text = request.query.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidInput(f"{name} is true or false, not {text[:50]!r}", field=name)
    return text == "true"
