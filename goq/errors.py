"""The tree of all errors that goq raises.

    GoqError
    ├── InvalidInput            400  the request or the data is wrong
    │   ├── InvalidFrame · UnsupportedFormat
    │   ├── TooLarge            413
    │   └── UnsupportedMedia    415
    ├── BadHttp                 400  the bytes on the connection are not acceptable HTTP
    │   ├── RequestTimeout      408
    │   ├── UriTooLong          414
    │   ├── HeadersTooLarge     431
    │   ├── HostNotAllowed      421
    │   └── MethodNotAllowed    405
    ├── UsageError              400  the command line or the configuration is wrong
    ├── NotFound                404
    │   ├── RouteNotFound · TopicNotFound · PartitionNotFound
    │   ├── GroupNotFound · MemberNotFound · MessageNotFound · NodeNotFound
    │   ├── StreamNotFound · HistoryNotRetained
    │   └── MessageCompacted    410
    ├── NotAllowed              403
    │   └── NotAuthenticated    401
    ├── Conflict                409
    │   ├── TopicExists · ScheduleExists · LeaseLost
    │   ├── OutOfOrderSequence · ProducerFenced
    │   └── DataDirLocked
    ├── Unavailable             503  try again, perhaps later
    │   ├── TooManyRequests     429
    │   ├── ArchiveUnreachable
    │   ├── StorageFull         507
    │   ├── NotLeader           421
    │   ├── NotEnoughReplicas
    │   ├── PartitionOffline · ResourcesExhausted · ShuttingDown
    │   └── TimedOut            504
    └── CorruptData             500  stored bytes failed their check
        └── StorageFailed       500  the disk failed under a log

Each class has a stable ``code`` (part of the API), its HTTP status, the exit code of a command that
ends with it, and whether the same request may succeed if sent again. The message says what is
wrong, where, and what to do.

A write that an error refuses is not done, and never will be. Exceptions: ``TimedOut``, and
``internal``, which is a bug.

Longer than other modules: it is one tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class GoqError(Exception):
    """Base of all errors that goq raises on purpose.

    ``field`` names the part of the input at fault (``messages[3].key``). ``retry_after_ms`` is how
    long to wait before sending the same request again.
    """

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(
        self, detail: str, *, field: str | None = None, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        self.retry_after_ms = retry_after_ms


class InvalidInput(GoqError):
    """The request or the data is wrong; nothing was changed."""

    code = "invalid_input"
    http_status = 400
    exit_code = 7


class InvalidFrame(InvalidInput):
    """A frame's bytes contradict the format."""

    code = "invalid_frame"


class UnsupportedFormat(InvalidInput):
    """A folder or a frame has a later format than this version of goq knows."""

    code = "unsupported_format"


class TooLarge(InvalidInput):
    """A value, batch or body is over its limit."""

    code = "too_large"
    http_status = 413


class UnsupportedMedia(InvalidInput):
    """The route reads no body of this content type."""

    code = "unsupported_media_type"
    http_status = 415


class BadHttp(GoqError):
    """The bytes on the connection are not acceptable HTTP/1.1."""

    code = "bad_http"
    http_status = 400
    exit_code = 7


class RequestTimeout(BadHttp):
    """The client took too long to send its request."""

    code = "request_timeout"
    http_status = 408


class UriTooLong(BadHttp):
    """The request target is over its limit."""

    code = "uri_too_long"
    http_status = 414


class HeadersTooLarge(BadHttp):
    """The request's headers are over their limit."""

    code = "headers_too_large"
    http_status = 431


class HostNotAllowed(BadHttp):
    """The request calls the node by a name that is not the node's, or comes from another site."""

    code = "host_not_allowed"
    http_status = 421


class MethodNotAllowed(BadHttp):
    """The path exists, but not for this method."""

    code = "method_not_allowed"
    http_status = 405


class UsageError(GoqError):
    """The command line or the configuration is wrong."""

    code = "usage"
    http_status = 400
    exit_code = 2


class NotFound(GoqError):
    """The named thing does not exist."""

    code = "not_found"
    http_status = 404
    exit_code = 3


class RouteNotFound(NotFound):
    """No route has this path."""

    code = "route_not_found"


class TopicNotFound(NotFound):
    """No topic has this name."""

    code = "topic_not_found"


class PartitionNotFound(NotFound):
    """The topic has no such partition."""

    code = "partition_not_found"


class GroupNotFound(NotFound):
    """The topic has no such group."""

    code = "group_not_found"


class MemberNotFound(NotFound):
    """The group has no such member, or no longer."""

    code = "member_not_found"


class MessageNotFound(NotFound):
    """No message has this id, or no longer."""

    code = "message_not_found"


class NodeNotFound(NotFound):
    """The cluster has no such node, or no longer."""

    code = "node_not_found"


class MessageCompacted(NotFound):
    """Compaction removed the message: a newer one of its key is kept, or its key was deleted."""

    code = "message_compacted"
    http_status = 410


class StreamNotFound(NotFound):
    """The stream has ended, or this node never had it."""

    code = "stream_not_found"


class HistoryNotRetained(NotFound):
    """The time is before the history that the logs retain."""

    code = "history_not_retained"


