"""The disk: the only package that opens, writes, syncs, renames or removes data files.

Storage takes a :class:`Disk` as a parameter. The names below are what it needs of the package.

protocol    files and names as storage needs them, with the durability of each call
open_files  an LRU of descriptors, with one bound for all logs of a node
disk        the machine's filesystem
"""

from goq.storage.disk.disk import RealDisk as RealDisk
from goq.storage.disk.disk import is_full as is_full
from goq.storage.disk.disk import is_temporary as is_temporary
from goq.storage.disk.protocol import Disk as Disk
from goq.storage.disk.protocol import File as File
from goq.storage.disk.protocol import NotCached as NotCached
