"""HDF5 as Keras 2 saves weights: attributes say which layers there are, and which weights of each.

Keras goes by the order of both when it loads such a file, not by names: Keras 2, and Keras 3 where
the name of a file does not end in `.weights.h5`. It is the order in which the table has its rows.
A weight's name begins with its layer's, so that the path of an array is LAYER/LAYER/REST.

Source: https://github.com/keras-team/tf-keras/blob/v2.21.0/tf_keras/src/saving/legacy/hdf5_format.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate, chain
from pathlib import Path

from vitconvert.errors import UsageError
from vitconvert.formats.content import Content
from vitconvert.formats.format_modules import Surroundings
from vitconvert.formats.hdf5 import EXAMPLE, READER, open_file, read_plainly
from vitconvert.formats.hdf5.writing import Attributes, write_hdf5

__all__ = ["EXAMPLE", "READER", "open_file", "read_plainly", "write_file"]


def write_file(
    path: Path, contents: Mapping[str, Content], _surroundings: Surroundings, read_soon: bool
) -> str:
    """Write a file of the tensors and of their order.

    Raises:
        UsageError: As `write_hdf5`, and for a name that no layer of Keras 2 gives a weight.
    """
    return write_hdf5(path, contents, attributes=_attributes(contents), read_soon=read_soon)


def _attributes(names: Iterable[str]) -> Attributes:
    layers: dict[str, list[str]] = {}
    for name in _in_order(names):
        layer = _layer(name)
        layers.setdefault(layer, []).append(name.removeprefix(f"{layer}/"))
    # A file without a version is taken for one of Keras 1.
    of_all = {"backend": "tensorflow", "keras_version": "2.15.0", "layer_names": list(layers)}
    return {"": of_all, **{name: {"weight_names": found} for name, found in layers.items()}}


def _in_order(names: Iterable[str]) -> list[str]:
    """Names as a walk through the groups meets them, each group where its first name stands."""
    paths = {name: list(accumulate(name.split("/"), "{}/{}".format)) for name in names}
    place = {path: at for at, path in enumerate(dict.fromkeys(chain(*paths.values())))}
    return sorted(paths, key=lambda name: [place[path] for path in paths[name]])


def _layer(name: str) -> str:
    for layer in accumulate(name.split("/"), "{}/{}".format):
        if name.startswith(f"{layer}/{layer}/"):
            return layer
    raise UsageError(
        "Keras 2 has no weight of this name: it would be LAYER/LAYER/REST.",
        evidence={"name": ascii(name)[:80]},
    )