class NotAllowed(GoqError):
    """The caller may not do this."""

    code = "not_allowed"
    http_status = 403
    exit_code = 4


class NotAuthenticated(NotAllowed):
    """The request has no valid token, and the node asks for one."""

    code = "unauthenticated"
    http_status = 401


class Conflict(GoqError):
    """The request contradicts the current state."""

    code = "conflict"
    http_status = 409
    exit_code = 6


class TopicExists(Conflict):
    """A topic of this name exists already."""

    code = "topic_exists"


class ScheduleExists(Conflict):
    """Another schedule has this name already."""

    code = "schedule_exists"


class LeaseLost(Conflict):
    """The lease ended before this call: another consumer gets the message, or got it."""

    code = "lease_lost"


class OutOfOrderSequence(Conflict):
    """A producer's batch is out of order: the batch before it is missing."""

    code = "out_of_order_sequence"


class LanesChanged(Conflict):
    """The topic has other lanes than those that a client numbered its messages by."""

    code = "lanes_changed"


class ProducerFenced(Conflict):
    """A newer epoch of the same producer has taken over."""

    code = "producer_fenced"


class DataDirLocked(Conflict):
    """Another process holds the data folder."""

    code = "data_dir_locked"


class Unavailable(GoqError):
    """The request cannot be served now; the same request may succeed later."""

    code = "unavailable"
    http_status = 503
    exit_code = 5
    retryable = True


class ArchiveUnreachable(Unavailable):
    """The archive may not be read, its store does not answer, or another node has it; not lost."""

    code = "archive_unreachable"


class TooManyRequests(Unavailable):
    """A bound on connections, waiting requests or queued bytes is reached."""

    code = "too_many_requests"
    http_status = 429


class StorageFull(Unavailable):
    """The disk is full; nothing of the request was stored."""

    code = "storage_full"
    http_status = 507


class QuotaExceeded(Unavailable):
    """The sender's topics hold as much as its quota allows; nothing of the request was stored."""

    code = "quota_exceeded"
    http_status = 507
    retryable = False


class ResourcesExhausted(Unavailable):
    """The system lacks descriptors or memory; nothing of the request was stored."""

    code = "resources_exhausted"


class NodeFull(Unavailable):
    """The node holds as many topics, partitions or groups as it may; nothing was created."""

    code = "node_full"
    http_status = 507
    retryable = False


class PartitionOffline(Unavailable):
    """The partition cannot be served now."""

    code = "partition_offline"


class TopicReadOnly(Unavailable):
    """The topic takes no message: what is known of it contradicts itself, a user has to decide."""

    code = "topic_read_only"
    retryable = False


class NotEnoughReplicas(Unavailable):
    """Too few replicas are in sync: nothing can be acknowledged."""

    code = "not_enough_replicas"


class NotLeader(Unavailable):
    """Another node leads the partition, or none does now."""

    code = "not_leader"
    http_status = 421


class ShuttingDown(Unavailable):
    """The node is stopping."""

    code = "shutting_down"


class TimedOut(Unavailable):
    """Whether the request took effect is unknown: no answer in time, or only a part of it did.

    The only retryable error after which a write may be stored. The others mean that nothing was.
    """

    code = "timed_out"
    http_status = 504


class CorruptData(GoqError):
    """Stored bytes failed their check; they are kept, reported, and never served."""

    code = "corrupt_data"
    http_status = 500
    exit_code = 7


class StorageFailed(CorruptData):
    """The disk failed under a log: it accepts nothing more until it is opened again."""

    code = "storage_failed"
    retryable = True


def outcome_unknown(error: GoqError) -> TimedOut:
    """Return the error of a write that ``error`` interrupted: it is stored or not."""
    if isinstance(error, TimedOut):
        return error
    return TimedOut(
        f"it is not known whether this was done: {error.detail}",
        retry_after_ms=error.retry_after_ms,
    )


def describe_os_error(error: OSError, path: object) -> str:
    """Return what failed, on which file (``path`` if the error names none), and what to do."""
    text = f"{error.filename or path}: {error.strerror or error}"
    if isinstance(error, PermissionError):
        text += "; give the user that goq runs as access to it"
    return text


def raise_failures(results: Sequence[object]) -> None:
    """Raise the error of a request that made several writes, each a result or an error.

    Nothing is raised without an error. If all writes were refused, the first refusal is raised.
    ``TimedOut`` if some may be done: the request as a whole was not refused.
    """
    errors = [result for result in results if isinstance(result, BaseException)]
    if not errors:
        return
    for error in errors:
        if not isinstance(error, GoqError) or isinstance(error, TimedOut):
            raise error
    first = errors[0]
    assert isinstance(first, GoqError)
    if len(errors) < len(results):
        raise TimedOut(
            f"only a part of this was done: {first.detail}", retry_after_ms=first.retry_after_ms
        )
    raise first


def _family(root: type[GoqError]) -> list[type[GoqError]]:
    return [root, *(found for child in root.__subclasses__() for found in _family(child))]


BY_CODE: dict[str, type[GoqError]] = {error.code: error for error in _family(GoqError)}
"""Every error class by its code: a client finds the class for a problem answer here."""
