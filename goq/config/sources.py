"""The sources of a configuration: a file, then the environment, then flags; later values win.

In the environment a setting is ``GOQ_SECTION__NAME``, as ``GOQ_BROKER__DATA_DIR``. A value that
begins with ``{`` is several settings as a JSON object.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from goq.config.node import SECTIONS, Config, DefaultsConfig
from goq.config.topic import TopicSettings
from goq.errors import UsageError

_PREFIX = "GOQ_"
_CLIENT_VARIABLES = {
    "GOQ_SERVER", "GOQ_TOKEN", "GOQ_TOKEN_FILE", "GOQ_CA_FILE", "GOQ_CERT_FILE", "GOQ_KEY_FILE",
    "GOQ_CLIENT_ID", "GOQ_RETRY_FOR",
    "GOQ_ID", "GOQ_TOPIC", "GOQ_GROUP", "GOQ_PARTITION", "GOQ_OFFSET", "GOQ_KEY", "GOQ_TIMESTAMP",
    "GOQ_ATTEMPT",
}  # fmt: skip
"""Variables that commands read, or that ``goq consume --exec`` sets for its command."""
_COMMAND_HEADER = "GOQ_HEADER_"
_KUBERNETES_VARIABLE = re.compile(
    r"GOQ_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Kubernetes describes a service whose name begins with ``goq`` to each container."""


def load_config(path: Path | None, flags: Mapping[str, Any]) -> Config:
    """Return the configuration from a file, the environment and ``flags`` (dotted names).

    Raises ``UsageError`` with the setting and what is wrong with it.
    """
    written: dict[str, Any] = {}
    if path is not None:
        from goq.config.yaml_file import read_yaml  # a node without a file starts faster

        written = read_yaml(path)
    where = f"{path}, the environment or a flag" if path else "the environment or a flag"
    return config_of(flags, _merge(written, _read_environment()), where)


def config_of(
    settings: Mapping[str, Any], below: Mapping[str, Any] | None = None, where: str = "the settings"
) -> Config:
    """Return the configuration of settings by dotted name, over those of ``below``.

    Raises ``UsageError``, which says ``where`` they are.
    """
    written = dict(below or {})
    for key, value in settings.items():
        written = _merge(written, _nested(key, value))
    try:
        return Config.read(written)
    except UsageError as error:
        raise UsageError(f"{error.detail} (in {where})") from None


def _read_environment() -> dict[str, Any]:
    written: dict[str, Any] = {}
    for name in sorted(os.environ):
        if not name.upper().startswith(_PREFIX):
            continue
        if not _is_known(name.upper()):
            raise UsageError(_unknown(name))
        path = name.upper().removeprefix(_PREFIX).lower().split("__")
        if path[0] in Config.names():
            value: Any = os.environ[name]
            if len(path) == 1 or value.startswith("{"):
                value = _decode_object(name, value)
            for key in reversed(path):
                value = {key: value}
            written = _merge(written, value)
    return written


def _decode_object(name: str, value: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"{name} is not a JSON object: {error}") from None


def _is_known(name: str) -> bool:
    """Return whether a variable is in a section, for a client, or of the platform."""
    section, nested, _ = name.removeprefix(_PREFIX).partition("__")
    if section.lower() in Config.names():
        return True
    return not nested and (
        name in _CLIENT_VARIABLES
        or name.startswith(_COMMAND_HEADER)
        or bool(_KUBERNETES_VARIABLE.fullmatch(name))
    )


def _unknown(name: str) -> str:
    """Return the error about a variable, with the setting that it may mean."""
    meant = {_PREFIX + key.replace(".", "__").upper() for key in _setting_names()}
    alike = {known.replace("_", ""): known for known in meant}
    close = get_close_matches(name.upper().replace("_", ""), alike, n=1, cutoff=0.8)
    if close:
        return f"{name} is not a setting; did you mean {alike[close[0]]}?"
    return f"{name} is not a setting; the sections are {SECTIONS}, as in GOQ_BROKER__DATA_DIR"


def name_of_default(setting: str) -> str:
    """Return the dotted name of the default of a topic setting, as the file has it."""
    is_section = setting.partition(".")[0] in DefaultsConfig.names()
    return f"defaults.{'' if is_section else 'topic.'}{setting}"


def _setting_names() -> Iterator[str]:
    for name in (*TopicSettings().written(), "partitions"):
        yield name_of_default(name)
    whole = Config()
    for section in Config.names():
        if section != "defaults":
            yield from (f"{section}.{name}" for name in getattr(whole, section).names())


def _nested(key: str, value: Any) -> dict[str, Any]:
    """Return a setting by its dotted name in the form of the file."""
    section, _, rest = key.partition(".")
    if section not in Config.names() or not rest:
        raise UsageError(
            f"{key!r} is not a setting; the sections are {SECTIONS}, as in broker.listen"
        )
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``below`` with the values of ``above`` in their place or added at the end.

    Raises ``UsageError`` where settings would take the place of what is none: what was written
    there, such as a list by a stray dash, would be lost without a word.
    """
    merged = dict(below)
    for key, value in above.items():
        known = merged.pop(key, None)  # a later value also comes later in order
        if isinstance(value, Mapping) and not isinstance(known, Mapping | None):
            raise UsageError(f"{key}: {str(known)[:200]!r} is not a mapping of settings")
        merged[key] = (
            _merge(known, value)
            if isinstance(known, Mapping) and isinstance(value, Mapping)
            else value
        )
    return merged
