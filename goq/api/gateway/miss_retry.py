"""A second look before an answer says that something does not exist, or exists already."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Protocol

from goq.api.codec.problem import problem_response
from goq.api.gateway.fanout import error_code
from goq.errors import GoqError
from goq.http.message import Handler, Request, Response

_STATUSES: Final = frozenset({404, 409})
_MISSES: Final = frozenset(
    {
        "topic_not_found",
        "partition_not_found",
        "group_not_found",
        "topic_exists",
        "not_found",  # of a schedule or a token
        "schedule_exists",
    }
)


class Freshness(Protocol):
    """The waits for acknowledged changes of the metadata."""

    @property
    def version(self) -> int:
        """The version of the metadata that this node has."""

    @property
    def reconciled_version(self) -> int:
        """The version of the metadata that this node answers by."""

    @property
    def must_catch_up(self) -> bool:
        """Whether changes may have been acknowledged that this node does not answer by."""

    @property
    def is_cut_off(self) -> bool:
        """Whether this node could not catch up, and hears none that could tell it more."""

    async def catch_up(self) -> None:
        """Return when this node answers by all changes acknowledged before; raise ``GoqError``."""

    async def spread(self) -> None:
        """Return when all nodes that are up answer by the metadata that this node has."""


def with_miss_retry(handler: Handler, freshness: Freshness) -> Handler:
    """Return a handler that repeats a request that missed, if the node lacked a change.

    A miss has no effect, so the repetition is safe. The answer is ``unavailable`` if the node
    cannot know whether it lacks one.
    """

    def handle(request: Request) -> Response | Awaitable[Response]:
        version = freshness.reconciled_version
        answer = handler(request)
        if isinstance(answer, Response):
            return look_again(request, answer, version) if _is_miss(answer) else answer
        return handle_later(request, answer, version)

    async def handle_later(
        request: Request, pending: Awaitable[Response], version: int
    ) -> Response:
        answer = await pending
        return await look_again(request, answer, version) if _is_miss(answer) else answer

    async def look_again(request: Request, answer: Response, version: int) -> Response:
        try:
            await freshness.catch_up()
        except GoqError as error:
            return problem_response(error)
        if freshness.reconciled_version == version:
            return answer
        again = handler(request)
        return again if isinstance(again, Response) else await again

    return handle


def _is_miss(answer: Response) -> bool:
    return answer.status in _STATUSES and error_code(answer) in _MISSES
