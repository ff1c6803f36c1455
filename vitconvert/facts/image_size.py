"""The size of the images: shown by the number of positions, and by windows of attention."""

import math
from collections.abc import Mapping

from vitconvert.config.properties import patches_of, pixels_of, stem_positions, stem_stride
from vitconvert.facts.fact import TENSORS, UNKNOWN, USER, Fact, show
from vitconvert.facts.tensor_evidence import TensorEvidence

_Image = tuple[int, int]
_Grid = tuple[int, int]


def read_image_size(found: TensorEvidence) -> None:
    """Learn `image_size` and `no_embed_class`; everything else is known by then."""
    # without these, nothing shows a grid
    if "patch_stride" in found.missing or "frames" in found.missing:
        return
    _read_windows(found)
    rows, offsets = found.sizes.get("position"), found.sizes.get("relative")
    patch = found.value("patch_size", (0, 0))
    if rows is not None and all(patch):
        _read_positions(found, rows)
    elif rows is None and offsets is not None and all(patch):
        _read_relative_positions(found, offsets)
    else:
        if found.value("position_embedding", "none") == "sincos1d":
            _ask_where_numbers_begin(found)
        elif not found.present["learned_positions"]:  # there are, where a table cuts surplus ones
            found.facts.pop("no_embed_class", None)
        _assume_own_grid(found)
        if "image_size" not in found.facts:
            patch, origin = found.facts.get("patch_size") or UNKNOWN
            why = ""  # the patches are asked for, which tell
            if rows is offsets is None:
                why = "positions are not stored, so the grid is unknown"
                if found.present["learned_positions"]:
                    why = "there are more positions than are used, so the grid is unknown"
            elif origin:
                why = f"patches of {show(patch)} pixels do not make up an image"
            found.missing["image_size"] = why


def _ask_where_numbers_begin(found: TensorEvidence) -> None:
    prefixed = any(found.value(name) for name in ("class_token", "dist_token", "num_registers"))
    if prefixed and "no_embed_class" not in found.facts:
        found.missing["no_embed_class"] = (
            "sincos1d numbers the whole sequence, with the class token (false), or only the "
            "patches (true)"
        )


def _set_aside(found: TensorEvidence, field: str) -> Fact:
    """What is known so far of a field that positions decide: it is no fact until they have."""
    return found.facts.pop(field, UNKNOWN)


def _read_positions(found: TensorEvidence, rows: int) -> None:
    """The number of positions tells the grid, or checks the stated one."""
    image, origin = _set_aside(found, "image_size")
    # Tokens that have a position, if any but the patches have one.
    prefix = sum(int(found.value(name)) for name in ("class_token", "dist_token"))
    if found.value("register_positions", True):
        prefix += found.value("num_registers")
    counts = {False: rows - prefix, True: rows}  # no_embed_class -> patches
    if image is not None:
        patches = _time_steps(found) * math.prod(_grid_of(found, image))
        if patches in counts.values():
            found.facts["image_size"] = Fact(image, origin)
            _place_positions(found, [how for how in counts if counts[how] == patches])
            return
        found.overrule(
            f"image_size = {show(image)} ({origin}) makes {patches} patches, but the tensors have "
            f"{rows} positions",
            origin,
        )
    _assume_square_grid(found, rows, prefix, counts)


def _assume_own_grid(found: TensorEvidence) -> None:
    """Positions with a grid of their own fit every image; most likely one of that grid."""
    grid = found.value("position_grid", ())
    resampled = found.value("position_resampling", "") != "first"
    if grid and resampled and "patch_size" in found.facts and "image_size" not in found.facts:
        image = tuple(n * side for n, side in zip(grid, found.value("patch_size"), strict=True))
        assumed = f"assumed: images have the grid of the positions, {show(grid)}"
        found.facts["image_size"] = Fact(image, assumed)


def _place_positions(found: TensorEvidence, fitting: list[bool]) -> None:
    """Whether the prefix tokens have positions, where the size of the images leaves this open."""
    said, origin = _set_aside(found, "no_embed_class")
    how = said if said in fitting else fitting[0]
    found.facts["no_embed_class"] = Fact(how, origin if how == said else TENSORS)
    if how != said and origin == USER:
        found.conflicts.append(
            f"no_embed_class = {said} (user), but image_size = "
            f"{show(found.facts['image_size'][0])} and the {found.sizes['position']} positions of "
            f"the tensors leave only {how}"
        )


