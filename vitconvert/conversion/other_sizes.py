"""What a target makes of images of another size than the model's own, beside the source.

No file says how positions are fitted to another size: each project has a rule of its own. A
conversion that is exact at one size can so differ at others.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint, build_model
from vitconvert.config import ViTConfig
from vitconvert.config.properties import Size, pixels_of
from vitconvert.documents import JsonDict
from vitconvert.errors import ConflictingFact, size_text
from vitconvert.facts.fact import USER, first_origin, is_recorded, show
from vitconvert.programs.program import program_of
from vitconvert.programs.target import Target
from vitconvert.settings import torch_threads
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.programs.reference import Reference

_USUAL = (224, 384, 112)  # sides of images that are tried first
# Multiplications in linear layers of each side, those of a base at 224 with patches of 14
_MOST_WORK = 22_000_000_000
_FEWEST_PATCHES = 64  # which are computed whatever they cost
_ADDED, _RELATIVE = "resamples positions by", "resamples relative positions by"
_NOT_COMPUTED = "nothing was computed"
# Fields that say how positions are fitted, which `_rules` puts into words.
_OF_POSITIONS = (
    *("position_embedding", "position_grid", "position_square", "position_resampling"),
    *("relative_resampling", "no_embed_class", "register_positions"),
)


@dataclass(frozen=True, kw_only=True)
class OtherSizes:
    """How a target and a source differ at sizes of images other than the model's.

    Attributes:
        source, target: What each does, with its name.
        size: Height and width at which they are compared.
        relative: max |difference| over max |output| there, between the source's own program and
            the target's, on noise; None if it was not measured.
        why_not: Why it was not; "" if it was.
    """

    source: str
    target: str
    size: Size
    relative: float | None = None
    why_not: str = ""

    def __str__(self) -> str:
        """One line for people, with the way out."""
        found = f"not measured: {self.why_not}"
        if self.relative is not None:
            found = f"outputs at {size_text(self.size)} are {self.relative:.1e} apart"
        source = self.source
        for verb in (_ADDED, _RELATIVE):
            source = source.replace(verb, "by") if verb in self.target else source
        return (
            f"at other image sizes, {self.target}, {source} ({found}); for images of another "
            "size, convert with --image-size N (in Python, image_size=N)"
        )

    def to_dict(self) -> JsonDict:
        """For `vitconvert.json` and `--json`."""
        return {**asdict(self), "size": list(self.size)}


def other_sizes(before: Checkpoint, source: Checkpoint, target: Target) -> OtherSizes | None:
    """What the rules of both projects say, without a measurement; None if they say the same.

    None as well where one of the two has no way to read images of another size, and where the model
    was made for another size on the way.

    Args:
        before: The checkpoint as it was read.
        source: The same after all changes and steps.
        target: Where it goes, with what a reader of the output finds.
    """
    theirs, ours = target.read_back, before.config
    sized = ("image_size", "patch_size")
    if theirs is None or any(getattr(source.config, f) != getattr(ours, f) for f in sized):
        return None
    there, here = (program_of(t).other_sizes(t) for t in (target.table, before.table))
    if there != "program" or here == "none":
        return None
    size = size_to_measure(ours)
    try:
        wanted, found = _rules(before.table, ours, size), _rules(target.table, theirs, size)
        after = _others(source.config, size), _others(theirs, size)
    except ConflictingFact:  # no such model has images of that size
        return None
    wanted |= {name: f"has {name} {show(value)}" for name, value in after[0].items()}
    found |= {name: f"has {name} {show(value)}" for name, value in after[1].items()}
    apart = [name for name, rule in wanted.items() if found.get(name, rule) != rule]
    if not apart:
        return None
    doubt = ""
    if before.resampling_doubt and "positions" in apart and ours.learned_positions:
        wanted["positions"] = "may do it differently"
        doubt = "no file names the library that it was trained with; "
        doubt += "--set position_resampling=RULE states the rule"
    stated = _stated_elsewhere(before, apart)
    return OtherSizes(
        source=_said(before.table, wanted, apart, who="the source" if stated else ""),
        target=_said(target.table, found, apart),
        size=size,
        why_not=doubt or stated or _NOT_COMPUTED,
    )


def _stated_elsewhere(source: Checkpoint, names: Sequence[str]) -> str:
    """Why the program of a source's layout does not know its rule; "" if it is its own."""
    fields = {"positions": "position_resampling", "relative positions": "relative_resampling"}
    usual = {one.name: one.value for one in source.table.defaults if one.holds_for(source.config)}
    for field in (fields[name] for name in names if name in fields):
        origin = source.config.origins.get(field, "")
        own = first_origin(origin).startswith(source.table.origin)
        own = own or usual.get(field) == getattr(source.config, field)
        if (origin == USER or is_recorded(origin)) and not own:
            by = "you state" if origin == USER else f"{origin} states"
            return f"{by} {field}, which its layout does not"
    return ""


def _said(table: Table, rules: Mapping[str, str], names: Sequence[str], *, who: str = "") -> str:
    who = who or re.split("[,(]", table.title)[0].strip()
    return f"{who} {' and '.join(rules[name] for name in names)}"


