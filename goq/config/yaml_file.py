"""A node's configuration file in YAML, as nested mappings; nothing of it is checked yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from goq.config.node import SECTIONS
from goq.errors import UsageError


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the sections of a file. Raises ``UsageError``."""
    try:
        with path.open(encoding="utf-8") as file:
            content = yaml.load(file, _Loader)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{path} is not YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UsageError(f"{path} should hold the sections {SECTIONS}")
    return {key: {} if section is None else section for key, section in content.items()}


class _Loader(yaml.SafeLoader):
    """Reads YAML; a key that occurs twice in one mapping is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of ``node``."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} is given twice", key.start_mark
                )
            seen.add(str(key.value))
        return dict(super().construct_mapping(node, deep))
