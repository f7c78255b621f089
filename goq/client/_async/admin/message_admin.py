"""The administrative calls about single messages: state, schedule, trace, dead letters."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from goq import limits
from goq.client import results
from goq.client._async.http import Http
from goq.client.arguments import Time, as_bytes, as_texts, as_time, check_int, check_list
from goq.client.protocol import routes
from goq.client.protocol.answers import MessagesAnswer, TopicAnswer, read_answer
from goq.errors import InvalidInput
from goq.model import MessageId, check_text

Filter = str | bytes | float | datetime
_FILTER_TIMES: Final = ("from_time", "to_time")


class AsyncMessageAdmin:
    """The calls about single messages; base of the client."""

    _http: Http

    async def get_message(self, message_id: str | MessageId) -> results.message.MessageDescription:
        """Return a message with its state in all and for each group.

        Raises ``MessageNotFound``.
        """
        return results.message.decode_message(
            await self._http.call("GET", routes.message(message_id))
        )

    async def peek(
        self,
        topic: str,
        group: str | None = None,
        *,
        state: str = "ready",
        limit: int = 10,
        after: str | None = None,
    ) -> results.message.MessagePage:
        """Return messages of a group in a state, or a topic's oldest, without leasing them.

        ``state`` is one of ``ready``, ``blocked``, ``leased``, ``retry``, ``scheduled``,
        ``expired``, ``dead``, ``done`` and ``cancelled``. A group's messages come in pages of at
        most ``limit``: ``next`` goes into ``after``. A page may be short, even empty, and not be
        the last one. Without a group there is one page.
        """
        if group is not None:
            path = f"{routes.group(topic, group)}/peek"
            target = routes.query(path, state=state, limit=limit, after=after)
            return results.message.decode_message_page(await self._http.call("GET", target))
        check_int(limit, "limit")
        found: list[dict[str, Any]] = []
        answer = await self._http.call("GET", routes.topic(topic))
        for each in read_answer(TopicAnswer, answer).partitions:
            target = routes.query(routes.messages(topic), partition=each.partition, limit=limit)
            answer = await self._http.call("GET", target)
            found.extend(read_answer(MessagesAnswer, answer).messages)
        page = results.message.decode_message_page({"messages": found, "next": None})
        in_order = sorted(page.messages, key=lambda m: (str(m.raw.get("timestamp")), m.id))
        return replace(page, messages=tuple(in_order[:limit]))

    async def list_scheduled(
        self,
        topic: str,
        *,
        limit: int = 100,
        after: str | None = None,
        until: Time | None = None,
    ) -> results.message.MessagePage:
        """Return messages that wait for their time, the next one due first.

        ``until`` leaves out what is due at that time or later. ``next`` of the page goes into
        ``after`` of the next call.
        """
        target = routes.query(
            routes.scheduled(topic), limit=limit, after=after, until=_query_time(until, "until")
        )
        return results.message.decode_message_page(await self._http.call("GET", target))

    async def cancel_message(
        self, message_id: str | MessageId, *, reason: str | None = None
    ) -> results.message.MessageDescription:
        """Deliver a message to no group that has not received it; return its state.

        ``reason`` is kept in the trace. Raises ``MessageNotFound``; ``Conflict`` if every group has
        finished it.
        """
        target = routes.query(routes.message(message_id), reason=reason)
        return results.message.decode_message(
            await self._http.call("DELETE", target, repeatable=True)
        )

    async def set_message_priority(
        self, message_id: str | MessageId, priority: str | int
    ) -> results.message.MessageDescription:
        """Move a waiting message to another lane, by its name or number; return its state.

        Raises ``MessageNotFound``; ``Conflict`` if the message does not wait.
        """
        return await self._change(message_id, {"priority": priority})

    async def reschedule_message(
        self, message_id: str | MessageId, deliver_at: Time
    ) -> results.message.MessageDescription:
        """Give a scheduled message another time, as ``+1h``; one in the past means now.

        Raises ``MessageNotFound``; ``Conflict`` if the message does not wait for its time.
        """
        return await self._change(message_id, {"deliver_at": as_time(deliver_at, "deliver_at")})

    async def get_trace(
        self, message_id: str | MessageId, *, wait_ms: int = 0, seen: int = 0
    ) -> results.trace.MessageTrace:
        """Return the life of a message, step by step.

        With ``wait_ms`` the node answers when there are more than ``seen`` events, or after that
        many milliseconds. Raises ``MessageNotFound``, which says which messages there are.
        """
        check_int(wait_ms, "wait_ms")
        target = routes.query(
            routes.trace(message_id),
            wait=f"{min(wait_ms, limits.WAIT_MS_MAX)}ms" if wait_ms else None,
            seen=seen or None,
        )
        return results.trace.decode_trace(await self._http.call("GET", target, wait_ms=wait_ms))

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
    ) -> results.trace.TracePage:
        """Return the traces of messages with a key, a dedup id or a header, the newest first.

        One of the three is given. The times bound when the messages were published. ``next`` of
        the page, where it is not None, goes into ``cursor`` of the next call: there may be more
        although a page is empty. Raises ``MessageNotFound`` if there is no such message at all.
        """
        if (key, dedup_id, header).count(None) != 2:
            raise InvalidInput("give one of key, dedup_id and header", field="key")
        encoded = None if key is None else base64.b64encode(as_bytes(key, "key")).decode()
        target = routes.query(
            routes.traces(topic),
            key_base64=encoded,
            dedup_id=dedup_id,
            header=None if header is None else _written_header(header),
            from_time=_query_time(from_time, "from_time"),
            to_time=_query_time(to_time, "to_time"),
            limit=limit,
            cursor=cursor,
        )
        answer = await self._http.call("GET", target, wait_ms=limits.WAIT_MS_MAX)
        return results.trace.decode_trace_page(answer)

    async def search_messages(
        self,
        topic: str,
        text: str | None = None,
        *,
        parts: Sequence[str] = ("value", "key", "header"),
        ignore_case: bool = False,
        from_time: Time | None = None,
        to_time: Time | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> results.message.FoundMessagePage:
        """Return the messages that contain ``text``, or all, the newest first.

        ``parts`` are where to look; ``header`` means the values of headers. The node looks at all
        messages between the times, a bounded number for each page: ``next`` of the page, where it
        is not None, goes into ``cursor`` of the next call, also if a page is empty.
        """
        target = routes.query(
            routes.search(topic),
            **({} if text is None else {"text": text, "in": ",".join(as_texts(parts, "parts"))}),
            ignore_case="true" if ignore_case else None,
            from_time=_query_time(from_time, "from_time"),
            to_time=_query_time(to_time, "to_time"),
            limit=limit,
            cursor=cursor,
        )
        answer = await self._http.call("GET", target, wait_ms=limits.WAIT_MS_MAX)
        return results.message.decode_found_page(answer)

    async def list_dead_letters(
        self,
        topic: str,
        *,
        limit: int = 100,
        after: str | None = None,
        ids: Sequence[str | MessageId] = (),
        **wanted: Filter | None,
    ) -> results.dead_letter.DeadLetterPage:
        """Return dead letters, each with where it comes from and why it died.

        ``topic`` is the topic in which they died, or its dead-letter topic. All of these filters
        are optional: ``group``, ``reason`` (a part of it), ``reason_is`` (all of it; empty: none
        was given), ``cause``, ``key``, ``from_time`` and ``to_time`` (of death), and ``ids``, which
        are those of the dead letters or of the original messages. ``next`` of the page, where it is
        not None, goes into ``after`` of the next call: there may be more although a page is empty.
        """
        target = routes.query(routes.dead(topic), limit=limit, after=after, **_query(ids, wanted))
        return results.dead_letter.decode_dead_letter_page(await self._http.call("GET", target))

    async def redrive_dead_letters(
        self,
        topic: str,
        *,
        to: str | None = None,
        max_messages: int = 1000,
        after: str | None = None,
        ids: Sequence[str | MessageId] = (),
        dry_run: bool = False,
        force: bool = False,
        **wanted: Filter | None,
    ) -> results.dead_letter.RedriveResult:
        """Put up to ``max_messages`` dead letters back into their topics, or into ``to``.

        Only the group that gave a message up gets it again. The filters are those of
        :meth:`list_dead_letters`. Dead letters that were redriven too often stay, unless with
        ``force``. ``next`` of the result goes into ``after`` of the next call.
        """
        body: dict[str, Any] = {
            "max_messages": max_messages,
            "dry_run": dry_run,
            "force": force,
            "ids": _ids(ids),
        }
        body |= {"to": to, "after": after} | _filters(wanted)
        given = {name: value for name, value in body.items() if value is not None}
        return results.dead_letter.decode_redrive(
            await self._http.call("POST", routes.redrive(topic), given)
        )

    async def purge_dead_letters(
        self,
        topic: str,
        *,
        max_messages: int = limits.REDRIVE_MESSAGES_MAX,
        after: str | None = None,
        ids: Sequence[str | MessageId] = (),
        dry_run: bool = False,
        **wanted: Filter | None,
    ) -> results.dead_letter.PurgeResult:
        """Delete up to ``max_messages`` dead letters for good.

        The filters are those of :meth:`list_dead_letters`. ``next`` of the result goes into
        ``after`` of the next call.
        """
        target = routes.query(
            routes.dead(topic),
            max_messages=max_messages,
            after=after,
            dry_run="true" if dry_run else None,
            **_query(ids, wanted),
        )
        return results.dead_letter.decode_purge(await self._http.call("DELETE", target))

    async def _change(
        self, message_id: str | MessageId, change: dict[str, object]
    ) -> results.message.MessageDescription:
        target = routes.message(message_id)
        return results.message.decode_message(
            await self._http.call("PATCH", target, change, repeatable=True)
        )


def _query(
    ids: Sequence[str | MessageId], wanted: Mapping[str, Filter | None]
) -> dict[str, str | float | None]:
    return {"ids": ",".join(_ids(ids)) or None, **_filters(wanted)}


def _ids(ids: Sequence[str | MessageId]) -> list[str]:
    several = [ids] if isinstance(ids, str | MessageId) else ids
    check_list(several, "ids")
    return [str(each) for each in several]


def _query_time(time: Time | None, field: str) -> str | None:
    return None if time is None else str(as_time(time, field))


def _filters(wanted: Mapping[str, Filter | None]) -> dict[str, str | float | None]:
    """Return the filters of dead letters as the API reads them."""
    return {name: None if value is None else _filter(value, name) for name, value in wanted.items()}


def _filter(value: Filter, name: str) -> str | float:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InvalidInput(f"{name} is text in UTF-8, not {value!r:.100}", field=name) from None
    if name in _FILTER_TIMES or isinstance(value, datetime):
        return as_time(value, name)
    return value


def _written_header(header: tuple[str, str]) -> str:
    if isinstance(header, str) or not isinstance(header, Sequence) or len(header) != 2:
        raise InvalidInput("header is a pair of a name and a value", field="header")
    return "=".join(check_text(part, "header") for part in header)