def _rules(table: Table, config: ViTConfig, size: Size) -> dict[str, str]:
    """How a model's positions come to another size, in words; nothing that nobody states."""
    rules, ruled = dict[str, str](), "position_resampling" in config.origins
    # Of a grid that is the image's own anyway, a model that fits it does the same.
    same_grid = config.position_grid == config.grid_size and not config.position_square
    if ruled and (config.learned_positions or (config.own_grid and same_grid)):
        rules["positions"] = f"{_ADDED} {config.position_resampling}"
    elif config.replace(image_size=size).fitted_grid and ruled:
        grid = size_text((config.position_grid[0], config.position_grid[1]))
        rules["positions"] = f"fits positions of {grid} by {config.position_resampling}"
    elif config.computed_positions:
        rules["positions"] = "computes positions anew"
    tables = config.block_relative_positions or config.shared_relative_positions
    if tables and (table.builtin or "relative_resampling" in config.origins):
        how = config.relative_resampling
        rules["relative positions"] = f"{_RELATIVE} {how}"
    return rules


def _others(config: ViTConfig, size: Size) -> JsonDict:
    """What else decides a model's function for images of that size."""
    function = config.replace(image_size=size).function()
    return {name: value for name, value in function.items() if name not in _OF_POSITIONS}


def size_to_measure(config: ViTConfig) -> Size:
    """An image of whole patches that is usual and computed soon; smaller for larger models."""
    pixels = [side * config.stem_stride for side in config.patch_size]
    rows, columns = config.grid_size
    scaled = ((2 * rows, 2 * columns), (max(rows // 2, 1), max(columns // 2, 1)))
    whole = (side for side in _USUAL if config.square and side % pixels[0] == 0)
    sizes = [(side, side) for side in whole if not config.patch_stride]
    sizes += [pixels_of(grid, (pixels[0], pixels[1]), config.patch_stride) for grid in scaled]
    width = config.embed_dim
    weights = config.depth * width * (4 * width + 2 * config.mlp_dim)
    most = max(_FEWEST_PATCHES, _MOST_WORK // weights)
    fitting = (
        size
        for size in sizes
        if size != config.image_size and size[0] * size[1] <= most * pixels[0] * pixels[1]
    )
    return next(fitting, sizes[-1])


class Measurement:
    """The outputs of two programs on one image of another size.

    Each is computed where its program is open anyway, and each program resamples by its own code.
    """

    def __init__(self, expected: OtherSizes, checkpoint: Checkpoint, *, changed: bool) -> None:
        """Of what the rules say.

        Args:
            expected: What they say.
            checkpoint: The source as it was read.
            changed: Whether the output computes something else on purpose.
        """
        import torch

        from vitconvert.programs.opening import random_images

        self.threads = torch.get_num_threads()  # where programs are open, there is one
        self.expected = expected
        self.checkpoint = checkpoint
        self.images = random_images(checkpoint.config.replace(image_size=expected.size))[:1]
        self.outputs: list[Tensor] = []
        doubt = expected.why_not.removeprefix(_NOT_COMPUTED)
        self.why_not = "the outputs were changed on the way" if changed else doubt

    def of_source(self, reference: "Reference") -> None:
        """Compute with the source's own program."""
        if self.why_not:
            return
        if reference.any_size:
            self._compute(reference.name, lambda images: reference.run(reference.model, images))
        else:
            self.why_not = "no package that is installed fits positions as the source's code does"

    def of_target(self, consumer: str, run: "Callable[[Tensor], Tensor]") -> None:
        """Compute with the program that opened the output."""
        if len(self.outputs) == 1:
            self._compute(consumer, run)

    def _compute(self, name: str, run: "Callable[[Tensor], Tensor]") -> None:
        import torch

        try:
            with torch_threads(self.threads), torch.inference_mode():
                output = run(self.images)
                if output.ndim == 3 and self.checkpoint.config.pooling != "none":
                    # The tokens that some classes give, to what others make of them.
                    output = build_model(self.checkpoint, dtype=torch.float32).forward_head(output)
        except Exception as error:  # programs raise anything for a size that they do not read
            said = str(error).strip().partition("\n")[0]
            self.why_not = f"{name} refuses {size_text(self.expected.size)}: {said}"
            return
        self.outputs.append(output)

    def result(self, *reasons: str | None) -> OtherSizes | None:
        """With the difference, or why there is none; None if it is no more than rounding.

        Args:
            reasons: Why the source's program, or the target's, was not run at all, if so.
        """
        from vitconvert.comparison import TOLERANCE, relative_difference

        if len(self.outputs) < 2:
            unknown = "no package that is installed fits positions as the target's code does"
            why_not = next(filter(None, (self.why_not, *reasons)), unknown).rstrip(".")
            return replace(self.expected, why_not=why_not)
        theirs, ours = self.outputs
        apart = relative_difference(ours.double(), theirs.double())
        if not math.isfinite(apart):
            return replace(self.expected, why_not="no finite outputs of the same shape")
        if apart <= TOLERANCE:
            return None
        return replace(self.expected, relative=float(f"{apart:.1e}"), why_not="")
