"""How a program that reads an output treats photographs differently from the source's project."""

from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.steps import Steps

_RESIZES = {
    "pil": "Pillow images",
    "uint8": "uint8 tensors",
    "float": "float tensors",
    "weights": "arrays by weights",
}
_TRANSPARENCY = {"drop": "ignores transparency", "white": "puts transparent images on white"}
# Fields that the sentences below put into words
_IN_WORDS = ("backend", "transparency", "patch_size", "max_patches")


def departures_of(program: str, source: Steps, theirs: Steps) -> tuple[str, ...]:
    """What a program does differently, one sentence each; rounding of the last bit is left out.

    Args:
        program: Its name, which begins each sentence.
        source: The steps of the checkpoint's own project.
        theirs: The steps that the program takes.
    """
    said = [*_of_backends(source, theirs)]
    if theirs.transparency != source.transparency:
        said.append(_TRANSPARENCY[theirs.transparency])
    said += [d for d in source.differences(theirs) if not d.startswith(_IN_WORDS)]
    return tuple(f"{program} {sentence}" for sentence in said)


def _of_backends(source: Steps, theirs: Steps) -> list[str]:
    ours, other = BACKENDS[source.backend], BACKENDS[theirs.backend]
    said = []
    if other.resize != ours.resize:
        said.append(f"resizes {_RESIZES[other.resize]}, not {_RESIZES[ours.resize]}")
    if other.antialias != ours.antialias:
        said.append(f"resizes {'with' if other.antialias else 'without'} antialiasing")
    if source.cuts and other.crop_rounding != ours.crop_rounding:
        said.append("shifts the crop by one pixel where it cuts 3, 7, 11, ... rows or columns")
    if other.upright != ours.upright:
        said.append(f"{'applies' if other.upright else 'ignores'} the EXIF orientation")
    if source.resize == "patches" != theirs.resize:
        said.append("gives all photographs one aspect ratio")
    if other.converts_last != ours.converts_last:
        order = "after" if other.converts_last else "before"
        said.append(f"converts images that are neither grey nor RGB {order} resizing")
    if source.resize == theirs.resize == "border" and other.black_border != ours.black_border:
        said.append(f"pads with {'black' if other.black_border else 'the mean colour'}")
    return said
