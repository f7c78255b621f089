"""Base classes of JSON bodies.

Unknown input fields are refused: a misspelt ``delay`` must not publish at once.
"""

from __future__ import annotations

import msgspec


class Input(msgspec.Struct, forbid_unknown_fields=True):
    """Base of request bodies."""


class Output(msgspec.Struct, omit_defaults=True):
    """Base of answers; fields with default values are left out."""
