"""Two forms of HDF5 that only Keras has.

A `.keras` file, which is read, is a zip archive of a model's configuration and its weights. The
program that is in the configuration (layers with code of their own) is not looked at.

`keras_2`, which is written (and read as the HDF5 that it is), has attributes that say which layers
there are, and which weights of each. Keras goes by the order of both when it loads such a file, not
by names: Keras 2, and Keras 3 where the name of a file does not end in `.weights.h5`. It is the
order in which the table has its rows. A weight's name begins with its layer's, so that the path of
an array is LAYER/LAYER/REST.

Sources: https://keras.io/api/models/model_saving_apis/model_saving_and_loading/ and
https://github.com/keras-team/tf-keras/blob/v2.21.0/tf_keras/src/saving/legacy/hdf5_format.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path

from vitconvert.errors import UsageError
from vitconvert.formats.container import Container
from vitconvert.formats.content import Content
from vitconvert.formats.format_modules import Surroundings
from vitconvert.formats.hdf5 import (
    EXAMPLE,
    READER,
    Attributes,
    open_within,
    read_plainly,
    write_hdf5,
)
from vitconvert.formats.headers import corrupt, parse_strict_object
from vitconvert.formats.zip_archive import Member, member_bytes

__all__ = ["EXAMPLE", "READER", "open_file", "read_plainly", "write_file"]

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
_LONGEST_CONFIG = 2**24  # bytes


def open_file(path: Path, members: Mapping[str, Member], *_: object) -> Container:
    """Read the description of all arrays in a `.keras` file, and its configuration.

    Raises:
        CorruptFile: It contradicts itself, or the weights in it are compressed.
        UnsafeFile: They lead to other files.
    """
    weights, config = members[_WEIGHTS], members[_CONFIG]
    if not weights.stored:
        fact = "The weights in this Keras file are compressed, so they cannot be read in place."
        hint = f"unzip it, and name {_WEIGHTS}."
        raise corrupt(path, fact, hint=hint, member=_WEIGHTS)
    if config.size > _LONGEST_CONFIG:
        fact = "The configuration in this Keras file is too long for one."
        raise corrupt(path, fact, member=_CONFIG, found=f"{config.size:,} bytes")
    found = parse_strict_object(path, member_bytes(path, config), what=f"{_CONFIG} in the archive")
    container = open_within(path, weights.offset, weights.size)
    return replace(container, format="keras", config=found)


def write_file(path: Path, contents: Mapping[str, Content], _surroundings: Surroundings) -> str:
    """Write a file of the tensors and of their order, as Keras 2 does.

    Raises:
        UsageError: As `write_hdf5`, and for a name that no layer of Keras 2 gives a weight.
    """
    layers: dict[str, list[str]] = {}
    for name in _in_order(contents):
        for layer in accumulate(name.split("/"), "{}/{}".format):
            if name.startswith(f"{layer}/{layer}/"):
                layers.setdefault(layer, []).append(name.removeprefix(f"{layer}/"))
                break
        else:
            raise UsageError(
                "Keras 2 has no weight of this name: it would be LAYER/LAYER/REST.",
                evidence={"name": ascii(name)[:80]},
            )
    attributes: Attributes = {
        # Keras 2 takes a file without a version for one of Keras 1.
        "/": {"backend": "tensorflow", "keras_version": "2.15.0", "layer_names": list(layers)},
        **{name: {"weight_names": found} for name, found in layers.items()},
    }
    return write_hdf5(path, contents, attributes=attributes)


def _in_order(names: Iterable[str]) -> list[str]:
    """Names as a walk through the groups meets them, each group where its first name stands."""
    paths = {name: list(accumulate(name.split("/"), "{}/{}".format)) for name in names}
    place = {path: at for at, path in enumerate(dict.fromkeys(chain(*paths.values())))}
    return sorted(paths, key=lambda name: [place[path] for path in paths[name]])
