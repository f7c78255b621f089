"""The HTTP API of a node, composed: routes, router, and in a cluster the gateway before it.

``App.handle`` is the one handler of the HTTP server. On a standalone node it is the router's.
In a cluster a request passes six functions of the same shape, request in and response out:

    with_cluster_version   adds the version of the cluster metadata to the answer
    with_relay             passes on what another node relays over this one
    AuditTrail.recorded    records actions and refusals, if the node asks for tokens
    with_miss_retry        asks for newer metadata before it answers that something is missing
    Gateway.handle         has other nodes answer what this node does not lead
    Router.handle          matches the route, checks the sender, runs its handler, counts the answer
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from goq.access.token_manager import TokenManager
from goq.access.token_table import TokenTable
from goq.api.access_control import AccessControl
from goq.api.gateway.audit_trail import AuditTrail
from goq.api.metrics.sources import MetricSources
from goq.api.route import Route
from goq.api.router import RequestStats, Router
from goq.api.routes.audit import AuditRoutes
from goq.api.routes.backups import BackupRoutes
from goq.api.routes.cluster import ClusterRoutes
from goq.api.routes.console import ConsoleRoutes
from goq.api.routes.dead_letters import DeadLetterRoutes
from goq.api.routes.events import EventRoutes
from goq.api.routes.grep import GrepRoutes
from goq.api.routes.groups import GroupRoutes
from goq.api.routes.live import LiveRoutes
from goq.api.routes.members import MemberRoutes
from goq.api.routes.message import SingleMessageRoutes
from goq.api.routes.messages import MessageRoutes
from goq.api.routes.operations import NodeCallRoutes, OperationRoutes
from goq.api.routes.producers import ProducerRoutes
from goq.api.routes.receive import ReceiveRoutes
from goq.api.routes.restores import RestoreRoutes
from goq.api.routes.scheduled import ScheduledRoutes
from goq.api.routes.schedules import ScheduleRoutes
from goq.api.routes.search import SearchRoutes
from goq.api.routes.tokens import TokenRoutes
from goq.api.routes.topics import HistoryRoutes, TopicRoutes
from goq.api.routes.trace import TraceRoutes
from goq.api.routing_policy import ToAllLeaders, ToPartitionLeader
from goq.api.views.group_backlog import ReadyAges
from goq.api.views.health import cluster_problems
from goq.api.views.live.node_load import NodeLoadReader
from goq.api.views.live.view import LiveView
from goq.api.views.principal_usage import PrincipalUsage
from goq.api.views.schedule_publisher import SchedulePublisher
from goq.backup.node_backups import NodeBackups
from goq.backup.node_restores import NodeRestores
from goq.broker.broker import Broker
from goq.broker.topic.admin.start_queue import StartQueue
from goq.cluster.admin.standalone_view import StandaloneView
from goq.config.backup import BackupConfig
from goq.errors import NotAllowed, NotLeader
from goq.http.failure_log import FailureLog
from goq.http.message import Handler, Request, Response
from goq.http.tls.server_certificate import ServerCertificate
from goq.model import DEAD_LETTERS_SUFFIX
from goq.schedules.schedule_manager import ScheduleManager
from goq.schedules.schedule_runner import ScheduleRunner
from goq.storage.disk_space import DiskSpace

if TYPE_CHECKING:
    from goq.cluster.cluster_node import ClusterNode

_ACROSS_TOPICS: Final = frozenset(("dead", "redrive", "trace"))


class App:
    """The API of one node; ``handle`` answers its requests."""

    def __init__(
        self,
        broker: Broker,
        node_id: str,
        own_url: Callable[[], str],
        is_draining: Callable[[], bool],
        cluster: ClusterNode | None = None,
        shortages: Callable[[], list[str]] = list,
        space: DiskSpace | None = None,
        *,
        partition_metrics: bool = True,
        token_table: TokenTable | None = None,
        certificate: ServerCertificate | None = None,
        backup: BackupConfig | None = None,
    ) -> None:
        """``shortages`` returns what the node runs out of, in words for users.

        Without ``token_table`` the node asks for no tokens.
        """
        stats = RequestStats()
        self.failures = FailureLog()
        view = StandaloneView(broker, node_id, own_url) if cluster is None else cluster.view
        ready_ages = ReadyAges()
        self.metrics = MetricSources(
            broker, stats, view, space, ready_ages, partitions=partition_metrics
        )
        self.metrics.certificate = certificate
        self.backups = _backups(broker, backup or BackupConfig(), cluster)
        self.metrics.backups = self.backups
        self.restores = _restores(broker, self.backups.config, cluster)
        traces = TraceRoutes(broker, node_id)
        quotas = self.metrics.quotas
        usage = PrincipalUsage(broker, quotas, cluster.stored_bytes.elsewhere if cluster else None)
        receive = ReceiveRoutes(broker, usage)
        operations = OperationRoutes(
            broker,
            node_id,
            self.metrics,
            is_draining,
            shortages if cluster is None else lambda: [*cluster.readiness.pending(), *shortages()],
            lambda: cluster is None or cluster.readiness.has_started,
            space,
            certificate,
            list if cluster is None else partial(cluster_problems, cluster),
        )
        now_ms = broker.clock.wall_ms
        tokens = TokenManager(broker.metadata, now_ms)
        self.schedules = ScheduleRunner(
            broker.metadata,
            SchedulePublisher(lambda: self.handle, token_table).publish,
            lambda: cluster is None or cluster.controller.is_active,
            now_ms,
        )
        schedules = ScheduleManager(broker.metadata, now_ms, self.schedules.wake)
        self.access = (
            None
            if token_table is None
            else AccessControl(
                token_table,
                tokens,
                now_ms,
                _node_proof(cluster),
                quotas,
                _head_proof(cluster),
                lambda: cluster is None or not cluster.freshness.must_catch_up,
            )
        )
        if cluster is not None and token_table is not None:
            cluster.quotas.attach(quotas, token_table.named)
            cluster.stored_bytes.attach(usage.stored_here, token_table.named)
        live = LiveView(broker, ready_ages)
        load = NodeLoadReader(broker, node_id, stats, self._connection_count, space)
        routes: list[Route] = [
            *_topic_routes(broker, node_id, cluster).routes(),
            *MessageRoutes(broker, usage, _acknowledged_copies(cluster)).routes(),
            *EventRoutes(broker).routes(),
            *SingleMessageRoutes(broker).routes(),
            *traces.routes(),
            *ScheduledRoutes(broker).routes(),
            *HistoryRoutes(broker).routes(),
            *receive.routes(),
            *GroupRoutes(broker).routes(),
            *ProducerRoutes(broker).routes(),
            *MemberRoutes(broker).routes(),
            *DeadLetterRoutes(broker).routes(),
            *SearchRoutes(broker, traces.traced).routes(),
            *GrepRoutes(broker).routes(),
            *TokenRoutes(broker.metadata, tokens).routes(),
            *ScheduleRoutes(broker, schedules).routes(),
            *AuditRoutes(broker).routes(),
            *BackupRoutes(self.backups).routes(),
            *RestoreRoutes(self.restores, broker.clock).routes(),
            *LiveRoutes(live, load, view).routes(),
            *ClusterRoutes(view).routes(),
            *operations.routes(),
        ]
        routes = [_refusing_in_part(route, broker) for route in routes]
        if cluster is not None:
            routes = [_sure_to_lead(route, cluster) for route in routes]
        operations.describe(routes)
        internal: list[Route] = []
        if cluster is not None:
            internal = [*receive.internal_routes(), *NodeCallRoutes(cluster.rpc_server).routes()]
        self.router = Router(
            [*routes, *internal],
            stats,
            self.failures,
            has_other_nodes=cluster is not None,
            access=self.access,
            pages=ConsoleRoutes().routes(),
        )
        self.handle: Handler = self.router.handle
        self.audit = (
            None
            if self.access is None
            else AuditTrail(broker.audit_log, self.router, node_id, broker.clock)
        )
        if broker.start_queue:
            self._wait_for_topics(broker.start_queue)
        if cluster is not None:
            self.handle = self._through_gateway(broker, cluster)
        elif self.audit is not None:
            self.handle = self.audit.recorded(self.handle)

    def _through_gateway(self, broker: Broker, cluster: ClusterNode) -> Handler:
        """Return the handler of a member: the router behind the gateway, and what wraps both."""
        from goq.api.gateway.cluster_version import with_cluster_version  # unused when standalone
        from goq.api.gateway.gateway import Gateway
        from goq.api.gateway.miss_retry import with_miss_retry
        from goq.api.gateway.relayed import with_relay

        leaders = cluster.leaders

        def held(name: str) -> Mapping[int, object]:
            topic = broker.topics.get(name) if leaders.has_session() else None
            return {} if topic is None else topic.partitions.held()

        ways, returns = cluster.routes, cluster.lease_return
        gateway = Gateway(self.router, leaders, ways.proxy, returns, cluster.freshness, held)
        handle = with_miss_retry(gateway.handle, cluster.freshness)
        handle = handle if self.audit is None else self.audit.recorded(handle)
        handle = with_relay(handle, ways.relay_server, cluster.rpc_server)
        handle = with_cluster_version(handle, lambda: cluster.state.version)
        named = None if self.access is None else self.access.named
        ways.request_server.attach(handle, named)
        return handle

    def _wait_for_topics(self, queue: StartQueue) -> None:
        """Have requests wait for topics that a start has not opened yet, until all are open."""

        def on_empty() -> None:
            self.router.opened = None

        self.router.opened = partial(_opened, queue)
        queue.on_empty = on_empty

    def _connection_count(self) -> int:
        server = self.metrics.server
        return 0 if server is None else server.connection_count

    def check_head(self, request: Request, is_large: bool) -> None:
        """Check the sender of a request before its body is read; raise ``GoqError``."""
        try:
            self.router.check_head(request, is_large=is_large)
        except NotAllowed as error:
            if self.audit is not None:
                self.audit.note_refusal(request, error)
            raise

    def stop_waiting(self) -> None:
        """Answer every waiting request now, because the node is stopping."""
        self.router.stop_waiting()
        if self.access is not None:
            self.access.close()


def _refusing_in_part(route: Route, broker: Broker) -> Route:
    """Have a route that answers for all partitions refuse while one cannot be opened here."""
    policy, handler = route.routing, route.handler
    if not isinstance(policy, ToAllLeaders) or not policy.needs_all:
        return route

    async def handle(request: Request, *values: str) -> Response:
        if policy.partition_of is None or policy.partition_of(request) is None:
            topic = broker.topics.get(policy.topic_of(request, values) or "")
            if topic is not None:
                topic.partitions.check_all_open()
        answer = handler(request, *values)
        return answer if isinstance(answer, Response) else await answer

    return replace(route, handler=handle)


def _sure_to_lead(route: Route, cluster: ClusterNode) -> Route:
    """Have a route of one leader make sure, whoever asks, that no other node leads by now.

    One that tells states refuses while this node may have been fenced. One that reads a log asks
    the cluster then.
    """
    policy, handler = route.routing, route.handler
    if not isinstance(policy, ToPartitionLeader):
        return route

    async def handle(request: Request, *values: str) -> Response:
        if not cluster.leaders.has_session():
            if policy.needs_session:
                raise NotLeader("another node may lead this partition by now", retry_after_ms=500)
            if (found := policy.find(request, values)) is not None:
                await cluster.confirm_leader(*found)
        answer = handler(request, *values)
        return answer if isinstance(answer, Response) else await answer

    return replace(route, handler=handle)


def _opened(queue: StartQueue, route: Route, values: Sequence[str]) -> Awaitable[None] | None:
    """Return what a request waits for while topics are in the start queue; None for nothing.

    A request for one topic waits for it and its dead letters. One that looks at several topics
    waits for all. Health, metrics and what names no topic wait for nothing.
    """
    kind, _, rest = route.path.removeprefix("/v1/").partition("/")
    if kind not in ("topics", "messages") or (not values and route.method == "POST"):
        return None
    if not values or not _ACROSS_TOPICS.isdisjoint(rest.split("/")):
        return queue.wait_for_all()
    name = values[0] if kind == "topics" else values[0].partition(":")[0]
    origin = name.removesuffix(DEAD_LETTERS_SUFFIX)
    names = [each for each in (name, origin, origin + DEAD_LETTERS_SUFFIX) if each in queue]
    return queue.wait_for(*names) if names else None


def _node_proof(cluster: ClusterNode | None) -> Callable[[Request], None] | None:
    """Return the check of requests that nodes relay; there are none on a standalone node."""
    if cluster is None:
        return None
    from goq.cluster.forwarding.relay import forwarded_text

    server = cluster.rpc_server

    def check(request: Request) -> None:
        server.authenticate(forwarded_text(request), request.headers, request.body)

    return check


def _head_proof(cluster: ClusterNode | None) -> Callable[[Request], bool] | None:
    """Return the check of the heads of requests that nodes send."""
    if cluster is None:
        return None
    from goq.cluster.forwarding.relay import signed_text

    server = cluster.rpc_server

    def check(request: Request) -> bool:
        text = signed_text(request)
        if text is None:
            return False
        server.check_head(text, request.headers)
        return True

    return check


def _backups(broker: Broker, config: BackupConfig, cluster: ClusterNode | None) -> NodeBackups:
    if cluster is None:
        return NodeBackups(broker, config)
    from goq.backup.cluster_source import ClusterSource  # unused by a standalone node

    source = ClusterSource(cluster.backup_files)
    return NodeBackups(broker, config, source, goes_first=lambda: cluster.raft.is_leader)


def _restores(broker: Broker, config: BackupConfig, cluster: ClusterNode | None) -> NodeRestores:
    if cluster is None:
        return NodeRestores(broker, config)

    async def is_in_cluster(topic_id: int) -> bool:
        await cluster.freshness.catch_up()
        return any(topic.topic_id == topic_id for topic in cluster.state.topics.values())

    return NodeRestores(broker, config, is_in_cluster)


def _topic_routes(broker: Broker, node_id: str, cluster: ClusterNode | None) -> TopicRoutes:
    if cluster is None:
        return TopicRoutes(broker, node_id)
    from goq.cluster.admin.cluster_view import topic_replication

    return TopicRoutes(broker, node_id, lambda topic: topic_replication(cluster.state, topic))


def _acknowledged_copies(cluster: ClusterNode | None) -> Callable[[str], int] | None:
    """Return a function from a topic to the copies of its acknowledged messages."""
    if cluster is None:
        return None
    from goq.cluster.admin.cluster_view import acknowledged_copies

    return lambda topic: acknowledged_copies(cluster.state, topic)
