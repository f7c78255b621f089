"""The administrative calls about topics, groups and the node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, TypeVar

from goq.client import results
from goq.client._async.admin.cluster_admin import AsyncClusterAdmin
from goq.client._async.admin.message_admin import AsyncMessageAdmin
from goq.client._async.admin.schedule_admin import AsyncScheduleAdmin
from goq.client._async.admin.token_admin import AsyncTokenAdmin
from goq.client._async.runtime import sleep
from goq.client.arguments import Time, as_dict, as_texts, as_time, check_int, check_partition
from goq.client.protocol import routes

T = TypeVar("T")
_POLL_S_MIN = 0.005
_POLL_S_MAX = 0.05


class AsyncAdmin(AsyncMessageAdmin, AsyncClusterAdmin, AsyncTokenAdmin, AsyncScheduleAdmin):
    """The calls about topics, groups and the node; base of the client."""

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        settings: Mapping[str, object] | None = None,
        *,
        replication_factor: int | None = None,
        min_insync: int | None = None,
    ) -> results.topic.TopicDescription:
        """Create a topic and return it.

        ``partitions`` defaults to the node's setting. ``settings`` are topic settings such as
        ``{"retention.age": "7d"}``, see docs/configuration.md; the others get their defaults.
        ``replication_factor`` is the number of replicas of each partition, and ``min_insync`` how
        many must have a write before it is acknowledged; both default to the cluster's.

        Raises ``TopicExists`` if there is one of this name, ``InvalidInput`` for a setting or a
        name that is not valid.
        """
        body = _topic_body(settings, partitions, replication_factor, min_insync)
        body["name"] = name
        return results.topic.decode_topic(await self._http.call("POST", routes.TOPICS, body))

    async def list_topics(self) -> tuple[results.topic.TopicDescription, ...]:
        """Return all topics, by name."""
        return results.topic.decode_topics(await self._http.call("GET", routes.TOPICS))

    async def describe_topic(self, name: str) -> results.topic.TopicDescription:
        """Return a topic: its partitions with their offsets, and its settings.

        Raises ``TopicNotFound``.
        """
        return results.topic.decode_topic(await self._http.call("GET", routes.topic(name)))

    async def get_topic_history(
        self, topic: str, days: int | None = None
    ) -> results.topic.TopicHistory:
        """Return a topic's messages by day, its current rates, and what is scheduled in it.

        ``days`` is how many days of UTC to look back, today included; the node's default is 14.
        Raises ``TopicNotFound``.
        """
        target = routes.query(routes.history(topic), days=days)
        return results.topic.decode_topic_history(await self._http.call("GET", target))

    async def alter_topic(
        self,
        name: str,
        *,
        settings: Mapping[str, object] | None = None,
        partitions: int | None = None,
        replication_factor: int | None = None,
        min_insync: int | None = None,
        unset: Collection[str] = (),
    ) -> results.topic.TopicDescription:
        """Change settings of a topic or its replication, or add partitions; return the topic.

        Settings that are not given stay; those in ``unset`` get their defaults. ``partitions`` is
        the new number: there can only be more, and most keys belong to another partition then.
        Replicas are added and removed in the background, see :meth:`describe_cluster`. Raises
        ``TopicNotFound``, ``InvalidInput``.
        """
        body = _topic_body(settings, partitions, replication_factor, min_insync)
        if unset:
            body["unset"] = as_texts(unset, "unset")
        return results.topic.decode_topic(
            await self._http.call("PATCH", routes.topic(name), body, repeatable=True)
        )

    async def reopen_partition(self, topic: str, partition: int) -> None:
        """Open a partition that is offline, once its cause is removed.

        Raises ``PartitionOffline`` with the reason if it stays offline, ``PartitionNotFound``, and
        ``Conflict`` in a cluster.
        """
        check_partition(partition)
        await self._http.call("POST", routes.reopen(topic, partition), repeatable=True)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its messages and groups. Raises ``TopicNotFound``."""
        await self._http.call("DELETE", routes.topic(name))

    async def list_groups(self, topic: str) -> tuple[results.group.GroupDescription, ...]:
        """Return the groups of a topic. Raises ``TopicNotFound``."""
        return results.group.decode_groups(await self._http.call("GET", routes.groups(topic)))

    async def describe_group(
        self, topic: str, group: str, *, as_of: Time | None = None
    ) -> results.group.GroupDescription:
        """Return a group's progress: now, or as it was at the time ``as_of``.

        Raises ``GroupNotFound`` if the group does not exist, or did not exist then, and
        ``HistoryNotRetained`` for a time before the retained history.
        """
        time = None if as_of is None else as_time(as_of, "as_of")
        target = routes.query(routes.group(topic, group), as_of=time)
        return results.group.decode_group(await self._http.call("GET", target))

    async def describe_members(self, topic: str, group: str) -> results.group.GroupMembership:
        """Return the members of a group, the partitions of each, and the latest rebalances.

        Raises ``GroupNotFound``.
        """
        return results.group.decode_membership(
            await self._http.call("GET", routes.members(topic, group))
        )

    async def reset_group(
        self,
        topic: str,
        group: str,
        *,
        to: str | int | datetime,
        end: str | int | datetime | None = None,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> results.group.GroupResetResult:
        """Move a group to another position; the leases that it holds end. A new group begins there.

        ``to`` is ``earliest``, ``latest``, an offset, or a time as in ``-1h``. With an ``end``, in
        the same forms, the group gets nothing from there on until it is reset again. ``partition``
        restricts the reset to one. With ``dry_run`` nothing changes.
        """
        body: dict[str, Any] = {"to": as_time(to, "to"), "dry_run": dry_run}
        if end is not None:
            body["end"] = as_time(end, "end")
        if partition is not None:
            body["partition"] = partition
        path = f"{routes.group(topic, group)}/reset"
        return results.group.decode_reset(
            await self._http.call("POST", path, body, repeatable=True)
        )

    async def set_group_config(
        self, topic: str, group: str, settings: Mapping[str, object]
    ) -> results.group.GroupDescription:
        """Override settings of the topic for a group; return the group.

        The settings are those under ``delivery`` of a topic, such as ``{"max_attempts": 7}``. A
        group that does not exist is created. Raises ``TopicNotFound``, ``InvalidInput``.
        """
        body = {"settings": as_dict(settings, "settings")}
        target = routes.group(topic, group)
        return results.group.decode_group(
            await self._http.call("PUT", target, body, repeatable=True)
        )

    async def delete_group(self, topic: str, group: str) -> None:
        """Delete a group with its progress; a new group of this name starts over.

        Raises ``GroupNotFound``.
        """
        await self._http.call("DELETE", routes.group(topic, group))

    async def get_version(self) -> results.node.NodeVersion:
        """Return the versions that the node runs."""
        return results.node.decode_version(await self._http.call("GET", "/version"))

    async def get_health(self) -> results.node.NodeHealth:
        """Return the health of the node, also where it is not ``ok``."""
        return results.node.decode_health(await self._http.call("GET", routes.HEALTHZ))

    async def get_readiness(self) -> results.node.NodeHealth:
        """Return whether the node takes traffic: ``status`` is ``ok``, or see ``waits_for``."""
        return results.node.decode_health(await self._http.call("GET", routes.READYZ))

    async def get_live_state(
        self,
        *topics: str,
        groups: str | None = None,
        search: str | None = None,
        order: results.live.LiveOrder | None = None,
        top: int | None = None,
        interval_ms: int | None = None,
    ) -> results.live.LiveState:
        """Return what the nodes and topics of the whole cluster do now.

        The totals begin at 0 when a node starts; two answers give rates. With ``topics`` only
        these, and how many messages of each lane and tenant wait in their groups, or in those with
        ``groups`` in their names. With ``search`` only topics with this in their names. The state
        tells of ``top`` topics, the first by ``order``: by name, or those with the most. The
        orders by rate, ``publish``, ``deliver`` and ``ack``, are by what happened since the call
        before with the same arguments. Give the pause between calls as ``interval_ms``, by default
        a second.
        """
        check_int(interval_ms, "interval_ms")
        target = routes.query(
            routes.LIVE,
            limit=1,
            topics=results.live.names_of(as_texts(topics, "topics")),
            groups=groups,
            search=search,
            order=order,
            top=top,
            interval=None if interval_ms is None else f"{interval_ms}ms",
        )
        answer = await self._http.request("GET", target, accept=routes.NDJSON, repeatable=True)
        return results.live.decode_live(answer.body)

    async def create_backup(self, to: str | None = None) -> results.node.FinishedBackup:
        """Have the node back itself up to the folder of its setting ``backup.to``; wait for it.

        ``to`` may only be that folder. The result of one that is under way already is returned.
        Needs the rule ``operate:*``. Raises ``InvalidInput`` for another folder, and the error of a
        backup that failed.
        """
        body = {} if to is None else {"to": to}
        return await self._finished(routes.BACKUPS, body, results.node.decode_backup)

    async def restore_topic(
        self,
        topic: str,
        new_name: str,
        *,
        place: str | None = None,
        backup: str | None = None,
        at: Time | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> results.node.FinishedRestore:
        """Have the node restore a topic of its backups under another name; wait for it.

        The backups are those in the folder of its setting ``backup.to``, and ``place`` may only be
        that folder. ``backup`` is a name that ``goq backup list`` shows; without it, the newest
        one, or the oldest that reaches the time ``at``. ``settings`` replace those of the backup.
        The topic has its groups and their progress; all leases have ended.

        Needs the rules ``operate:*``, ``read`` of the one and ``manage`` of the other. Raises
        ``TopicExists``, ``InvalidInput``, and the error of a restore that failed: ``NotFound`` if
        there is no such backup, or no such topic in it.
        """
        body: dict[str, Any] = {"topic": topic, "as": new_name, "from": place, "backup": backup}
        body |= {"at": None if at is None else as_time(at, "at")}
        body |= {"settings": None if settings is None else as_dict(settings, "settings")}
        given = {name: value for name, value in body.items() if value is not None}
        return await self._finished(routes.RESTORES, given, results.node.decode_restore)

    async def _finished(
        self, path: str, body: dict[str, Any], decode: Callable[[object, int], T | None]
    ) -> T:
        """Begin work of the node, and return its result once ``decode`` finds one."""
        number = results.node.decode_begun(await self._http.call("POST", path, body))
        pause_s = _POLL_S_MIN
        while True:
            finished = decode(await self._http.call("GET", path), number)
            if finished is not None:
                return finished
            await sleep(pause_s)
            pause_s = min(pause_s * 1.2, _POLL_S_MAX)


def _topic_body(
    settings: Mapping[str, object] | None,
    partitions: int | None,
    replication_factor: int | None,
    min_insync: int | None,
) -> dict[str, Any]:
    given = {
        "settings": None if settings is None else as_dict(settings, "settings"),
        "partitions": partitions,
        "replication_factor": replication_factor,
        "min_insync": min_insync,
    }
    return {name: value for name, value in given.items() if value is not None}
