"""The lives of messages, as the node tells them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from goq import limits
from goq.client._async.http import Http
from goq.client.arguments import Time, as_bytes
from goq.client.protocol import routes
from goq.errors import InvalidInput
from goq.model import MessageId

Json = dict[str, Any]


class AsyncTracing:
    """What a client can ask about what happened to messages."""

    _http: Http

    async def get_trace(
        self, message_id: str | MessageId, *, wait_ms: int = 0, seen: int = 0
    ) -> Json:
        """Return every step of a message's life: ``message``, ``events``, ``attempts``, ….

        With ``wait_ms`` the node holds the answer for so long until there are more events than
        ``seen``. Raises ``MessageNotFound`` if there is no such message, and says what there is.
        """
        target = routes.query(
            routes.trace(message_id),
            wait=f"{min(wait_ms, limits.WAIT_MS_MAX)}ms" if wait_ms else None,
            seen=seen or None,
        )
        return _dict(await self._http.call("GET", target, wait_ms=wait_ms))

    async def search_traces(
        self,
        topic: str,
        *,
        key: bytes | str | None = None,
        dedup_id: str | None = None,
        header: tuple[str, str] | None = None,
        from_time: Time | None = None,
        to_time: Time | None = None,
        limit: int = 10,
        cursor: str | None = None,
    ) -> Json:
        """Return the ``traces`` of the messages with a key, a dedup id or a header.

        The newest comes first. The times bound when they were published. ``next``, where it is not
        None, goes into ``cursor`` of the next call; there may be more although an answer holds
        nothing. Raises ``MessageNotFound`` if there is no such message at all.
        """
        if (key, dedup_id, header).count(None) != 2:
            raise InvalidInput("give one of key, dedup_id and header", field="key")
        encoded = None if key is None else base64.b64encode(as_bytes(key)).decode()
        target = routes.query(
            routes.traces(topic),
            key_base64=encoded,
            dedup_id=dedup_id,
            header=None if header is None else "=".join(header),
            from_time=None if from_time is None else str(from_time),
            to_time=None if to_time is None else str(to_time),
            limit=limit,
            cursor=cursor,
        )
        return _dict(await self._http.call("GET", target, wait_ms=limits.WAIT_MS_MAX))


def _dict(answer: object) -> Json:
    return answer if isinstance(answer, dict) else {}


class AsyncDeadLetters:
    """What a client can do with dead letters.

    ``topic`` is the one that they died in, or the one that they are kept in. Which are meant say,
    all optional: ``group``, ``reason`` (a part of it), ``cause``, ``key``, ``from_time`` and
    ``to_time`` (when they died), and ``ids``, of now or of before. An answer's ``next``, where it
    is not None, goes into ``after`` of the next call; there may be more to come although an
    answer holds nothing.
    """

    _http: Http

    async def list_dead_letters(
        self,
        topic: str,
        *,
        limit: int = 100,
        after: str | None = None,
        ids: Sequence[str] = (),
        **wanted: str | None,
    ) -> Json:
        """Return dead letters, each with where it comes from and how it died."""
        target = routes.query(routes.dead(topic), limit=limit, after=after, **_query(ids, wanted))
        return _dict(await self._http.call("GET", target))

    async def redrive_dead_letters(
        self,
        topic: str,
        *,
        to: str | None = None,
        max_messages: int = 1000,
        after: str | None = None,
        ids: Sequence[str] = (),
        dry_run: bool = False,
        force: bool = False,
        **wanted: str | None,
    ) -> Json:
        """Put dead letters back where they came from, or into the topic ``to``.

        Those that were put back too often already stay, unless with ``force``.
        """
        body: Json = {"max": max_messages, "dry_run": dry_run, "force": force, "ids": [*ids]}
        body |= {"to": to, "after": after} | wanted
        given = {name: value for name, value in body.items() if value is not None}
        path = routes.redrive(topic)
        return _dict(await self._http.call("POST", path, given))

    async def purge_dead_letters(
        self,
        topic: str,
        *,
        max_messages: int = limits.REDRIVE_MESSAGES_MAX,
        after: str | None = None,
        ids: Sequence[str] = (),
        dry_run: bool = False,
        **wanted: str | None,
    ) -> Json:
        """Take dead letters away for good."""
        target = routes.query(
            routes.dead(topic),
            max=max_messages,
            after=after,
            dry_run="true" if dry_run else None,
            **_query(ids, wanted),
        )
        return _dict(await self._http.call("DELETE", target))


def _query(ids: Sequence[str], wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    return {"ids": ",".join(ids) or None, **wanted}
