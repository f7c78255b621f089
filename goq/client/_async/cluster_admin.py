"""The calls about the cluster: how it stands, and what operators do to it. Any node takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from goq.client._async.http import Http
from goq.client.protocol import routes

Json = dict[str, Any]


class AsyncClusterAdmin:
    """What a client can ask about the cluster. Alone a node has only :meth:`describe_cluster`."""

    _http: Http

    async def describe_cluster(self, topic: str | None = None, *, lag: bool = False) -> Json:
        """Return nodes, leaders and replicas, of all topics or of one.

        With ``lag`` also how far the replicas are; leaders that do not answer are left out.
        """
        target = routes.query(routes.CLUSTER, topic=topic, lag="true" if lag else None)
        return _dict(await self._http.call("GET", target))

    async def add_node(self, node: str, address: str) -> None:
        """Let a node in that runs and knows the others; ``goq serve --join`` does it by itself."""
        body = {"node": node, "address": address}
        await self._http.call("POST", f"{routes.CLUSTER}/nodes", body)

    async def decommission_node(self, node: str, *, fewer_replicas: bool = False) -> None:
        """Have a node give away what it has, then go; see :meth:`describe_cluster`.

        With ``fewer_replicas`` there may be fewer replicas then; of a node that is fenced that need
        not be said. Raises ``NodeNotFound``, ``Conflict`` where too few nodes would be left, or
        something would be lost.
        """
        fewer = "true" if fewer_replicas else None
        target = routes.query(routes.node(node), fewer_replicas=fewer)
        await self._http.call("DELETE", target, repeatable=True)

    async def rebalance(self, *, dry_run: bool = False) -> list[Json]:
        """Plan moves that make nodes even, and begin them unless it is a dry run."""
        answer = await self._http.call("POST", f"{routes.CLUSTER}/rebalance", {"dry_run": dry_run})
        return list(_dict(answer).get("moves", ()))

    async def reassign_partition(self, topic: str, partition: int, replicas: Sequence[str]) -> None:
        """Have a partition moved to these nodes, of which the first is preferred as leader."""
        body = {"topic": topic, "partition": partition, "replicas": list(replicas)}
        await self._http.call("POST", f"{routes.CLUSTER}/moves", body)

    async def cancel_reassignment(self, topic: str, partition: int) -> None:
        """Give a move up."""
        await self._http.call("DELETE", routes.move(topic, partition))

    async def elect_leader(
        self,
        topic: str,
        partition: int,
        leader: str | None = None,
        *,
        unclean: bool = False,
        dry_run: bool = False,
    ) -> Json:
        """Have a partition led by a node that is in sync, without a name by the preferred one.

        With ``unclean``, where nobody can lead, by one that may lack messages; then the answer
        says where the replicas end and how much is lost, with ``dry_run`` before it is.
        """
        body: Json = {"topic": topic, "partition": partition}
        if leader is not None:
            body["leader"] = leader
        if unclean:
            body |= {"unclean": True, "dry_run": dry_run}
        return _dict(await self._http.call("POST", f"{routes.CLUSTER}/elections", body))

    async def set_cluster_config(self, **settings: int) -> Json:
        """Change settings of the whole cluster, as ``min_insync=2``; return all."""
        target = f"{routes.CLUSTER}/settings"
        return _dict(await self._http.call("PATCH", target, settings, repeatable=True))


def _dict(answer: object) -> Json:
    return answer if isinstance(answer, dict) else {}
