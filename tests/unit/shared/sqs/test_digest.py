"""Digests of bodies and attributes, as SDKs compute them."""

from __future__ import annotations

import pytest

from goq.sqs.protocol.digest import AttributeContent, attributes_digest, body_digest


def test_the_digest_of_a_body_is_that_of_its_utf_8() -> None:
    assert body_digest("This is a test message") == "fafb00f5732ab283681e124bf8747ed1"
    assert body_digest("é") == "66ddcd97cfdeabb2f6fb8a999b4bc76f"


@pytest.mark.parametrize(
    ("value", "digest"),
    [
        ("1493147359900", "235c5c510d26fb653d073faed50ae77c"),
        ("1493147359901", "994258b45346a2cc3f9cbb611aa7af30"),
    ],
)
def test_the_digest_of_attributes_is_that_of_aws(value: str, digest: str) -> None:
    assert attributes_digest({"timestamp": AttributeContent("Number", value)}) == digest


def test_the_digest_of_attributes_tells_all_parts_and_not_their_order() -> None:
    attributes = {"a": AttributeContent("String", "x"), "b": AttributeContent("Binary", b"x")}
    digest = attributes_digest(attributes)
    assert attributes_digest(dict(reversed(attributes.items()))) == digest
    for other in (AttributeContent("Binary.y", b"x"), AttributeContent("Binary", b"y")):
        assert attributes_digest(attributes | {"b": other}) != digest
    assert attributes_digest(attributes | {"b": AttributeContent("String", "x")}) != digest
