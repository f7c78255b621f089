"""A node's configuration: file, then environment, then flags, the later winning.

``config.example.yaml`` has every setting with its default. In the environment a setting is
``GOQ_SECTION__NAME``, as ``GOQ_BROKER__DATA_DIR``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from goq import limits
from goq.errors import GoqError, UsageError
from goq.settings import TopicSettings

DEFAULT_PARTITIONS = 6
_STRICT = ConfigDict(extra="forbid", frozen=True)


class BrokerConfig(BaseModel):
    """The node itself."""

    model_config = _STRICT

    node_id: str = "node-1"
    data_dir: Path = Path("goq-data")
    listen: str = "127.0.0.1:8080"
    auto_create_topics: bool = True

    @field_validator("listen")
    @classmethod
    def _has_host_and_port(cls, value: str) -> str:
        host, colon, port = value.rpartition(":")
        if not (host and colon and port.isascii() and port.isdigit() and int(port) < 65536):
            raise ValueError(f"{value!r} is not HOST:PORT, as in 127.0.0.1:8080")
        return value

    @property
    def host(self) -> str:
        """The host to listen on."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port to listen on, 0 for any that is free."""
        return int(self.listen.rpartition(":")[2])


class DefaultsConfig(BaseModel):
    """What a new topic gets where it is not told otherwise.

    ``topic`` and ``delivery`` hold topic settings, nested or dotted, and ``topic`` the count of
    partitions besides.
    """

    model_config = _STRICT

    topic: dict[str, Any] = Field(default_factory=dict)
    delivery: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _are_settings(self) -> DefaultsConfig:
        try:
            _ = self.settings
        except GoqError as error:
            raise ValueError(error.detail) from None
        if not isinstance(self.partitions, int) or not (
            1 <= self.partitions <= limits.PARTITIONS_PER_TOPIC_MAX
        ):
            raise ValueError(
                f"topic.partitions is {self.partitions!r}, not a number from 1 to"
                f" {limits.PARTITIONS_PER_TOPIC_MAX}"
            )
        return self

    @property
    def partitions(self) -> int:
        """How many partitions a new topic has."""
        count = self.topic.get("partitions", DEFAULT_PARTITIONS)
        return int(count) if isinstance(count, str) and count.isdigit() else count

    @property
    def settings(self) -> TopicSettings:
        """The topic settings, checked."""
        topic = {key: value for key, value in self.topic.items() if key != "partitions"}
        return TopicSettings().changed({**topic, "delivery": self.delivery})


class Config(BaseSettings):
    """Everything that a node can be told."""

    model_config = SettingsConfigDict(
        env_prefix="GOQ_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    broker: BrokerConfig = BrokerConfig()
    defaults: DefaultsConfig = DefaultsConfig()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment win over what :func:`load_config` read from the file."""
        return env_settings, init_settings


def load_config(path: Path | None, flags: Mapping[str, Any]) -> Config:
    """Return the configuration from a file, the environment and ``flags`` (dotted names).

    Raises ``UsageError`` naming the setting and what is wrong with it.
    """
    from_file = _read_file(path) if path is not None else {}
    try:
        below = Config(**from_file)
        if not flags:
            return below
        merged = below.model_dump()
        for key, value in flags.items():
            _put(merged, key.split("."), value)
        return Config.model_construct(
            broker=BrokerConfig(**merged["broker"]), defaults=DefaultsConfig(**merged["defaults"])
        )
    except ValidationError as error:
        raise UsageError("; ".join(_explain(e) for e in error.errors()) + _source(path)) from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UsageError(f"{path} should hold the sections broker and defaults")
    return content


def _put(target: dict[str, Any], keys: list[str], value: Any) -> None:
    if keys[0] not in ("broker", "defaults") or len(keys) < 2:
        raise UsageError(
            f"{'.'.join(keys)!r} is not a setting; settings begin with broker. or defaults."
        )
    for key in keys[:-1]:
        inner = target.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UsageError(f"{'.'.join(keys)!r} is not a setting")
        target = inner
    target[keys[-1]] = value


def _explain(error: Mapping[str, Any]) -> str:
    where = ".".join(map(str, error["loc"]))
    return f"{where}: {error['msg'].removeprefix('Value error, ')}"


def _source(path: Path | None) -> str:
    return f" (in {path}, the environment or a flag)" if path else ""
