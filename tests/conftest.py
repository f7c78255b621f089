"""Makes the helpers in ``tests/support`` importable as ``support``, and room for many topics."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# A node raises its own limit; the nodes that tests run in their own process need it here.
_, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (_hard, _hard))
