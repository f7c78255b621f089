"""The media type of an answer, by the header ``Accept`` (RFC 9110, section 12.5.1).

Frames and lines are for those who name them. A range as ``*/*`` means JSON, which is also the
answer where the client accepts nothing that there is.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from goq.api.route import FRAMES, JSON, NDJSON
from goq.http.message import Request

_NAMED: Final = (FRAMES, NDJSON)  # of equal quality the first counts, before JSON
_JSON_RANGES: Final = (JSON, "application/*", "*/*")  # the first that is there counts
_QUALITY = re.compile(r";[ \t]*q=([01](?:\.[0-9]*)?)[ \t]*(?:;|$)", re.IGNORECASE)


def wants_frames(request: Request) -> bool:
    """Whether the client prefers frames."""
    return preferred(request.headers.get("accept", "")) == FRAMES


def wants_lines(request: Request) -> bool:
    """Whether the client prefers a stream of messages, one a line."""
    return preferred(request.headers.get("accept", "")) == NDJSON


@lru_cache(maxsize=64)  # clients repeat the header byte for byte
def preferred(accept: str) -> str:
    """Return the media type for a header ``Accept``: ``FRAMES``, ``NDJSON`` or ``JSON``."""
    qualities: dict[str, float] = {}
    for part in accept.split(","):
        name = part.partition(";")[0].strip().lower()
        found = _QUALITY.search(part)
        quality = 1.0 if found is None else min(float(found[1]), 1.0)
        qualities[name] = max(quality, qualities.get(name, 0.0))
    of_json = next((qualities[each] for each in _JSON_RANGES if each in qualities), 0.0)
    best = max(_NAMED, key=lambda each: qualities.get(each, 0.0))
    quality = qualities.get(best, 0.0)
    return best if quality and quality >= of_json else JSON
