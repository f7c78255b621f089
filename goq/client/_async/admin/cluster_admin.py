"""The administrative calls about the cluster. Any of its nodes answers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from goq.client import results
from goq.client._async.http import Http
from goq.client.arguments import as_texts, check_partition
from goq.client.protocol import routes


class AsyncClusterAdmin:
    """The calls about the cluster; a standalone node has only :meth:`describe_cluster`."""

    _http: Http

    async def describe_cluster(
        self, topic: str | None = None, *, lag: bool = False
    ) -> results.cluster.ClusterDescription:
        """Return the nodes, and the leaders and replicas of all topics or of one.

        With ``lag`` also how far followers are behind, where their leader answers.
        """
        target = routes.query(routes.CLUSTER, topic=topic, lag="true" if lag else None)
        return results.cluster.decode_cluster(await self._http.call("GET", target))

    async def add_node(self, node: str, address: str) -> None:
        """Add a node that is running and knows the others; ``address`` is ``host:port``.

        A node that is started with ``goq serve --join`` adds itself.
        """
        body = {"node": node, "address": address}
        await self._http.call("POST", f"{routes.CLUSTER}/nodes", body)

    async def decommission_node(self, node: str, *, fewer_replicas: bool = False) -> None:
        """Move all replicas off a node, then remove it from the cluster.

        Returns when that has begun; the node is gone when :meth:`describe_cluster` does not name
        it any more. With ``fewer_replicas`` partitions may end with fewer replicas than they
        should have; a fenced node does not need it.

        Raises ``NodeNotFound``; ``Conflict`` where too few nodes would be left, or data lost.
        """
        fewer = "true" if fewer_replicas else None
        target = routes.query(routes.node(node), fewer_replicas=fewer)
        await self._http.call("DELETE", target, repeatable=True)

    async def rebalance(
        self, *, dry_run: bool = False
    ) -> tuple[results.cluster.PartitionReassignment, ...]:
        """Plan reassignments that even out the nodes; begin them unless it is a dry run."""
        answer = await self._http.call("POST", f"{routes.CLUSTER}/rebalance", {"dry_run": dry_run})
        return results.cluster.decode_reassignments(answer)

    async def reassign_partition(self, topic: str, partition: int, replicas: Sequence[str]) -> None:
        """Begin to move a partition to these nodes, the preferred leader first.

        It serves meanwhile. Raises ``PartitionNotFound``, ``NodeNotFound``, ``Conflict``.
        """
        nodes = as_texts(replicas, "replicas")
        body = {"topic": topic, "partition": partition, "replicas": nodes}
        await self._http.call("POST", f"{routes.CLUSTER}/moves", body)

    async def cancel_reassignment(self, topic: str, partition: int) -> None:
        """Cancel the reassignment of a partition: its replicas stay where they were."""
        check_partition(partition)
        await self._http.call("DELETE", routes.move(topic, partition))

    async def elect_leader(
        self,
        topic: str,
        partition: int,
        leader: str | None = None,
        *,
        unclean: bool = False,
        dry_run: bool = False,
    ) -> results.cluster.LeaderElection:
        """Elect a node in sync as leader of a partition: ``leader``, or the preferred replica.

        With ``unclean``, a partition whose in-sync replicas are all lost gets a leader that may
        lack acknowledged messages. The result says where the replicas end and how many messages
        are lost. ``dry_run`` goes with ``unclean``: the result says so before anything is lost.
        """
        body: dict[str, Any] = {"topic": topic, "partition": partition}
        if leader is not None:
            body["leader"] = leader
        if unclean:
            body |= {"unclean": True, "dry_run": dry_run}
        return results.cluster.decode_election(
            await self._http.call("POST", f"{routes.CLUSTER}/elections", body)
        )

    async def set_cluster_config(self, **settings: int) -> results.cluster.ClusterConfiguration:
        """Change settings of the whole cluster, as ``min_insync=2``; return all of them.

        See :class:`~goq.client.ClusterConfiguration` for their names and units.
        """
        target = f"{routes.CLUSTER}/settings"
        answer = await self._http.call("PATCH", target, settings, repeatable=True)
        return results.cluster.decode_cluster_configuration(answer)
