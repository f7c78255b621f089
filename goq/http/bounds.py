"""The bounds of one HTTP server."""

from __future__ import annotations

from dataclasses import dataclass

from goq import limits


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Every bound the server keeps; the defaults are those of ``goq.limits``.

    ``header_timeout_ms`` and ``body_timeout_ms`` bound the whole head and the whole body, so a
    client that sends a byte now and then gains nothing. ``write_timeout_ms`` bounds the time in
    which a client takes nothing of its answer. ``headers_bytes_max`` counts names and values and
    four bytes a header for the rest of its line.

    A stream with nothing to send times out by none of them: after ``heartbeat_ms``, or up to
    twice that, it sends its heartbeat.
    """

    connections_max: int = limits.CONNECTIONS_MAX
    target_bytes_max: int = limits.TARGET_BYTES_MAX
    headers_bytes_max: int = limits.HTTP_HEADERS_BYTES_MAX
    headers_max: int = limits.HTTP_HEADERS_MAX
    body_bytes_max: int = limits.BODY_BYTES_MAX
    bodies_in_flight_bytes_max: int = limits.BODIES_IN_FLIGHT_BYTES_MAX
    pipeline_requests_max: int = limits.PIPELINE_REQUESTS_MAX
    header_timeout_ms: int = limits.HEADER_TIMEOUT_MS
    body_timeout_ms: int = limits.BODY_TIMEOUT_MS
    idle_timeout_ms: int = limits.IDLE_TIMEOUT_MS
    write_timeout_ms: int = limits.WRITE_TIMEOUT_MS
    heartbeat_ms: int = limits.HEARTBEAT_MS
