from __future__ import annotations

import pytest

from goq.errors import HostNotAllowed
from goq.http.request.allowed_hosts import AllowedHosts

HOSTS = AllowedHosts(["goq.example.com", "*.internal.example.com", "N1"])


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:8080", "10.1.2.3:80", "[::1]:8080", "[fe80::1]",
        "localhost", "LOCALHOST:8080", "app.localhost:8080", "localhost.:8080",
        "goq.example.com", "GOQ.example.com:8080", "a.internal.example.com", "n1:8080",
    ],
)  # fmt: skip
def test_addresses_localhost_and_named_hosts_are_allowed(host: str) -> None:
    HOSTS.check(host, None)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8080", "", ":8080", "127.0.0.1.evil.example",
        "localhost.evil.example", "notlocalhost", "goq.example.com.evil.net", "xgoq.example.com",
        "internal.example.com", "xinternal.example.com", "0x7f000001", "127.1", "[evil.example]",
        "evil.example[::1]", "127.0.0.1@evil.example", "localhost:80:evil", "localhost:evil",
        "[::1]evil.example", "[::1]:evil", "localhost:000080",
    ],
)  # fmt: skip
def test_other_names_are_refused_and_the_error_says_how_to_allow_them(host: str) -> None:
    with pytest.raises(HostNotAllowed, match=r"security\.hosts"):
        HOSTS.check(host, None)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),
        ("http://127.0.0.1", "127.0.0.1:80"),
        ("http://127.0.0.1:80", "127.0.0.1"),
        ("https://goq.example.com", "goq.example.com"),
        ("https://goq.example.com", "goq.example.com:443"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("http://GOQ.example.com", "goq.EXAMPLE.com"),
    ],
)
def test_a_page_of_the_node_itself_may_ask_it(origin: str, host: str) -> None:
    HOSTS.check(host, origin)


@pytest.mark.parametrize(
    "origin",
    [
        "null", "", "http://evil.example", "http://127.0.0.1", "http://127.0.0.1:8081",
        "https://127.0.0.1", "file://", "http://localhost:8080", "http://127.0.0.1:8080.evil.example",
        "http://evil.example http://127.0.0.1:8080", "chrome-extension://127.0.0.1:8080",
    ],
)  # fmt: skip
def test_a_page_of_another_site_is_refused(origin: str) -> None:
    with pytest.raises(HostNotAllowed, match="may not ask"):
        HOSTS.check("127.0.0.1:8080", origin)


def test_a_request_without_host_comes_from_no_browser() -> None:
    HOSTS.check(None, None)
    with pytest.raises(HostNotAllowed):
        HOSTS.check(None, "http://127.0.0.1:8080")


def test_a_server_without_names_allows_every_host() -> None:
    AllowedHosts(None).check("evil.example", "http://other.example")