def _assume_square_grid(
    found: TensorEvidence, rows: int, prefix: int, counts: Mapping[bool, int]
) -> None:
    said, origin = _set_aside(found, "no_embed_class")
    options = [said] if said is not None else [how for how in counts if prefix or not how]
    steps = _time_steps(found)
    grids = {how: counts[how] // steps for how in options if counts[how] % steps == 0}
    square = [how for how, count in grids.items() if math.isqrt(max(count, 0)) ** 2 == count > 0]
    if len(square) != 1:
        of_clip = f" for each of {steps} steps in time" if steps > 1 else ""
        found.missing["image_size"] = (
            f"{rows} positions with {prefix} prefix tokens do not form a square grid{of_clip}"
        )
        return
    count = grids[square[0]]
    assumed = f"assumed: {count} patches form a square grid"
    found.facts["image_size"] = Fact(_pixels(found, math.isqrt(count)), assumed)
    found.facts["no_embed_class"] = Fact(square[0], origin if said is not None else assumed)


def _read_relative_positions(found: TensorEvidence, rows: int) -> None:
    """(2 rows - 1) (2 columns - 1) offsets, and three for the class token."""
    image, origin = _set_aside(found, "image_size")
    found.facts.pop("no_embed_class", None)
    of_class = 3 * int(found.value("class_token"))
    if image is not None:
        rows_of, columns_of = _grid_of(found, image)
        needed = (2 * rows_of - 1) * (2 * columns_of - 1) + of_class
        if needed == rows:
            found.facts["image_size"] = Fact(image, origin)
            return
        found.overrule(
            f"image_size = {show(image)} ({origin}) needs {needed} relative positions, but the "
            f"tensors have {rows}",
            origin,
        )
    # A side of n patches has 2 n - 1 offsets.
    side = (math.isqrt(max(rows - of_class, 0)) + 1) // 2
    if (2 * side - 1) ** 2 + of_class != rows:
        found.missing["image_size"] = f"{rows} relative positions do not form a square grid"
        return
    assumed = f"assumed: {rows} relative positions form a square grid"
    found.facts["image_size"] = Fact(_pixels(found, side), assumed)


def _time_steps(found: TensorEvidence) -> int:
    """Patches one after another in time; 1 of an image."""
    frames: int = found.value("frames", 0)
    tubelet: int = found.value("tubelet", 1)
    return max(frames // max(tubelet, 1), 1)


def _grid_of(found: TensorEvidence, image: _Image) -> _Grid:
    """Patches down and across."""
    height, width = image
    if found.value("stem"):
        height, width = (stem_positions(side, *_stem(found)) for side in image)
    return patches_of((height, width), *_patches(found))


def _patches(found: TensorEvidence) -> tuple[_Image, tuple[int, ...]]:
    """Size of the patches, and the pixels from one to the next."""
    stride = found.value("patch_stride", ())
    sound = len(stride) == 2 and min(stride) > 0  # ViTConfig refuses another
    return found.value("patch_size"), stride if sound else ()


def _pixels(found: TensorEvidence, side: int) -> _Image:
    """The image that so many patches cover, down and across."""
    height, width = pixels_of((side, side), *_patches(found))
    stride = stem_stride(*_stem(found)) if found.value("stem") else 1
    return height * stride, width * stride


def _stem(found: TensorEvidence) -> tuple[str, tuple[int, ...]]:
    """Style and depths of the stem."""
    return found.value("stem_style", "google"), found.value("stem_depths")


def _read_windows(found: TensorEvidence) -> None:
    """Learn window_size, global_blocks and image_size, after what was stated.

    The vectors of a block show how many patches down and across its attention sees at once. A
    window that is as large as the image leaves no trace, and changes nothing.
    """
    if not found.present["decomposed_positions"] or "patch_size" not in found.facts:
        return
    grids: dict[int, _Grid] = {}
    for i in range(found.value("depth")):
        down, across = (found.sizes.get(f"offset_{axis}{i}", 0) for axis in "yx")
        if down * across:  # 2 n - 1 offsets between n patches
            grids[i] = ((down + 1) // 2, (across + 1) // 2)
    if "window_size" not in found.facts:
        _find_windows(found, grids)
    side = found.value("window_size", 0)
    unlike = {i for i, grid in grids.items() if grid != (side, side)}
    said, origin = found.facts.get("global_blocks") or Fact(tuple(unlike), TENSORS)
    windowed = grids.keys() - {*said, *unlike} if side else set()
    whole = {grid for i, grid in grids.items() if i not in windowed}
    if len(whole) > 1 or (windowed and unlike - {*said}):
        sizes = ", ".join(f"{i}: {show(grid)}" for i, grid in grids.items())
        found.conflicts.append(
            f"window_size = {side} and global_blocks = {said} ({origin}), but blocks see at once "
            f"as many patches as {sizes}"
        )
    elif whole:
        _read_grid(found, whole.pop())
    if windowed:
        found.facts.setdefault("global_blocks", Fact(tuple(sorted(unlike)), TENSORS))
    elif side:
        if not grids.keys() <= {*said} - unlike:
            origin = found.facts["window_size"].origin
            found.overrule(
                f"window_size = {side} ({origin}), but no block sees {side}x{side} patches at once",
                origin,
            )
        found.facts["window_size"] = Fact(0, TENSORS)


def _find_windows(found: TensorEvidence, grids: dict[int, _Grid]) -> None:
    """Where nothing is stated, the blocks that see less have windows."""
    seen = sorted({*grids.values()})
    positions = found.value("position_grid", ())
    if len(seen) == 2 and len({*seen[0]}) == 1:
        found.facts["window_size"] = Fact(seen[0][0], TENSORS)
    elif len(seen) == 1 and positions not in ((), seen[0]):
        found.missing["window_size"] = (
            f"every block sees {show(seen[0])} patches at once, and the positions are of "
            f"{show(positions)}; 0 says that the image has no more than the first"
        )


def _read_grid(found: TensorEvidence, grid: _Grid) -> None:
    image, origin = found.facts.get("image_size") or UNKNOWN
    if image is not None:
        if _grid_of(found, image) == grid:
            return
        found.overrule(
            f"image_size = {show(image)} ({origin}), but the relative positions are of "
            f"{show(grid)} patches",
            origin,
        )
    found.facts["image_size"] = Fact(pixels_of(grid, *_patches(found)), TENSORS)
