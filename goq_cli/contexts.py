"""Contexts: servers remembered by name, in the user's configuration folder.

A module of its own: only a run without ``--server`` imports it, and with it msgspec.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from goq.errors import NotFound, UsageError


class Context(msgspec.Struct, omit_defaults=True):
    """A server, or several of one cluster, and the token for it."""

    servers: list[str]
    token: str | None = None


class Contexts(msgspec.Struct, omit_defaults=True):
    """The content of the contexts file."""

    current: str | None = None
    contexts: dict[str, Context] = msgspec.field(default_factory=dict)


def contexts_path() -> Path:
    """Return the path of the contexts file: ``$XDG_CONFIG_HOME/goq/contexts.json``."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "goq" / "contexts.json"


def load_contexts() -> Contexts:
    """Return the stored contexts; raise ``UsageError`` if the file cannot be read."""
    path = contexts_path()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; mend it or remove it") from None


def save_contexts(contexts: Contexts) -> None:
    """Replace the file, with mode 0600: it may hold tokens."""
    path = contexts_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    aside.touch(mode=0o600)
    aside.write_bytes(msgspec.json.format(msgspec.json.encode(contexts)))
    aside.replace(path)


def current_context() -> Context | None:
    """Return the context in use, None if there is none."""
    contexts = load_contexts()
    return contexts.contexts.get(contexts.current) if contexts.current else None


def named_context(name: str) -> Context:
    """Return the context of a name; raise ``NotFound`` if there is none."""
    known = load_contexts().contexts
    if name not in known:
        raise NotFound(f"there is no context {name}; there are: {', '.join(known) or 'none'}")
    return known[name]
