"""Dead letters: look, put back, purge. Each call does a portion, and says where to go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from goq import limits
from goq.client._async.http import Http
from goq.client.protocol import routes

Json = dict[str, Any]


class AsyncDeadLetters:
    """What a client can do with dead letters.

    ``topic`` is the one that they died in, or the one that they are kept in. Which are meant say,
    all optional: ``group``, ``reason`` (a part of it), ``cause``, ``key``, ``from_time`` and
    ``to_time`` (when they died), and ``ids``, of now or of before. An answer's ``next``, where it
    is not None, goes into ``after`` of the next call; there may be more to come although an
    answer holds nothing.
    """

    _http: Http

    async def dead_letters(
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

    async def redrive(
        self,
        topic: str,
        *,
        to: str | None = None,
        max: int = 1000,
        after: str | None = None,
        ids: Sequence[str] = (),
        dry_run: bool = False,
        force: bool = False,
        **wanted: str | None,
    ) -> Json:
        """Put dead letters back where they came from, or into the topic ``to``.

        Those that were put back too often already stay, unless with ``force``.
        """
        body: Json = {"max": max, "dry_run": dry_run, "force": force, "ids": [*ids]}
        body |= {"to": to, "after": after} | wanted
        given = {name: value for name, value in body.items() if value is not None}
        path = routes.redrive(topic)
        return _dict(await self._http.call("POST", path, given))

    async def purge_dead_letters(
        self,
        topic: str,
        *,
        max: int = limits.REDRIVE_MESSAGES_MAX,
        after: str | None = None,
        ids: Sequence[str] = (),
        dry_run: bool = False,
        **wanted: str | None,
    ) -> Json:
        """Take dead letters away for good."""
        target = routes.query(
            routes.dead(topic),
            max=max,
            after=after,
            dry_run="true" if dry_run else None,
            **_query(ids, wanted),
        )
        return _dict(await self._http.call("DELETE", target))


def _query(ids: Sequence[str], wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    return {"ids": ",".join(ids) or None, **wanted}


def _dict(answer: object) -> Json:
    return answer if isinstance(answer, dict) else {}
