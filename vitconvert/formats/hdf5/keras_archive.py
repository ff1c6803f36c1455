"""A `.keras` file: a zip archive of a model's configuration and its weights, an HDF5 file.

The program that is in the configuration (layers with code of their own) is not looked at.

Source: https://keras.io/api/models/model_saving_apis/model_saving_and_loading/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from vitconvert.errors import CorruptFile
from vitconvert.formats.container import Container
from vitconvert.formats.hdf5 import open_within
from vitconvert.formats.headers import parse_object
from vitconvert.formats.zip_archive import Member, member_bytes

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
_LONGEST_CONFIG = 2**24  # bytes


def open_file(path: Path, members: Mapping[str, Member], *_: object) -> Container:
    """Read the description of all arrays in the archive, and what it says of the model.

    Raises:
        CorruptFile: It contradicts itself, or the weights in it are compressed.
        UnsafeFile: They lead to other files.
    """
    weights, config = members[_WEIGHTS], members[_CONFIG]
    if not weights.stored:
        raise CorruptFile(
            "The weights in this Keras file are compressed, so they cannot be used where they lie.",
            evidence={"file": path, "member": _WEIGHTS},
            hint=f"unzip it, and name {_WEIGHTS}.",
        )
    if config.size > _LONGEST_CONFIG:
        raise CorruptFile(
            "The configuration in this Keras file is too long for one.",
            evidence={"file": path, "member": _CONFIG, "found": f"{config.size:,} bytes"},
        )
    said = parse_object(path, member_bytes(path, config), what=f"{_CONFIG} in the archive")
    container = open_within(path, weights.offset, weights.size)
    return replace(container, format="keras", config=said)
