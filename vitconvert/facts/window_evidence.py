"""What relative positions of rows and columns show: windows, and the grid of the image."""

from vitconvert.facts.tensor_evidence import TENSORS, Findings, show

_Grid = tuple[int, int]


def read_windows(found: Findings) -> None:
    """Learn window_size, global_blocks and image_size, after what was stated.

    The vectors of a block show how many patches down and across its attention sees at once. A
    window that is as large as the image leaves no trace, and changes nothing.
    """
    if not found.present["decomposed_positions"] or "patch_size" not in found.facts:
        return
    grids = _attended_grids(found)
    if "window_size" not in found.facts:
        _find_windows(found, grids)
    side = found.facts.get("window_size", (0, ""))[0]
    unlike = {i for i, grid in grids.items() if grid != (side, side)}
    said, origin = found.facts.get("global_blocks", (tuple(unlike), TENSORS))
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
        found.facts.setdefault("global_blocks", (tuple(sorted(unlike)), TENSORS))
    elif side:
        if not grids.keys() <= {*said} - unlike:
            _contradict_windows(found, side)
        found.facts["window_size"] = (0, TENSORS)


def _contradict_windows(found: Findings, side: int) -> None:
    origin = found.facts["window_size"][1]
    found.overrule(
        f"window_size = {side} ({origin}), but no block sees {side}x{side} patches at once", origin
    )


def _attended_grids(found: Findings) -> dict[int, _Grid]:
    sizes = found.sizes
    lengths = (
        (i, sizes.get(f"offset_y{i}", 0), sizes.get(f"offset_x{i}", 0))
        for i in range(found.facts["depth"][0])
    )
    return {i: ((down + 1) // 2, (across + 1) // 2) for i, down, across in lengths if down * across}


def _find_windows(found: Findings, grids: dict[int, _Grid]) -> None:
    """Where nothing is stated, the blocks that see less have windows."""
    seen = sorted({*grids.values()})
    positions = found.facts.get("position_grid", ((), ""))[0]
    if len(seen) == 2 and len({*seen[0]}) == 1:
        found.facts["window_size"] = (seen[0][0], TENSORS)
    elif len(seen) == 1 and positions not in ((), seen[0]):
        found.missing["window_size"] = (
            f"every block sees {show(seen[0])} patches at once, and the positions are of "
            f"{show(positions)}; 0 says that the image has no more than the first"
        )


def _read_grid(found: Findings, grid: _Grid) -> None:
    patch = found.facts["patch_size"][0]
    image, origin = found.facts.get("image_size", (None, ""))
    if image is not None:
        sides = zip(image, patch, strict=True)
        if tuple(pixels // side for pixels, side in sides) == grid:
            return
        found.overrule(
            f"image_size = {show(image)} ({origin}), but the relative positions are of "
            f"{show(grid)} patches",
            origin,
        )
    pixels = (grid[0] * patch[0], grid[1] * patch[1])
    found.facts["image_size"] = (pixels, TENSORS)
