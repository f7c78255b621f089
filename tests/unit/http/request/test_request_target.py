from __future__ import annotations

import pytest

from goq.errors import BadHttp, InvalidInput
from goq.http.message import Request
from goq.http.request.request_target import QUERY_FIELDS_MAX, parse_query, parse_target


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", ""),
        (b"/a/b?x=1", "/a/b", "x=1"),
        (b"/a?", "/a", ""),
        (b"/a?b?c", "/a", "b?c"),
        (b"/a%20b%2Fc", "/a b/c", ""),
        (b"/%C3%A9", "/\u00e9", ""),
        (b"/a+b", "/a+b", ""),
        (b"//host/a", "//host/a", ""),
        (b"*", "*", ""),
        (b"http://host:1/a?b=c", "/a", "b=c"),
        (b"http://host", "/", ""),
        (b"https://host?q", "/", "q"),
    ],
)
def test_a_target_gives_its_decoded_path_and_its_query(target, path, query):
    assert parse_target(target) == (path, query)


@pytest.mark.parametrize(
    "target",
    [
        *(b"/%", b"/%4", b"/%zz", b"/%+1", b"/%ff", b"/%c3", b"/\xc3\xa9", b"/a#b"),
        *(b"", b"a", b"ftp://h/a", b"http:///a", b"http://[h/a"),
    ],
)
def test_a_target_that_is_not_a_path_in_utf_8_is_refused(target):
    with pytest.raises(BadHttp):
        parse_target(target)


def test_a_query_is_decoded_on_first_use_and_kept():
    request = Request("GET", "/", "a=1&b=%C3%A9+x&c&d=")
    assert request.query == {"a": "1", "b": "\u00e9 x", "c": "", "d": ""}
    assert request.query is request.query
    assert Request("GET", "/").query == {}


def test_a_repeated_parameter_is_refused_by_name():
    with pytest.raises(InvalidInput) as refused:
        parse_query("a=1&b%20c=2&b+c=3")
    assert refused.value.field == "b c"
    assert refused.value.http_status == 400


@pytest.mark.parametrize("query", ["a=%", "a=%zz", "a=%ff", "%ff=1"])
def test_a_query_that_is_not_utf_8_is_refused(query):
    with pytest.raises(InvalidInput):
        parse_query(query)


def test_the_number_of_parameters_is_bounded():
    fields = [f"p{number}=1" for number in range(QUERY_FIELDS_MAX)]
    assert len(parse_query("&".join(fields))) == QUERY_FIELDS_MAX
    with pytest.raises(InvalidInput):
        parse_query("&".join([*fields, "q=1"]))
