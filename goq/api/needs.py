"""Needs of routes: the declaration of who may use a route, and its check.

The router checks a request before the route's handler and before any other node is asked. Existence
does not matter to the check. A topic that no rule of the sender concerns is answered like one that
does not exist, whether it does or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from goq.access.rule import ANYONE, Principal, Verb
from goq.errors import InvalidInput, NotAllowed, TopicNotFound
from goq.http.message import Request
from goq.model import AUDIT_TOPIC, DEAD_LETTERS_SUFFIX, MessageId

_DEAD_LETTER_SETTING: Final = "settings.dead_letters.topic"

End = tuple[str, str | None]
"""A topic, and a group of it if one is concerned."""
EndsOf = Callable[[Request, Sequence[str]], Iterable[End]]
"""Returns all topics that a request concerns; raises ``InvalidInput`` if it does not say."""


class Needs(Protocol):
    """The declaration of a route about its senders."""

    @property
    def is_open(self) -> bool:
        """Whether a request without a token is answered."""

    @property
    def is_audited(self) -> bool:
        """Whether the audit trail records what the route changes."""

    def check(self, principal: Principal, request: Request, values: Sequence[str]) -> None:
        """Raise ``NotAllowed`` or ``TopicNotFound`` if a principal may not do what is asked."""

    def concerns(self, request: Request, values: Sequence[str]) -> Iterable[End]:
        """Return the topics that a request concerns."""


class Nothing(msgspec.Struct, frozen=True):
    """The route is open to all, or to all who have a token: its answer shows what they may see."""

    is_open: bool
    is_audited: bool = False

    def check(self, principal: Principal, request: Request, values: Sequence[str]) -> None:
        """Allow everything."""

    def concerns(self, request: Request, values: Sequence[str]) -> Iterable[End]:
        """Return none."""
        return ()


def topic_of_path(_request: Request, values: Sequence[str]) -> Iterable[End]:
    """Return the topic in the path."""
    return ((values[0], None),)


def group_of_path(_request: Request, values: Sequence[str]) -> Iterable[End]:
    """Return the topic and the group in the path."""
    return ((values[0], values[1]),)


def topic_of_message(_request: Request, values: Sequence[str]) -> Iterable[End]:
    """Return the topic of the message whose id is in the path."""
    return ((MessageId.parse(values[0]).topic, None),)


def dead_letters_of_path(_request: Request, values: Sequence[str]) -> Iterable[End]:
    """Return the topic in the path and its dead-letter topic, by whichever name it is given."""
    origin = values[0].removesuffix(DEAD_LETTERS_SUFFIX)
    return ((origin, None), (origin + DEAD_LETTERS_SUFFIX, None))


def audit_topic(_request: Request, _values: Sequence[str]) -> Iterable[End]:
    """Return the topic of the audit trail."""
    return ((AUDIT_TOPIC, None),)


class TopicVerbs(msgspec.Struct, frozen=True):
    """One of some verbs, on each of the topics that a request concerns."""

    verbs: tuple[Verb, ...]
    ends: EndsOf = topic_of_path
    is_open: bool = False

    @property
    def is_audited(self) -> bool:
        """Whether the route manages topics."""
        return Verb.MANAGE in self.verbs

    def concerns(self, request: Request, values: Sequence[str]) -> Iterable[End]:
        """Return the topics that are checked."""
        return self.ends(request, values)

    def check(self, principal: Principal, request: Request, values: Sequence[str]) -> None:
        """Check every topic."""
        check_ends(principal, self.verbs, self.ends(request, values))


class SeesTopic(msgspec.Struct, frozen=True):
    """Any rule on the topic in the path."""

    is_open: bool = False
    is_audited: bool = False

    def concerns(self, request: Request, values: Sequence[str]) -> Iterable[End]:
        """Return the topic in the path."""
        return ((values[0], None),)

    def check(self, principal: Principal, request: Request, values: Sequence[str]) -> None:
        """Check the topic in the path."""
        check_sees(principal, values[0])


class ServerVerb(msgspec.Struct, frozen=True):
    """A verb that concerns no topic."""

    verb: Verb
    is_open: bool = False
    is_audited: bool = True

    def concerns(self, request: Request, values: Sequence[str]) -> Iterable[End]:
        """Return none."""
        return ()

    def check(self, principal: Principal, request: Request, values: Sequence[str]) -> None:
        """Check the verb."""
        if not principal.may(self.verb):
            raise NotAllowed(
                f"token {principal.id} may not do this: it needs the rule {self.verb}:*"
            )


def check_ends(principal: Principal, verbs: Sequence[Verb], ends: Iterable[End]) -> None:
    """Raise ``NotAllowed`` unless each end is allowed by one of the verbs.

    Raises ``TopicNotFound`` for a topic that no rule of a principal concerns.
    """
    for topic, group in ends:
        for verb in verbs:
            if principal.allows(verb, topic, group):
                break
        else:
            if topic != AUDIT_TOPIC:  # everybody knows that there is one
                check_sees(principal, topic)
            where = topic if group is None else f"{topic}/{group}"
            raise NotAllowed(
                f"token {principal.id} may not do this: it needs the rule"
                f" {' or '.join(verbs)}:{where[:450]}"
            )


def check_sees(principal: Principal, topic: str) -> None:
    """Raise ``TopicNotFound`` for a topic that no rule of a principal concerns."""
    if not principal.sees(topic):
        raise TopicNotFound(f"there is no topic {topic[:200]!r}", field="topic")


def check_dead_letter_target(principal: Principal, name: str, target: str | None) -> None:
    """Check the topic that the dead letters of ``name`` are to go to, if it has such a setting.

    Raises ``NotAllowed`` if a principal may not publish to it, and ``InvalidInput`` if it is the
    topic itself.
    """
    if target is None:
        return
    if target == name:
        raise InvalidInput("dead letters cannot go to the topic itself", field=_DEAD_LETTER_SETTING)
    if not principal.allows(Verb.PUBLISH, target):
        raise NotAllowed(
            f"dead letters of {name} would be published to {target}: that needs publish:{target}",
            field=_DEAD_LETTER_SETTING,
        )


def principal_of(request: Request) -> Principal:
    """Return the sender of a request; anyone at a node that asks for no tokens."""
    return ANYONE if request.principal is None else request.principal


OPEN: Final = Nothing(is_open=True)
"""No token: health, the description of the API, and calls of nodes, which prove themselves."""
TOKEN: Final = Nothing(is_open=False)
"""Any valid token."""
PUBLISH: Final = TopicVerbs((Verb.PUBLISH,))
READ: Final = TopicVerbs((Verb.READ,))
READ_MESSAGE: Final = TopicVerbs((Verb.READ,), topic_of_message)
READ_DEAD_LETTERS: Final = TopicVerbs((Verb.READ,), dead_letters_of_path)
DESCRIBE_GROUP: Final = TopicVerbs((Verb.READ, Verb.CONSUME, Verb.MANAGE), group_of_path)
CONSUME: Final = TopicVerbs((Verb.CONSUME,), group_of_path)
MANAGE: Final = TopicVerbs((Verb.MANAGE,))
MANAGE_GROUP: Final = TopicVerbs((Verb.MANAGE,), group_of_path)
MANAGE_MESSAGE: Final = TopicVerbs((Verb.MANAGE,), topic_of_message)
MANAGE_DEAD_LETTERS: Final = TopicVerbs((Verb.MANAGE,), dead_letters_of_path)
SEE: Final = SeesTopic()
READ_AUDIT: Final = TopicVerbs((Verb.READ,), audit_topic)
OPERATE: Final = ServerVerb(Verb.OPERATE)
ADMINISTER: Final = ServerVerb(Verb.ADMIN)
