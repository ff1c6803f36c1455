"""Changes to files: of bytes anywhere, and of the parts of a format so that the rest still fits."""

import io
import json
import re
import struct
import zipfile
from collections.abc import Callable
from random import Random

Mutation = Callable[[bytes, Random], bytes]

NUMBERS = (0, 1, 2, 3, 7, 8, 16, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**16, 2**31 - 1, 2**31)
LARGE = (2**32 - 1, 2**32, 2**40, 2**53, 2**61 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
VALUES: tuple[object, ...] = (
    *(None, True, False, -1, *NUMBERS, *LARGE, 10**30, 0.5, 1e300, float("inf"), float("nan")),
    *("", "a", "F32", "\ud800", "\0", "../x", "/", "x" * 300, "\x1b[31m"),
    *([], {}, [1], [[1]], [[[]]], {"a": 1}, [0, 4], [4, 0], [-1]),
)


def mutated_bytes(data: bytes, random: Random) -> bytes:
    """A few changes of bytes anywhere."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        at = random.randrange(len(changed) + 1)
        size = random.choice((1, 2, 4, 8, random.randrange(1, 64)))
        match random.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 1 if at < len(changed):
                changed[at] = random.randrange(256)
            case 2:
                changed[at:at] = random.randbytes(size)
            case 3:
                del changed[at : at + size]
            case 4:
                source = random.randrange(len(changed) + 1)
                changed[at : at + random.choice((0, size))] = changed[source : source + size]
            case 5:
                width = random.choice((1, 2, 4, 8))
                value = random.choice((*NUMBERS, *LARGE, len(changed), at)) % 256**width
                changed[at : at + width] = value.to_bytes(width, "little")
            case 6 if random.random() < 0.2:
                del changed[at:]
        if not changed:
            break
    return bytes(changed)


def mutated_value(value: object, random: Random) -> object:
    """One value anywhere in a document replaced, left out, moved or given twice."""
    if isinstance(value, dict | list) and value and random.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = random.choice(keys)
        copy = value.copy()
        if random.random() < 0.8:
            copy[key] = mutated_value(value[key], random)
        elif random.random() < 0.4:
            del copy[key]
        elif isinstance(copy, dict):
            copy[random.choice((str(key) + ".x", *map(str, keys)))] = value[key]
        else:
            copy.insert(random.randrange(len(copy) + 1), value[key])
        return copy
    return random.choice(VALUES)


def mutated_json(data: bytes, random: Random) -> bytes:
    """A JSON text with another value, or with other bytes."""
    if random.random() < 0.3:
        return mutated_bytes(data, random)
    text = json.dumps(mutated_value(json.loads(data), random))
    if random.random() < 0.05:
        text = text.replace(":", ":" + "[" * random.choice((10, 1000, 10**5)), 1)
    return text.encode()


def mutated_safetensors(data: bytes, random: Random) -> bytes:
    """A file with another header whose length is right, or with other bytes."""
    if random.random() < 0.4:
        return mutated_bytes(data, random)
    length = int.from_bytes(data[:8], "little")
    header = mutated_json(data[8 : 8 + length], random)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


# What torch's pickles are made of, and what they should not be made of.
_OPCODES = (
    b"ctQR)}]N\x88\x89\x85\x86\x87(use.bahjqrKMJ\x8a\x81GX0" + b"2iopSLIFVPB\x80\x8c\x93\x94\x95"
)


def mutated_pickle(data: bytes, random: Random) -> bytes:
    """Another opcode, or other bytes."""
    if random.random() < 0.5:
        return mutated_bytes(data, random)
    changed = bytearray(data)
    places = [at for at, byte in enumerate(data) if byte in _OPCODES]
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.choice(places)
        if at < len(changed):
            new = random.choice(_OPCODES)
            changed[at : at + random.choice((0, 1, 1, 1, 2))] = bytes([new])
    return bytes(changed)


_FIELDS = {  # places and widths, in an entry of the directory and before a member
    b"PK\1\2": ((8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (34, 2), (42, 4)),
    b"PK\3\4": ((6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
    b"PK\5\6": ((8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
    b"PK\6\6": ((24, 8), (32, 8), (40, 8), (48, 8)),
    b"PK\6\7": ((8, 8),),
}

_SIGNATURE = re.compile(b"|".join(_FIELDS))


def mutated_archive(data: bytes, random: Random, inside: Mutation) -> bytes:
    """An archive with other bytes, other facts of its members, or other members.

    Args:
        data: The archive.
        random: Decides.
        inside: Changes a member; its checksum is made right.
    """
    match random.randrange(5):
        case 0:
            return mutated_bytes(data, random)
        case 1 | 2:
            return _with_lies(data, random)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    for _ in range(random.choice((1, 1, 2))):
        number = random.randrange(len(members))
        name, content = members[number]
        match random.randrange(10):
            case 0:
                del members[number]
                members = members or [(name, content)]
            case 1:
                members.append((name, content[::-1]))
            case 2:
                members[number] = (random.choice(members)[0], content)
            case 3:
                members[number] = (name.swapcase(), content)
            case _:
                members[number] = (name, inside(content, random))
    method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    return archived(members, method)


def archived(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of these members, whose names may repeat."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members:
            entry = zipfile.ZipInfo(name)
            entry.compress_type = method
            archive.NameToInfo.pop(name, None)  # which it would warn about
            archive.writestr(entry, content)
    return buffer.getvalue()


def _with_lies(data: bytes, random: Random) -> bytes:
    """Other numbers in headers and directory, some of them the same in both places."""
    changed = bytearray(data)
    places = [(found.start(), found[0]) for found in _SIGNATURE.finditer(data)]
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        at, signature = random.choice(places)
        place, width = random.choice(_FIELDS[signature])
        old = int.from_bytes(changed[at + place : at + place + width], "little")
        other, _ = random.choice([p for p in places if p[1] == signature])
        theirs = int.from_bytes(changed[other + place : other + place + width], "little")
        value = random.choice((*NUMBERS, *LARGE, old + 1, old - 1, old ^ 8, theirs, other, 8))
        changed[at + place : at + place + width] = (value % 256**width).to_bytes(width, "little")
        if random.random() < 0.1 and signature == b"PK\1\2":  # all members alike
            for every, sign in places:
                if sign == signature:
                    changed[every + place : every + place + width] = changed[
                        at + place : at + place + width
                    ]
    return bytes(changed)
