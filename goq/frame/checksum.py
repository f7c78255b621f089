"""CRC32C, from the C extension of the package ``crc32c``.

The package itself also loads a command line, and asks the metadata of installed distributions for
its version: 15 ms of each short command. So the extension is loaded without it.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crc32c import crc32c
else:

    def _extension():
        package = find_spec("crc32c")
        found = package and PathFinder.find_spec(
            "crc32c._crc32c", package.submodule_search_locations
        )
        if not found or found.loader is None:
            import crc32c

            return crc32c
        module = module_from_spec(found)
        found.loader.exec_module(module)
        return module

    crc32c = _extension().crc32c

__all__ = ["crc32c"]
