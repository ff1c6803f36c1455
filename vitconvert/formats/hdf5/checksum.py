"""Bob Jenkins' lookup3, little-endian, which HDF5 writes after what describes arrays and groups.

Source: https://burtleburtle.net/bob/c/lookup3.c, hashlittle
"""

import struct

_ALL = 2**32 - 1


def checksum(data: bytes) -> bytes:
    """What follows these bytes in a file: four more."""
    a = b = c = (0xDEADBEEF + len(data)) & _ALL
    whole = max(0, len(data) - 1) // 12 * 12
    for x, y, z in struct.iter_unpack("<3I", data[:whole]):
        a, b, c = _mix(a + x, b + y, c + z)
    if not data:
        return struct.pack("<I", c)
    x, y, z = struct.unpack("<3I", data[whole:].ljust(12, b"\0"))
    return struct.pack("<I", _last(a + x, b + y, c + z))


def _turn(number: int, bits: int) -> int:
    number &= _ALL
    return (number << bits | number >> (32 - bits)) & _ALL


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for bits in (4, 6, 8, 16, 19, 4):
        a, b, c = b, c + b, (a - c) & _ALL ^ _turn(c, bits)
    return a & _ALL, b & _ALL, c & _ALL


def _last(a: int, b: int, c: int) -> int:
    for bits in (14, 11, 25, 16, 4, 14, 24):
        a, b, c = b, ((c ^ b) & _ALL) - _turn(b, bits), a
    return b & _ALL
