"""The settings of the SQS-compatible endpoint."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from goq import limits
from goq.config.addresses import host_and_port, host_names
from goq.config.section import (
    ConfigSection,
    Parser,
    checked_text,
    matching,
    name_of,
    optional,
    word,
)

_ACCOUNT = matching("[0-9]{12}")


def _account(value: Any, field: str) -> Any:
    """Accept what YAML makes of digits without quotes, too."""
    return _ACCOUNT(f"{value:012d}" if type(value) is int else value, field)


class SqsConfig(ConfigSection, frozen=True):
    """The settings of the SQS-compatible endpoint; without ``listen`` there is none.

    A queue is a topic, and ``group`` is the group that receives from it. ``region`` and ``account``
    are in ARNs and queue URLs. ``hosts`` are names by which clients call the endpoint, as those of
    ``security.hosts``. ``limits`` of ``relaxed`` are goq's own instead of AWS's.
    """

    PARSERS: ClassVar[dict[str, Parser]] = {
        "listen": optional(checked_text(host_and_port)),
        "region": matching("[a-z0-9-]{1,32}"),
        "account": _account,
        "group": name_of("group"),
        "hosts": host_names,
        "limits": word("strict", "relaxed"),
    }

    listen: str | None = None
    region: str = "us-east-1"
    account: str = "000000000000"
    group: str = "sqs"
    hosts: tuple[str, ...] = ()
    limits: Literal["strict", "relaxed"] = "strict"

    @property
    def body_bytes_max(self) -> int:
        """The maximum size of a request."""
        return limits.SQS_BODY_BYTES_MAX if self.limits == "strict" else limits.BODY_BYTES_MAX

    @property
    def address(self) -> tuple[str, int]:
        """The host and port to listen on, port 0 for any free one."""
        assert self.listen is not None
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)
