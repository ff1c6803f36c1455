"""How a program that reads an output treats photographs differently from the source's project."""

from vitconvert.inference.backends import BACKENDS
from vitconvert.inference.preprocessing import Preprocessing

_RESIZES = {"pil": "Pillow images", "uint8": "tensors of bytes", "float": "tensors of floats"}
_TRANSPARENT = {"drop": "forgets transparency", "white": "lays transparent images over white"}
# Said by these, and not by their names
_IN_WORDS = ("backend", "transparency", "patch_size", "max_patches")


def departures_of(program: str, source: Preprocessing, theirs: Preprocessing) -> tuple[str, ...]:
    """What a program does otherwise; roundings of the last bit are left out."""
    ours, other = BACKENDS[source.backend], BACKENDS[theirs.backend]
    said = []
    if other.resize != ours.resize:
        said.append(f"resizes {_RESIZES[other.resize]}, not {_RESIZES[ours.resize]}")
    if other.antialias != ours.antialias:
        said.append("smooths what it shrinks" if other.antialias else "shrinks without smoothing")
    if source.cuts and other.crop_rounding != ours.crop_rounding:
        said.append("cuts a pixel beside where 3, 7, 11, ... pixels are cut off")
    if other.upright != ours.upright:
        turns = "turns" if other.upright else "does not turn"
        said.append(f"{turns} photographs by their EXIF orientation")
    if source.resize == "patches" != theirs.resize:
        said.append("makes all photographs one shape")
    if other.converts_last != ours.converts_last:
        order = "after" if other.converts_last else "before"
        said.append(f"converts images that are neither grey nor RGB {order} it resizes them")
    if source.resize == theirs.resize == "border" and other.black_border != ours.black_border:
        said.append(f"pads with {'black' if other.black_border else 'the mean colour'}")
    if theirs.transparency != source.transparency:
        said.append(_TRANSPARENT[theirs.transparency])
    said += [d for d in source.differences(theirs) if not d.startswith(_IN_WORDS)]
    return tuple(f"{program} {sentence}" for sentence in said)
