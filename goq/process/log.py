"""The log of a node's process on stderr: one record a line, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from goq.config.node import LoggingConfig

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """Formats a record as a line of text; its further lines, as of a traceback, are indented.

    Clients and peers choose parts of messages. Control characters are escaped, so no such part can
    look like another record, or change a terminal.
    """

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        return "\n    ".join(map(_escaped, super().format(record).split("\n")))


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: time, level, logger, message, and the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        fields = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def set_up(config: LoggingConfig) -> None:
    """Send all records of this process to stderr, in the configured form and from a level on."""
    handler = logging.StreamHandler(sys.stderr)
    is_json = config.format == "json"
    handler.setFormatter(JsonFormatter() if is_json else TextFormatter())
    logging.basicConfig(handlers=[handler], force=True)
    set_level(config.level)


def set_level(level: str) -> None:
    """Log records from a level on: ``debug``, ``info``, ``warning`` or ``error``."""
    logging.getLogger().setLevel(level.upper())


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
