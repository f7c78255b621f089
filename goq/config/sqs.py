"""The settings of the SQS-compatible endpoint."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from goq import limits
from goq.config.addresses import host_and_port, host_names, listed
from goq.errors import InvalidInput
from goq.model import check_name

_STRICT = ConfigDict(extra="forbid", frozen=True)


class SqsConfig(BaseModel):
    """The settings of the SQS-compatible endpoint; without ``listen`` there is none.

    A queue is a topic, and ``group`` is the group that receives from it. ``region`` and ``account``
    are in ARNs and queue URLs. ``hosts`` are names by which clients call the endpoint, as those of
    ``security.hosts``. ``limits`` of ``relaxed`` are goq's own instead of AWS's.
    """

    model_config = _STRICT

    listen: str | None = None
    region: str = Field(default="us-east-1", pattern=r"^[a-z0-9-]{1,32}$")
    account: str = Field(default="000000000000", pattern=r"^[0-9]{12}$")
    group: str = "sqs"
    hosts: tuple[str, ...] = ()
    limits: Literal["strict", "relaxed"] = "strict"

    @field_validator("listen", mode="before")
    @classmethod
    def _may_be_none(cls, value: Any) -> Any:
        return None if value == "none" else value

    @field_validator("listen")
    @classmethod
    def _has_host_and_port(cls, value: str | None) -> str | None:
        return None if value is None else host_and_port(value)

    @field_validator("account", mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        """Accept what YAML makes of digits without quotes."""
        return f"{value:012d}" if type(value) is int else value

    @field_validator("group")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        try:
            return check_name(value, "group")
        except InvalidInput as error:
            raise ValueError(error.detail) from None

    @field_validator("hosts", mode="before")
    @classmethod
    def _are_listed(cls, value: Any) -> Any:
        return listed(value)

    @field_validator("hosts")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return host_names(value)

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
