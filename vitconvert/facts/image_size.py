"""The size of the images, which a checkpoint shows by the number of its positions alone."""

import math
from collections.abc import Mapping

from vitconvert.config.properties import stem_positions, stem_stride
from vitconvert.facts.tensor_evidence import TENSORS, USER, Findings, show
from vitconvert.facts.window_evidence import read_windows

_Image = tuple[int, int]


def read_image_size(found: Findings) -> None:
    """Learn `image_size` and `no_embed_class`; everything else is known by then."""
    read_windows(found)
    rows, offsets = found.sizes.get("position"), found.sizes.get("relative")
    patch, _ = found.facts.get("patch_size", ((0, 0), ""))
    if rows is not None and all(patch):
        _read_positions(found, rows)
    elif rows is None and offsets is not None and all(patch):
        _read_relative_positions(found, offsets)
    else:
        found.facts.pop("no_embed_class", None)
        _assume_own_grid(found)
        if "image_size" not in found.facts:
            found.missing["image_size"] = _why_unknown(found)


def _why_unknown(found: Findings) -> str:
    if not found.sizes.keys() & {"position", "relative"}:
        return "positions are not stored, so nothing shows the grid"
    if "patch_size" in found.facts:
        return f"patches of {show(found.facts['patch_size'][0])} pixels make up no image"
    return ""  # the patches are asked for, which tell


def _read_positions(found: Findings, rows: int) -> None:
    """The number of positions tells the grid, or checks the stated one."""
    image, origin = found.facts.pop("image_size", (None, ""))
    prefix = _prefix_tokens(found)
    counts = {False: rows - prefix, True: rows}  # no_embed_class -> patches
    if image is not None:
        patches = _patches_in(found, image)
        if patches in counts.values():
            found.facts["image_size"] = (image, origin)
            _place_positions(found, [how for how in counts if counts[how] == patches])
            return
        found.overrule(
            f"image_size = {show(image)} ({origin}) makes {patches} patches, but the tensors have "
            f"{rows} positions",
            origin,
        )
    _assume_square_grid(found, rows, prefix, counts)


def _assume_own_grid(found: Findings) -> None:
    """Positions with a grid of their own fit every image; most likely one of that grid."""
    grid, _ = found.facts.get("position_grid", ((), ""))
    resampled = found.facts.get("position_resampling", ("", ""))[0] != "first"
    if grid and resampled and "patch_size" in found.facts and "image_size" not in found.facts:
        image = tuple(n * side for n, side in zip(grid, found.facts["patch_size"][0], strict=True))
        assumed = f"assumed: images have the grid of the positions, {show(grid)}"
        found.facts["image_size"] = (image, assumed)


def _place_positions(found: Findings, fitting: list[bool]) -> None:
    """Whether the prefix tokens have positions, where the size of the images leaves this open."""
    said, origin = found.facts.pop("no_embed_class", (None, ""))
    how = said if said in fitting else fitting[0]
    found.facts["no_embed_class"] = (how, origin if how == said else TENSORS)
    if how != said and origin == USER:
        found.conflicts.append(
            f"no_embed_class = {said} (user), but image_size = "
            f"{show(found.facts['image_size'][0])} and the {found.sizes['position']} positions of "
            f"the tensors leave only {how}"
        )


def _assume_square_grid(
    found: Findings, rows: int, prefix: int, counts: Mapping[bool, int]
) -> None:
    said, origin = found.facts.pop("no_embed_class", (None, ""))
    options = [said] if said is not None else [how for how in counts if prefix or not how]
    square = [how for how in options if math.isqrt(max(counts[how], 0)) ** 2 == counts[how] > 0]
    if len(square) != 1:
        found.missing["image_size"] = (
            f"{rows} positions with {prefix} prefix tokens form no one square grid"
        )
        return
    count = counts[square[0]]
    assumed = f"assumed: {count} patches form a square grid"
    found.facts["image_size"] = (_pixels(found, math.isqrt(count)), assumed)
    found.facts["no_embed_class"] = (square[0], origin if said is not None else assumed)


def _prefix_tokens(found: Findings) -> int:
    """Tokens that have a position, if any but the patches have one."""
    prefix = sum(int(found.facts[name][0]) for name in ("class_token", "dist_token"))
    if found.facts.get("register_positions", (True, ""))[0]:
        prefix += found.facts["num_registers"][0]
    return prefix


def _read_relative_positions(found: Findings, rows: int) -> None:
    """(2 rows - 1) (2 columns - 1) offsets, and three for the class token."""
    image, origin = found.facts.pop("image_size", (None, ""))
    found.facts.pop("no_embed_class", None)
    if image is not None:
        needed = _relative_rows(found, image)
        if needed == rows:
            found.facts["image_size"] = (image, origin)
            return
        found.overrule(
            f"image_size = {show(image)} ({origin}) needs {needed} relative positions, but the "
            f"tensors have {rows}",
            origin,
        )
    of_class = 3 * int(found.facts["class_token"][0])
    side = (math.isqrt(max(rows - of_class, 0)) + 1) // 2
    if (2 * side - 1) ** 2 + of_class != rows:
        found.missing["image_size"] = f"{rows} relative positions form no square grid"
        return
    assumed = f"assumed: {rows} relative positions form a square grid"
    found.facts["image_size"] = (_pixels(found, side), assumed)


def _relative_rows(found: Findings, image: _Image) -> int:
    down, across = found.facts["patch_size"][0]
    of_class = 3 * int(found.facts["class_token"][0])
    return int((2 * (image[0] // down) - 1) * (2 * (image[1] // across) - 1) + of_class)


def _patches_in(found: Findings, image: _Image) -> int:
    down, across = found.facts["patch_size"][0]
    height, width = image
    if found.facts["stem"][0]:
        height, width = (stem_positions(side, *_stem(found)) for side in image)
    return int((height // down) * (width // across))


def _pixels(found: Findings, side: int) -> _Image:
    """The image that so many patches cover, down and across."""
    down, across = found.facts["patch_size"][0]
    stride = stem_stride(*_stem(found)) if found.facts["stem"][0] else 1
    return side * down * stride, side * across * stride


def _stem(found: Findings) -> tuple[str, tuple[int, ...]]:
    """Style and depths of the stem."""
    return found.facts.get("stem_style", ("google", ""))[0], found.facts["stem_depths"][0]
