"""Rules that allow: ``verb:topic[/group]``, and the principal that has them.

There is no rule that denies: what no rule allows is refused. A pattern is a name, or the beginning
of names and one ``*`` at its end. Names that begin with ``__`` belong to goq: only a pattern that
begins so matches them. A rule without a group is for all groups, and for what concerns no group.

``operate`` and ``admin`` concern no topic and are written with ``*``. ``admin`` allows everything,
as it allows to create a token that may do anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from goq import limits
from goq.errors import InvalidInput

_ALL: Final = "*"
_RESERVED: Final = "__"
NO_QUOTAS: Final[Mapping[str, int]] = {}
_PATTERN = re.compile(rf"(?!\.)[A-Za-z0-9._-]{{0,{limits.NAME_CHARS_MAX + 4}}}\*?")


class Verb(StrEnum):
    """The kinds of requests that a rule allows.

    ``publish``: publish, and create the topic if the node does so by itself. ``consume``: receive,
    settle, and reset of a group. ``read``: the log, peek, trace, dead letters. ``manage``: create,
    change and delete topics and groups, change messages, redrive and purge. ``operate``: changes of
    the cluster. ``admin``: tokens.
    """

    PUBLISH = "publish"
    CONSUME = "consume"
    READ = "read"
    MANAGE = "manage"
    OPERATE = "operate"
    ADMIN = "admin"

    __hash__ = str.__hash__  # that of Enum is written in Python, and each request needs some


_OF_GROUPS = (Verb.CONSUME, Verb.READ, Verb.MANAGE)
_OF_NO_TOPIC = frozenset({Verb.OPERATE, Verb.ADMIN})


class AccessRule(NamedTuple):
    """A verb on the topics, and the groups, that a pattern matches."""

    verb: Verb
    topic: str
    group: str = _ALL

    def __str__(self) -> str:
        return f"{self.verb}:{self.topic}" + ("" if self.group == _ALL else f"/{self.group}")


def parse_rule(text: str) -> AccessRule:
    """Return a rule from its text; raise ``InvalidInput``."""
    word, _, patterns = text.partition(":")
    topic, slash, group = patterns.partition("/")
    if word not in list(Verb):
        raise _invalid(text, f"the verbs are {', '.join(Verb)}")
    verb = Verb(word)
    if not _is_pattern(topic) or (slash and not _is_pattern(group)):
        raise _invalid(text, "write verb:topic or verb:topic/group, with one * at the end at most")
    if verb in _OF_NO_TOPIC and (topic != _ALL or slash):
        raise _invalid(text, f"{verb} concerns no topic; write {verb}:*")
    if slash and verb not in _OF_GROUPS:
        raise _invalid(text, f"{verb} concerns no group; write {verb}:{topic}")
    return AccessRule(verb, topic, group if slash else _ALL)


def _is_pattern(text: str) -> bool:
    return bool(text) and _PATTERN.fullmatch(text) is not None


def _invalid(text: str, why: str) -> InvalidInput:
    return InvalidInput(f"{text[:100]!r} is not a rule: {why}", field="allow")


class Principal:
    """The sender of requests, by the id of its token, and what its rules allow.

    ``texts`` are the rules as stored, with the ``quotas``. ``digest`` is that of the secret
    that was shown, empty without one: a token has two while a rotated one is valid.
    ``expires_ms`` is the Unix time in milliseconds from which the token is not valid, 0 for never.
    """

    __slots__ = (
        "_by_verb",
        "digest",
        "expires_ms",
        "id",
        "is_admin",
        "name",
        "quotas",
        "rules",
        "texts",
    )

    def __init__(
        self,
        principal_id: str,
        name: str,
        rules: Iterable[AccessRule],
        expires_ms: int = 0,
        texts: Sequence[str] = (),
        quotas: Mapping[str, int] = NO_QUOTAS,
        digest: str = "",
    ) -> None:
        self.digest = digest
        self.texts = tuple(texts)
        self.quotas = quotas
        self.id = principal_id
        self.name = name
        self.rules = tuple(rules)
        self.expires_ms = expires_ms
        self.is_admin = any(rule.verb is Verb.ADMIN for rule in self.rules)
        self._by_verb: dict[Verb, list[tuple[str, str]]] = {}
        for rule in self.rules:
            self._by_verb.setdefault(rule.verb, []).append((rule.topic, rule.group))

    def allows(self, verb: Verb, topic: str, group: str | None = None) -> bool:
        """Return whether a rule allows a verb on a topic and, if one is concerned, a group."""
        if self.is_admin:
            return True
        for pattern, groups in self._by_verb.get(verb, ()):
            if _matches(pattern, topic) and (
                groups == _ALL or (group is not None and _matches(groups, group))
            ):
                return True
        return False

    def may_consume(self, topic: str) -> bool:
        """Return whether a rule allows to consume from a topic by any group, known or not."""
        patterns = self._by_verb.get(Verb.CONSUME, ())
        return self.is_admin or any(_matches(pattern, topic) for pattern, _ in patterns)

    def sees_group(self, topic: str, group: str) -> bool:
        """Return whether any rule concerns a group."""
        return any(self.allows(verb, topic, group) for verb in _OF_GROUPS)

    def may(self, verb: Verb) -> bool:
        """Return whether the principal may do what concerns no topic."""
        return self.is_admin or verb in self._by_verb

    def sees(self, topic: str) -> bool:
        """Return whether any rule concerns a topic. Else the topic does not exist for it."""
        return self.is_admin or any(
            _matches(pattern, topic)
            for verb, patterns in self._by_verb.items()
            if verb is not Verb.OPERATE
            for pattern, _ in patterns
        )


def _matches(pattern: str, name: str) -> bool:
    if pattern[-1] != _ALL:
        return pattern == name
    if name.startswith(_RESERVED) and not pattern.startswith(_RESERVED):
        return False
    return name.startswith(pattern[:-1])


ANYONE: Final = Principal("-", "anyone", [AccessRule(Verb.ADMIN, _ALL)])
"""The principal of every request to a node that asks for no tokens."""
NOBODY: Final = Principal("-", "nobody", [])
"""The principal of a request without a valid token, on a route that needs none."""
