"""Blocks that two files share until one of them changes, where the file system can do that.

XFS, btrfs and bcachefs can. Nothing is copied then, and nothing takes more room.

Source: ioctl_ficlonerange(2).
"""

import errno
import os
import struct
import sys
from pathlib import Path

BLOCK = 4096  # places and lengths are multiples of it, or the kernel refuses
_FICLONERANGE = 0x4020940D
# Another file system, another kind of file, an older kernel, a sandbox.
_REFUSALS = {
    *(errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV),
    *(errno.EINVAL, errno.ENOSYS, errno.EPERM),
}


def share(source: Path, offset: int, length: int, target: int, begin: int) -> bool:
    """Have a range of a file appear in another, too.

    Args:
        source: The file that has it.
        offset: Where it begins there.
        length: Of the range.
        target: Descriptor of the file that gets it.
        begin: Where it begins there.

    Returns:
        Whether that was done; else nothing was.
    """
    if sys.platform != "linux":
        return False
    import fcntl

    with source.open("rb", buffering=0) as file:
        numbers = struct.pack("=q3Q", file.fileno(), offset, length, begin)
        try:
            fcntl.ioctl(target, _FICLONERANGE, numbers)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            return False
    os.lseek(target, begin + length, os.SEEK_SET)
    return True
