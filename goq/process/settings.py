"""A configuration as settings by dotted name, to be compared with another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from goq.config.node import Config
from goq.config.sources import name_of_default


def changed_settings(before: Config, after: Config) -> dict[str, str]:
    """Return the settings whose values differ, with the later value, as text."""
    old, new = _settings(before), _settings(after)
    return {name: value for name, value in sorted(new.items()) if old.get(name) != value}


def _settings(config: Config) -> dict[str, str]:
    known = msgspec.to_builtins(config, enc_hook=str)  # a path as text
    del known["defaults"]
    topic = config.defaults.settings.written() | {"partitions": str(config.defaults.partitions)}
    defaults = {name_of_default(name): value for name, value in topic.items()}
    return dict(_flat(known)) | defaults


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((prefix + name, _text(value)))
    return found


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value in (None, {}) else str(value)
