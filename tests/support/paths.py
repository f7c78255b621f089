"""Where the repository is, for tests of its documents, tools and examples."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
