"""The paths and queries of the API."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from goq.model import MessageId, check_name

JSON = b"application/json"
FRAMES = b"application/vnd.goq.frames"

TOPICS = "/v1/topics"
CLUSTER = "/v1/cluster"


def topic(name: str) -> str:
    """Return the path of a topic."""
    return f"{TOPICS}/{check_name(name, 'topic')}"


def history(name: str) -> str:
    """Return the path of a topic over time."""
    return f"{topic(name)}/history"


def messages(name: str) -> str:
    """Return the path that publishes to and reads from a topic."""
    return f"{topic(name)}/messages"


def producer(name: str, producer_id: int) -> str:
    """Return the path of what a topic knows of a producer."""
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


def stream(name: str, group_name: str, stream_id: str) -> str:
    """Return the path of an open stream."""
    return f"{group(name, group_name)}/streams/{quote(stream_id)}"


def dead(name: str) -> str:
    """Return the path of a topic's dead letters."""
    return f"{topic(name)}/dead"


def redrive(name: str) -> str:
    """Return the path that puts a topic's dead letters back."""
    return f"{topic(name)}/redrive"


def scheduled(name: str) -> str:
    """Return the path of what waits for its time in a topic."""
    return f"{topic(name)}/scheduled"


def message(message_id: str | MessageId) -> str:
    """Return the path of one message."""
    parsed = MessageId.parse(str(message_id))
    return f"/v1/messages/{quote(str(parsed), safe=':')}"


def trace(message_id: str | MessageId) -> str:
    """Return the path of the life of one message."""
    return f"{message(message_id)}/trace"


def traces(name: str) -> str:
    """Return the path that finds messages of a topic and tells their lives."""
    return f"{topic(name)}/trace"


def node(name: str) -> str:
    """Return the path of a node of the cluster."""
    return f"{CLUSTER}/nodes/{check_name(name, 'node')}"


def move(name: str, partition: int) -> str:
    """Return the path of a partition's move."""
    return f"{CLUSTER}/moves/{check_name(name, 'topic')}/{partition}"


def query(path: str, **parameters: str | float | None) -> str:
    """Return ``path`` with the parameters that are not None."""
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path
