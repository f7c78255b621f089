"""Parser from the bytes of one connection to requests; no I/O."""

from __future__ import annotations

import enum
import io
from collections import deque
from typing import Final

import httptools

from goq.errors import (
    BadHttp,
    GoqError,
    HeadersTooLarge,
    HostNotAllowed,
    RequestTimeout,
    TooLarge,
    TooManyRequests,
    UriTooLong,
)
from goq.http.context import HttpLimits, ServerContext
from goq.http.message import Request
from goq.http.request.request_target import parse_target
from goq.limits import HEAD_CHECK_BYTES

SLICE_BYTES: Final = 8 * 1024
SMALL_PIECE_BYTES: Final = 1024
HEADER_LINE_BYTES: Final = 4
GATHERED_BYTES: Final = 4 * 1024 * 1024
"""The size of a body from which on its pieces are gathered as they come.

Joining 24 MiB at once would hold the event loop for 15 ms: nearly all of it is the kernel giving
pages. A buffer that grows keeps its pages if the C heap maps it on its own, as a node's does from
this size on.
"""


class Phase(enum.Enum):
    """Progress of the request that is being read."""

    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


class RequestParser:
    """Parses the bytes of one connection into whole requests, within the server's limits.

    ``requests`` holds the complete ones, oldest first; ``begun_count`` counts those begun. The
    first unacceptable bytes set ``error`` once; it belongs after the requests before it. After an
    error, or after a request that ends the connection, the parser has ``ended`` and ignores further
    bytes.

    Input is parsed in slices, because a single read may hold thousands of small requests. When
    ``pipeline_requests_max`` requests wait, the rest stays in ``unread`` until ``resume``.

    llhttp refuses most of what makes a message ambiguous (``tests/integration/http`` has the
    list). This parser refuses the rest: versions other than 1.0 and 1.1, a missing or second Host,
    transfer codings other than a single ``chunked``, and any of them in HTTP/1.0.
    """

    __slots__ = (
        "_bodies_held_bytes",
        "_body_bytes",
        "_content_bytes",
        "_gathered",
        "_header_bytes",
        "_header_count",
        "_headers",
        "_is_checked",
        "_limits",
        "_parser",
        "_peer",
        "_pieces",
        "_request",
        "_shared",
        "_silent_bytes",
        "_target",
        "begun_count",
        "certificate",
        "ended",
        "error",
        "is_local",
        "pause_s",
        "phase",
        "refused_headers",
        "requests",
        "unread",
        "wants_continue",
    )

    def __init__(self, shared: ServerContext, peer: str) -> None:
        self.certificate: tuple[str, ...] = ()
        """The names in the client's certificate."""
        self.is_local = False
        """Whether the client is on this machine."""
        self._shared = shared
        self._limits: HttpLimits = shared.limits
        self._peer = peer
        self._request: Request | None = None
        self._parser = httptools.HttpRequestParser(self)
        self.unread = memoryview(b"")
        self._bodies_held_bytes = 0
        self.requests: deque[Request] = deque()
        self.error: GoqError | None = None
        self.refused_headers: dict[str, str] = {}
        """The headers of the request that was read when the error came, as far as they were."""
        self.pause_s = 0.0
        """How long to hold the answer to the error."""
        self.ended = False
        self.phase = Phase.IDLE
        self.wants_continue = False
        self.begun_count = 0
        self._begin()

    def feed(self, data: bytes) -> None:
        """Parse ``data``; results are in ``requests``, ``error`` and ``phase``."""
        if self.ended:
            return
        if len(data) <= SLICE_BYTES and not self.unread:
            if self.phase is not Phase.IDLE or not self._take_known(data):
                count = len(self.requests)
                self._parse(data)
                if len(self.requests) == count + 1 and self.phase is Phase.IDLE and not self.ended:
                    self._shared.known_heads.add(data, self.requests[-1])
            return
        self.unread = memoryview(bytes(self.unread) + data if self.unread else data)
        self.resume()

    def _take_known(self, data: bytes) -> bool:
        """Queue a request whose head was parsed before; return whether it was one."""
        shared = self._shared
        found = shared.known_heads.find(data)
        if found is None:
            return False
        (method, path, query, headers, body_bytes), head_bytes = found
        held_bytes = shared.bodies_in_flight_bytes + body_bytes
        if (
            headers.get("host") not in shared.known_hosts
            or held_bytes > self._limits.bodies_in_flight_bytes_max
        ):
            return False
        self.begun_count += 1
        self._bodies_held_bytes += body_bytes
        shared.bodies_in_flight_bytes = held_bytes
        body = data[head_bytes:]
        self.requests.append(Request(method, path, query, headers.copy(), body, self._peer))
        return True

    def resume(self) -> None:
        """Parse unread input, as far as there is room for requests."""
        unread = self.unread
        requests_max = self._limits.pipeline_requests_max
        while unread and not self.ended and len(self.requests) < requests_max:
            # A body of known length makes no further requests, so it needs no slicing.
            step = max(SLICE_BYTES, self._content_bytes - self._body_bytes)
            self._parse(unread[:step])
            unread = unread[step:]
        self.unread = memoryview(b"") if self.ended else unread

    def fail(self, error: GoqError) -> None:
        """End reading with ``error`` and release the body read so far."""
        self.error = error
        self.refused_headers = self._headers
        self.ended = True
        self.wants_continue = False
        self.phase = Phase.IDLE
        self.release(self._body_bytes)
        self._forget()

    def time_out(self) -> None:
        """End reading because the rest of the request did not arrive in time."""
        part = "body" if self.phase is Phase.BODY else "headers"
        self.fail(RequestTimeout(f"the request's {part} did not arrive in time; send it again"))

    def release(self, body_bytes: int) -> None:
        """Release the memory budget of a body that is no longer held."""
        self._bodies_held_bytes -= body_bytes
        self._shared.bodies_in_flight_bytes -= body_bytes

    def close(self) -> None:
        """Release everything: the connection is lost."""
        self.ended = True
        self.requests.clear()
        self.release(self._bodies_held_bytes)
        self._forget()
        del self._parser  # the two objects reference each other

    def _parse(self, data: bytes | memoryview) -> None:
        progress = self.begun_count, self._header_count + self._body_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # on_headers_complete has refused it, or the connection changes its protocol
        except httptools.HttpParserError as error:
            if not self.ended:
                if isinstance(error, httptools.HttpParserCallbackError):
                    raise
                self.fail(BadHttp(f"the request is not HTTP/1.1: {error}"))
        if self.phase is not Phase.IDLE and not self.ended:
            self._check_silence(len(data), progress)
            if self.phase is Phase.BODY and not self._is_checked and not self.ended:
                self._check_sender()

    def _check_sender(self) -> None:
        """Check the sender of a body that did not arrive with its head, before more is read."""
        self._is_checked = True
        check, request = self._shared.on_unread_body, self._request
        if check is None or request is None:
            return
        request.certificate = self.certificate
        request.is_local = self.is_local
        is_large = self._content_bytes > HEAD_CHECK_BYTES or not self._content_bytes
        try:
            check(request, is_large)
        except GoqError as error:
            self.pause_s = request.pause_s or 0.0
            self.fail(error)

    def _check_silence(self, fed_bytes: int, progress: tuple[int, int]) -> None:
        """Bound what llhttp keeps without a callback: a header line, a chunk extension."""
        if progress != (self.begun_count, self._header_count + self._body_bytes):
            self._silent_bytes = 0
            return
        self._silent_bytes += fed_bytes
        if self._silent_bytes > self._limits.headers_bytes_max + self._limits.target_bytes_max:
            self.fail(self._headers_too_large())

    def _headers_too_large(self) -> HeadersTooLarge:
        limits = self._limits
        return HeadersTooLarge(
            f"the headers are over {limits.headers_bytes_max} bytes or {limits.headers_max} lines"
        )

    def _forget(self) -> None:
        self._pieces: list[bytes | bytearray] = []
        self._gathered: io.BytesIO | None = None
        self._body_bytes = 0
        self._content_bytes = 0

    def _refuse(self, error: GoqError) -> None:
        """Fail, and stop llhttp by raising from its callback."""
        self.fail(error)
        raise error

    # Callbacks of llhttp; httptools fixes their names.

    def on_message_begin(self) -> None:
        """Start a request."""
        self.phase = Phase.HEAD
        self.begun_count += 1
        self._begin()

    def _begin(self) -> None:
        self._target = b""
        self._headers: dict[str, str] = {}
        self._header_bytes = 0
        self._header_count = 0
        self._silent_bytes = 0
        self._is_checked = False
        self._forget()

    def on_url(self, part: bytes) -> None:
        """Add a part of the request target."""
        self._target += part
        if len(self._target) > self._limits.target_bytes_max:
            bound = self._limits.target_bytes_max
            self._refuse(UriTooLong(f"the request target is over {bound} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; a trailer counts towards the same limits and is dropped."""
        self._header_bytes += len(name) + len(value) + HEADER_LINE_BYTES
        self._header_count += 1
        if (
            self._header_bytes > self._limits.headers_bytes_max
            or self._header_count > self._limits.headers_max
        ):
            self._refuse(self._headers_too_large())
        if self.phase is Phase.BODY:
            return
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1").strip(" \t")
        headers = self._headers
        if key in headers:
            if key == "host":
                self._refuse(BadHttp("the request has more than one Host header"))
            text = f"{headers[key]}, {text}"
        headers[key] = text

    def on_headers_complete(self) -> None:
        """Accept or refuse the request before any of its body is read."""
        parser = self._parser
        headers = self._headers
        upgrade = None
        if parser.should_upgrade():
            upgrade = self._shared.upgrades.get(headers.get("upgrade", ""))
            if upgrade is None or parser.get_method() != b"GET" or "content-length" in headers:
                self._refuse(BadHttp("goq speaks only HTTP/1.1; send the request without Upgrade"))
        version = parser.get_http_version()
        if version != "1.1" and version != "1.0":
            self._refuse(BadHttp(f"HTTP/{version} is not spoken here; use HTTP/1.1"))
        if "host" not in headers and version == "1.1":
            self._refuse(BadHttp("the request has no Host header"))
        if headers.get("host") not in self._shared.known_hosts or "origin" in headers:
            try:
                self._shared.check_host(headers)
            except HostNotAllowed as error:
                self._refuse(error)
        coding = headers.get("transfer-encoding")
        if coding is not None and (coding.lower() != "chunked" or version == "1.0"):
            self._refuse(BadHttp("the only transfer coding is chunked, in HTTP/1.1"))
        try:
            path, query = parse_target(self._target)
        except BadHttp as error:
            self._refuse(error)
        content_bytes = int(headers.get("content-length", 0))
        if content_bytes:
            self._check_body(content_bytes, content_bytes)
            self._content_bytes = content_bytes
        self._request = Request(
            parser.get_method().decode("ascii"),
            path,
            query,
            headers,
            peer=self._peer,
            keep_alive=parser.should_keep_alive(),
            is_http_10=version == "1.0",
        )
        self._request.upgrade = upgrade
        self.phase = Phase.BODY
        self._is_checked = not content_bytes and coding is None
        if content_bytes or coding is not None:
            expected = headers.get("expect", "").lower()
            self.wants_continue = expected == "100-continue" and version == "1.1"

    def on_body(self, data: bytes) -> None:
        """Add a piece of the body."""
        size = len(data)
        self._check_body(self._body_bytes + size, size)
        self.wants_continue = False
        self._body_bytes += size
        self._bodies_held_bytes += size
        self._shared.bodies_in_flight_bytes += size
        pieces = self._pieces
        if self._gathered is not None:
            self._gathered.write(data)
        elif self._body_bytes > GATHERED_BYTES:
            self._gathered = io.BytesIO(b"".join(pieces))
            self._gathered.seek(0, io.SEEK_END)
            pieces.clear()
            self._gathered.write(data)
        elif not pieces or size >= SMALL_PIECE_BYTES:
            pieces.append(data)
        # An object per tiny chunk would cost many times the body's own size.
        elif isinstance(pieces[-1], bytearray):
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))

    def on_message_complete(self) -> None:
        """Queue the complete request."""
        if self.ended:
            return
        request, self._request = self._request, None  # an idle connection holds no body
        assert request is not None
        pieces = self._pieces
        if self._gathered is not None:
            request.body = self._gathered.getvalue()  # the buffer itself, not a copy
        elif pieces:
            request.body = b"".join(pieces)  # a single piece is used as it is
        self._forget()
        self.requests.append(request)
        self.phase = Phase.IDLE
        self.wants_continue = False
        self.ended = not request.keep_alive

    def _check_body(self, body_bytes: int, added_bytes: int) -> None:
        limits = self._limits
        if body_bytes > limits.body_bytes_max:
            bound = limits.body_bytes_max
            self._refuse(TooLarge(f"the body is over {bound} bytes; send it in smaller requests"))
        held_bytes = self._shared.bodies_in_flight_bytes + added_bytes
        if held_bytes > limits.bodies_in_flight_bytes_max:
            self._refuse(
                TooManyRequests("the bodies being handled fill their room", retry_after_ms=1000)
            )
