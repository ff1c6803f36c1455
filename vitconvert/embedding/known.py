"""Which images a plan has already."""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from vitconvert.embedding import files
from vitconvert.embedding.folders import Folder
from vitconvert.embedding.places import Found, absolute
from vitconvert.embedding.plan import Plan
from vitconvert.embedding.units import encoded
from vitconvert.errors import IntegrityError

_AT_ONCE = 4096  # names that are looked up together


class KnownKeys:
    """The files of a plan: 16 bytes for each, a hash of its name.

    Args:
        folder: Of the output.
        plan: Whose files are known.
    """

    def __init__(self, folder: Folder, plan: Plan) -> None:
        self._archives = {
            absolute(unit.place): unit.state for unit in plan.units if unit.kind != "files"
        }
        lists = [unit for unit in plan.units if unit.kind == "files"]
        hashes = [_hashes(files.places(folder, unit)) for unit in lists]
        self._files = np.sort(np.concatenate(hashes)) if hashes else np.empty(0, "S16")

    def new(self, found: Iterable[Found]) -> Iterator[Found]:
        """Those that are not known, in their order.

        Raises:
            IntegrityError: An archive is known, and was another.
        """
        rest = iter(found)
        while some := list(islice(rest, _AT_ONCE)):
            known = self._are_known(some)
            yield from (file for file, old in zip(some, known, strict=True) if not old)

    def _are_known(self, found: list[Found]) -> list[bool]:
        names = [absolute(file.name) for file in found]
        hashes = _hashes(names)
        places = np.searchsorted(self._files, hashes)
        last = len(self._files) - 1
        hits = (
            self._files[np.minimum(places, last)] == hashes if last >= 0 else [False] * len(found)
        )
        for name, file in zip(names, found, strict=True):
            if self._archives.get(name, file.state) != file.state:
                raise IntegrityError(
                    "An archive changed after it was planned: which of its images are new?",
                    evidence={"archive": name},
                    hint="a new output, or the archive as it was.",
                )
        return [bool(hit) or name in self._archives for hit, name in zip(hits, names, strict=True)]


def _hashes(names: Iterable[str]) -> NDArray[np.bytes_]:
    # NumPy compares bytes without zeros at their end: all hashes have the same length, so that is
    # no loss.
    digests = [hashlib.blake2b(encoded(name), digest_size=16).digest() for name in names]
    return np.array(digests, dtype="S16")
