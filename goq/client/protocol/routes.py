"""The paths and queries of the API."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from goq.errors import InvalidInput
from goq.model import MessageId, check_name, check_text

JSON = b"application/json"
FRAMES = b"application/vnd.goq.frames"
NDJSON = b"application/x-ndjson"

TOPICS = "/v1/topics"
CLUSTER = "/v1/cluster"
TOKENS = "/v1/tokens"
WHOAMI = "/v1/whoami"
SCHEDULES = "/v1/schedules"
AUDIT = "/v1/audit"
BACKUPS = "/v1/backups"
RESTORES = "/v1/restores"
LIVE = "/v1/live"
LIVEZ = "/livez"
HEALTHZ = "/healthz"
READYZ = "/readyz"


def topic(name: str) -> str:
    """Return the path of a topic."""
    return f"{TOPICS}/{check_name(name, 'topic')}"


def reopen(name: str, partition: int) -> str:
    """Return the path that opens an offline partition."""
    return f"{topic(name)}/partitions/{partition}/reopen"


def history(name: str) -> str:
    """Return the path of a topic's history."""
    return f"{topic(name)}/history"


def schedule(name: str) -> str:
    """Return the path of a schedule."""
    return f"{SCHEDULES}/{check_name(name, 'schedule')}"


def messages(name: str) -> str:
    """Return the path that publishes to and reads from a topic."""
    return f"{topic(name)}/messages"


def producer(name: str, producer_id: int) -> str:
    """Return the path of a producer's sequences in a topic."""
    return f"{topic(name)}/producers/{producer_id}"


def events(name: str) -> str:
    """Return the path that reads a topic's events."""
    return f"{topic(name)}/events"


def groups(name: str) -> str:
    """Return the path of a topic's groups."""
    return f"{topic(name)}/groups"


def group(name: str, group_name: str) -> str:
    """Return the path of one group."""
    return f"{groups(name)}/{check_name(group_name, 'group')}"


def members(name: str, group_name: str) -> str:
    """Return the path of a group's members."""
    return f"{group(name, group_name)}/members"


def member(name: str, group_name: str, consumer: str) -> str:
    """Return the path of a consumer's members."""
    return f"{members(name, group_name)}/{quote(consumer, safe='')}"


def stream(name: str, group_name: str, stream_id: str) -> str:
    """Return the path of an open stream."""
    return f"{group(name, group_name)}/streams/{quote(stream_id)}"


def dead(name: str) -> str:
    """Return the path of a topic's dead letters."""
    return f"{topic(name)}/dead"


def redrive(name: str) -> str:
    """Return the path that redrives a topic's dead letters."""
    return f"{topic(name)}/redrive"


def scheduled(name: str) -> str:
    """Return the path of a topic's scheduled messages."""
    return f"{topic(name)}/scheduled"


def message(message_id: str | MessageId) -> str:
    """Return the path of one message."""
    parsed = MessageId.parse(str(message_id))
    return f"/v1/messages/{quote(str(parsed), safe=':')}"


def trace(message_id: str | MessageId) -> str:
    """Return the path of the trace of one message."""
    return f"{message(message_id)}/trace"


def traces(name: str) -> str:
    """Return the path that searches the traces of a topic's messages."""
    return f"{topic(name)}/trace"


def search(name: str) -> str:
    """Return the path that searches a topic's messages for a text."""
    return f"{topic(name)}/search"


def token(token_id: str) -> str:
    """Return the path of a token."""
    return f"{TOKENS}/{quote(check_text(token_id, 'token_id'), safe='')}"


def node(name: str) -> str:
    """Return the path of a node of the cluster."""
    return f"{CLUSTER}/nodes/{check_name(name, 'node')}"


def move(name: str, partition: int) -> str:
    """Return the path of a partition's reassignment."""
    return f"{CLUSTER}/moves/{check_name(name, 'topic')}/{partition}"


def query(path: str, **parameters: str | float | None) -> str:
    """Return ``path`` with the parameters that are not None.

    Raises ``InvalidInput`` for one that is neither a text nor a number.
    """
    given = {
        name: _parameter(value, name) for name, value in parameters.items() if value is not None
    }
    return f"{path}?{urlencode(given)}" if given else path


def _parameter(value: str | float, name: str) -> str | float:
    if isinstance(value, str):
        return check_text(value, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{name} is a text or a number, not {type(value).__name__}", field=name)
    return value
