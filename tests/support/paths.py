"""Where the repository is, for tests of its documents, tools and examples."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"


def topic_dir(data_dir: Path, topic: str, root: str = "topics") -> Path:
    """Return the folder of a topic of a node; ``root`` may be ``archive``."""
    names = [path.name for path in (data_dir / root).iterdir()]
    (name,) = [name for name in names if name.rpartition("~")[0] == topic or name == topic]
    return data_dir / root / name
