"""URLs and requests as bytes."""

from __future__ import annotations

import pytest

from goq.http.client.http1 import ClientRequest, RequestTimeouts, encode_head, parse_url


@pytest.mark.parametrize(
    ("text", "scheme", "origin", "netloc", "path"),
    [
        ("http://127.0.0.1:8080", "http", ("127.0.0.1", 8080), b"127.0.0.1:8080", b"/"),
        ("http://Example.ORG", "http", ("example.org", 80), b"example.org", b"/"),
        ("https://example.org", "https", ("example.org", 443), b"example.org", b"/"),
        ("https://example.org:443/", "https", ("example.org", 443), b"example.org", b"/"),
        ("HTTP://[::1]:80/q", "http", ("::1", 80), b"[::1]", b"/q"),
        ("http://[::1]:81", "http", ("::1", 81), b"[::1]:81", b"/"),
        ("http://b\u00fccher.example", "http", ("xn--bcher-kva.example", 80), None, b"/"),
        ("http://h/a%20b/\u00e9?x=1&y=/", "http", ("h", 80), b"h", b"/a%20b/%C3%A9?x=1&y=/"),
    ],
)
def test_a_url_is_taken_apart(
    text: str, scheme: str, origin: tuple[str, int], netloc: bytes | None, path: bytes
):
    url = parse_url(text)
    assert (url.scheme, url.origin, url.path) == (scheme, origin, path)
    assert url.netloc == (netloc or url.host.encode())


@pytest.mark.parametrize(
    "text",
    [
        *("", "h:80", "127.0.0.1:8080", "//h", "ftp://h", "http://", "http://:80"),
        *("http://h:0", "http://h:65536", "http://h:x", "http://[::1", "http://a b", "http://a\nb"),
        *("http://user:word@h:1", "http://@h", "http://..", "http://a..b:1", "http://" + "x" * 64),
    ],
)
def test_what_is_no_url_of_a_server_is_refused(text: str):
    with pytest.raises(ValueError, match=r"."):
        parse_url(text)


@pytest.mark.parametrize(
    ("method", "body", "expected"),
    [
        ("GET", b"", b"\r\n"),
        ("DELETE", b"", b"\r\n"),
        ("POST", b"", b"Content-Length: 0\r\n\r\n"),
        ("GET", b"ab", b"Content-Length: 2\r\n\r\nab"),
        ("PUT", b"x" * 70_000, b"Content-Length: 70000\r\n\r\n" + b"x" * 70_000),
    ],
)
def test_a_request_carries_its_length(method: str, body: bytes, expected: bytes):
    url = parse_url("http://h:1/p")
    head = encode_head(method, url, b"/t?q", [(b"A", b"1")])
    pieces = ClientRequest(method, url, head, body, RequestTimeouts()).pieces()
    begin = b"%b /t?q HTTP/1.1\r\nHost: h:1\r\nA: 1\r\n" % method.encode()
    assert b"".join(pieces) == begin + expected
