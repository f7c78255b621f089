"""The calls that administer and inspect: thin, and their answers are plain dicts and lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from goq.client._async.cluster_admin import AsyncClusterAdmin
from goq.client._async.http import Http
from goq.client._async.message_admin import AsyncDeadLetters
from goq.client.protocol import routes
from goq.model import MessageId

Json = dict[str, Any]


class AsyncAdmin(AsyncDeadLetters, AsyncClusterAdmin):
    """What a client can ask about topics, groups, messages and the node itself."""

    _http: Http

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Json:
        """Create a topic; raise ``TopicExists`` if there is one of this name."""
        body: Json = {"name": name}
        if partitions is not None:
            body["partitions"] = partitions
        if settings is not None:
            body["settings"] = dict(settings)
        return _dict(await self._http.call("POST", routes.TOPICS, body))

    async def list_topics(self) -> list[Json]:
        """Return all topics."""
        return _list(await self._http.call("GET", routes.TOPICS), "topics")

    async def describe_topic(self, name: str) -> Json:
        """Return one topic: its partitions with their bounds, and its settings."""
        return _dict(await self._http.call("GET", routes.topic(name)))

    async def get_topic_history(self, topic: str, days: int | None = None) -> Json:
        """Return what a topic holds by day, its rates of late, and what is scheduled in it.

        ``days`` are the last so many of UTC, today included.
        """
        return _dict(await self._http.call("GET", routes.query(routes.history(topic), days=days)))

    async def alter_topic(self, name: str, **changes: object) -> Json:
        """Change a topic: ``settings=`` and what else the node lets change."""
        return _dict(await self._http.call("PATCH", routes.topic(name), changes, repeatable=True))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with everything in it."""
        await self._http.call("DELETE", routes.topic(name))

    async def list_groups(self, topic: str) -> list[Json]:
        """Return the groups of a topic."""
        return _list(await self._http.call("GET", routes.groups(topic)), "groups")

    async def describe_group(
        self, topic: str, group: str, *, as_of: str | int | None = None
    ) -> Json:
        """Return one group: how far it is and what it holds, or was and held ``as_of`` a time.

        Raises ``GroupNotFound`` where there was none, ``HistoryNotRetained`` for a time before what
        is kept.
        """
        target = routes.query(routes.group(topic, group), at=as_of)
        return _dict(await self._http.call("GET", target))

    async def describe_members(self, topic: str, group: str) -> Json:
        """Return who owns which partitions of a group, what moves, and the latest changes."""
        return _dict(await self._http.call("GET", routes.members(topic, group)))

    async def reset_group(
        self,
        topic: str,
        group: str,
        *,
        to: str | int,
        end: str | int | None = None,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> Json:
        """Set a group back or forth to ``earliest``, ``latest``, an offset or a time.

        With an ``end`` it gets nothing from there on until it is reset again.
        """
        body: Json = {"to": to, "dry_run": dry_run}
        body |= {k: v for k, v in (("end", end), ("partition", partition)) if v is not None}
        path = f"{routes.group(topic, group)}/reset"
        return _dict(await self._http.call("POST", path, body, repeatable=True))

    async def set_group_config(
        self, topic: str, group: str, settings: Mapping[str, object]
    ) -> Json:
        """Give a group settings of its own, over those of its topic; return the group."""
        body = {"settings": dict(settings)}
        return _dict(
            await self._http.call("PUT", routes.group(topic, group), body, repeatable=True)
        )

    async def delete_group(self, topic: str, group: str) -> None:
        """Delete a group and forget what it has done."""
        await self._http.call("DELETE", routes.group(topic, group))

    async def peek(
        self,
        topic: str,
        group: str | None = None,
        *,
        state: str = "ready",
        limit: int = 10,
        after: str | None = None,
    ) -> Json:
        """Return messages of a group in a state, or a topic's oldest, without touching them.

        A group's come in pages: ``next`` is what to give as ``after``, None on the last page. A
        page may be short, even empty, and not be the last.
        """
        if group is not None:
            path = f"{routes.group(topic, group)}/peek"
            target = routes.query(path, state=state, limit=limit, after=after)
            return _dict(await self._http.call("GET", target))
        found: list[Json] = []
        for partition in (await self.describe_topic(topic))["partitions"]:
            target = routes.query(
                routes.messages(topic), partition=partition["partition"], limit=limit
            )
            found.extend((await self._http.call("GET", target))["messages"])
        found.sort(key=lambda item: (item["timestamp"], item["partition"], item["offset"]))
        return {"messages": found[:limit], "next": None}

    async def get_message(self, message_id: str | MessageId) -> Json:
        """Return one message and what is known of it."""
        return _dict(await self._http.call("GET", routes.message(message_id)))

    async def list_scheduled(
        self,
        topic: str,
        *,
        limit: int = 100,
        after: str | None = None,
        until: str | int | None = None,
    ) -> Json:
        """Return what waits for its time, the next to be due first, a page at a time."""
        target = routes.query(routes.scheduled(topic), limit=limit, after=after, until=until)
        return _dict(await self._http.call("GET", target))

    async def cancel_message(
        self, message_id: str | MessageId, *, reason: str | None = None
    ) -> Json:
        """Deliver a message to no group that has not got it yet; return what holds for it.

        Raises ``Conflict`` if every group has finished it.
        """
        target = routes.query(routes.message(message_id), reason=reason)
        return _dict(await self._http.call("DELETE", target, repeatable=True))

    async def set_message_priority(self, message_id: str | MessageId, priority: str | int) -> Json:
        """Move a message that waits to another lane; raises ``Conflict`` if it does not wait."""
        change = {"priority": priority}
        return _dict(
            await self._http.call("PATCH", routes.message(message_id), change, repeatable=True)
        )

    async def reschedule_message(
        self, message_id: str | MessageId, deliver_at: str | float
    ) -> Json:
        """Give a message that waits for its time another; one in the past is at once.

        Raises ``Conflict`` if it does not wait for its time.
        """
        change = {"deliver_at": deliver_at}
        return _dict(
            await self._http.call("PATCH", routes.message(message_id), change, repeatable=True)
        )

    async def get_version(self) -> Json:
        """Return the node's version."""
        return _dict(await self._http.call("GET", "/version"))

    async def get_health(self) -> Json:
        """Return what the node says of its own health."""
        return _dict(await self._http.call("GET", "/healthz"))


def _dict(answer: object) -> Json:
    return answer if isinstance(answer, dict) else {}


def _list(answer: object, name: str) -> list[Json]:
    items = answer.get(name) if isinstance(answer, dict) else answer
    return items if isinstance(items, list) else []
