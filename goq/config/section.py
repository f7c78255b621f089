"""A section of a node's configuration, and the parsers of its settings.

A parser takes what a file, the environment or a flag gives, text or what YAML makes of it, and the
setting's dotted name. It returns the value, or raises ``ValueError`` or ``InvalidInput``. The
parsers of topic settings (:mod:`goq.config.types`) have this shape, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

import msgspec

from goq.errors import InvalidInput, UsageError
from goq.model import check_name

Parser = Callable[[Any, str], Any]
T = TypeVar("T")

_TRUE: Final = ("true", "yes", "on", "1", "y", "t")
_FALSE: Final = ("false", "no", "off", "0", "n", "f")  # YAML leaves y and n text


class ConfigSection(msgspec.Struct, frozen=True):
    """Named settings; ``PARSERS`` has one for each field. Made by :meth:`read`, it is checked."""

    PARSERS: ClassVar[Mapping[str, Parser]] = {}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the settings."""
        return cls.__struct_fields__

    @classmethod
    def read(cls, written: Any, name: str = "") -> Self:
        """Return the section that is written. Raises ``UsageError`` with all that is wrong."""
        if not isinstance(written, Mapping):
            raise UsageError(f"{name}: {str(written)[:80]!r} is not a mapping of settings")
        values, problems = {}, []
        for key, value in written.items():
            field = f"{name}.{key}" if name else str(key)
            try:
                if key not in cls.PARSERS:
                    raise InvalidInput(f"there is no such setting{cls._meant(str(key), name)}")
                values[key] = cls.PARSERS[key](value, field)
            except UsageError as error:  # of a section in this one: it has the names
                problems.append(error.detail)
            except InvalidInput as error:
                problems.append(f"{field}: {error.detail}")
            except ValueError as error:
                problems.append(f"{field}: {error}")
        needed = cls.__struct_fields__[: -len(cls.__struct_defaults__) or None]
        problems += [f"{name}.{key}: is missing" for key in needed if key not in written]
        if problems:
            raise UsageError("; ".join(problems))
        section = cls(**values)
        section.check(name)
        return section

    @classmethod
    def _meant(cls, key: str, section: str) -> str:
        """Return the question whether a setting that is alike is meant, empty if none is."""
        close = get_close_matches(key, cls.PARSERS, n=1)
        return f"; did you mean {section}{'.' if section else ''}{close[0]}?" if close else ""

    def check(self, name: str) -> None:
        """Raise ``UsageError`` if the settings do not go together."""


def section(kind: type[ConfigSection]) -> Parser:
    """Return the parser of a section in a section."""
    return kind.read


def optional(parse: Parser) -> Parser:
    """Return a parser of what may be ``none``."""
    return lambda value, field: None if value in (None, "none") else parse(value, field)


def text(value: Any, _field: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise InvalidInput(f"{str(value)[:80]!r} is not a text")
    return value


def checked_text(check: Callable[[str], T]) -> Parser:
    """Return a parser of text that is checked, and perhaps changed."""
    return lambda value, field: check(text(value, field))


def name_of(what: str) -> Parser:
    """Return a parser of the name of a node or a group."""
    return checked_text(lambda value: check_name(value, what))


def matching(pattern: str) -> Parser:
    """Return a parser of text that a regular expression matches as a whole."""

    def parse(value: Any, field: str) -> str:
        if not re.fullmatch(pattern, text(value, field), re.ASCII):
            raise InvalidInput(f"{value[:80]!r} does not match {pattern}")
        return str(value)

    return parse


def path(value: Any, _field: str) -> Path:
    """Return the path of a file or a folder."""
    if not isinstance(value, str | Path):
        raise InvalidInput(f"{str(value)[:80]!r} is not a path")
    return Path(value)


def switch(value: Any, _field: str) -> bool:
    """Return a truth value: what YAML takes for one, and in the environment the same as text."""
    word = str(value).lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise InvalidInput(f"{str(value)[:80]!r} is neither true nor false")


def word(*words: str) -> Parser:
    """Return a parser of one of ``words``."""

    def parse(value: Any, _field: str) -> Any:
        given = "off" if value is False else value  # what YAML makes of off
        if given not in words:
            raise InvalidInput(f"{str(value)[:80]!r} is not one of {', '.join(words)}")
        return given

    return parse


def settings(value: Any, _field: str) -> dict[str, Any]:
    """Return settings by name, which others check."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(f"{str(value)[:80]!r} is not a mapping of settings")
    return dict(value)
