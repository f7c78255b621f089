"""Suggestions for a misspelt topic, group or setting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from goq.errors import GoqError, GroupNotFound

if TYPE_CHECKING:
    from goq.client import Client

_QUOTED: Final = re.compile(r"'([^']*)'")
_SETTING: Final = re.compile(r"'([^']*)' is not a \w+ setting; there are (.*)")


def suggest(error: GoqError, words: Sequence[str]) -> None:
    """Add a note to an error that names something that is not there, if a name is close to it.

    ``words`` are the arguments of the command.
    """
    if error.code in ("topic_not_found", "group_not_found"):
        try:
            found = _in_node(error, words)
        except GoqError:
            return
    elif match := _SETTING.match(error.detail):
        found = _close([match[1]], match[2].split(", "))
    else:
        return
    if found is not None:
        error.add_note(f"did you mean {found}?")


def new_group_note(client: Client, topic: str, group: str) -> str | None:
    """Return what to tell if a topic has no such group, before a reset begins one; else None."""
    try:
        client.describe_group(topic, group)
    except GroupNotFound:
        meant = _close([group], _groups(client, [topic]))
        return f"{group} is a new group of {topic}" + (f"; did you mean {meant}?" if meant else "")
    except GoqError:
        pass  # the reset tells, if it is refused, too
    return None


def _in_node(error: GoqError, words: Sequence[str]) -> str | None:
    from goq_cli.session import SESSION

    names = [word.partition("=")[2] or word for word in words]
    names = [name.partition(":")[0] for name in names if not name.startswith("-")]
    missing = set(_QUOTED.findall(error.detail) or error.detail.split())
    missed = [name for name in names[1:] if name in missing]
    with SESSION.client() as client:
        topics = [topic.name for topic in client.list_topics()]
        if error.code == "topic_not_found":
            return _close([name for name in missed if name not in topics], topics)
        return _close(missed, _groups(client, [name for name in names if name in topics]))


def _groups(client: Client, topics: Iterable[str]) -> list[str]:
    return [group.group for topic in topics for group in client.list_groups(topic)]


def _close(names: Iterable[str], known: Sequence[str]) -> str | None:
    import difflib

    for name in names:
        for found in difflib.get_close_matches(name, known, 1):
            return found
    return None
