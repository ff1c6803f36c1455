"""Facts that the tensors of a checkpoint show, from the header alone.

Where they show only a product, what was stated divides it.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from vitconvert.config import ViTConfig
from vitconvert.facts.fact import TENSORS, UNKNOWN, USER, Fact, Facts, show
from vitconvert.tables.binding import Binding
from vitconvert.tables.canonical import canonical_tensors

# Axes of the canonical layouts that are fields of ViTConfig.
_FIELD_OF_AXIS = {
    "width": "embed_dim",
    "hidden": "mlp_dim",
    "head": "num_heads",
    "dim": "head_dim",
    "register": "num_registers",
    "label": "num_classes",
    "pool_head": "pool_heads",
    "pool_hidden": "pool_mlp_dim",
    "relative_hidden": "relative_mlp_dim",
    "neck": "neck_dim",
    "merge_hidden": "merge_mlp_dim",
    "merge_width": "merge_dim",
    "merge_gated": "merge_gated_dim",
    "stem": "stem_width",
    "tubelet": "tubelet",
}
_BOOLEAN = {f.name for f in dataclasses.fields(ViTConfig) if f.type is bool}

# Fields that fine-tuning changes: a config or an architecture may be out of date here, and the
# tensors win. Any other contradiction means that tensors are missing or of another model.
_MAY_DIFFER = {
    *("num_classes", "image_size", "in_channels", "representation_size"),
    *("pooling", "fc_norm", "final_norm"),
    *("relative_positions", "relative_mlp_dim"),  # arguments of timm change an architecture's
}

# Of these, 0 means "as in the blocks".
_AS_IN_BLOCKS = {"pool_heads", "pool_mlp_dim"}

# Without its matrix, a bias or a second head that is absent shows nothing.
_MATRICES = {
    "head_bias": {"head.weight"},
    "dist_head": {"head.weight"},
    "mlp_bias": {"blocks.{i}.mlp.fc2.weight", "blocks.{i}.ffns.{j}.mlp.fc2.weight"},
}

# A word on which tensors depend, and what is so if they are there.
_SHOWN_BY_PRESENCE = {
    "learned_positions": ("position_embedding", "learned"),
    "grid_positions": ("position_embedding", "grid"),
    "class_grid_positions": ("position_embedding", "class_grid"),
    "one_position": ("position_embedding", "one"),
    "axis_positions": ("position_embedding", "axes"),
    "parallel_order": ("block_order", "parallel"),
    "sandwich": ("block_order", "sandwich"),
    "map_pooling": ("pooling", "map"),
    "resnet_d_stem": ("stem_style", "resnet_d"),
    "mixed_rope": ("rope", "mixed"),
    "rope_periods": ("rope", "dinov3"),
    "rope_class": ("rope", "axial"),
}

# What relative positions are, and the word on which their tensors depend.
_RELATIVE_POSITIONS = {
    "block": "block_relative_positions",
    "shared": "shared_relative_positions",
    "block_mlp": "block_relative_mlp",
    "shared_mlp": "shared_relative_mlp",
    "decomposed": "decomposed_positions",
}

# Numbers that are 0 where these tensors are not there.
_COUNTED = {
    "num_registers": {"reg_token"},
    "num_classes": {"head.weight"},
    "neck_dim": {"neck.0.weight"},
    "merge_gated_dim": {"merge.gate.weight"},
    "relative_mlp_dim": {
        "rel_pos_bias.mlp.fc1.weight",
        "blocks.{i}.attn.rel_pos.mlp.fc1.weight",
    },
}

# Widths of released ViTs and their head counts; for hints only, since D / 64 is often wrong.
_RELEASED_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1664: 16}


class TensorEvidence:
    """The facts so far, with the problems and notes that came up."""

    def __init__(self, binding: Binding, stated: Facts) -> None:
        self.binding = binding
        self.sizes = dict(binding.sizes.known)
        self.stated = stated
        self.facts: Facts = {}
        self.present: dict[str, bool] = {}  # word on which tensors depend -> whether they are there
        self.conflicts: list[str] = []
        self.missing: dict[str, str] = {}  # field -> how it could be told
        self.notes: list[str] = []

    def learn(self, field: str, value: object) -> None:
        """A fact that the tensors show."""
        self.facts[field] = shown = Fact(value, TENSORS)
        said, origin = self.stated.get(field) or shown
        if said != value and (said or field not in _AS_IN_BLOCKS):
            text = f"{field} = {show(said)} ({origin}), but the tensors have {show(value)}"
            self.overrule(text, origin, may_differ=field in _MAY_DIFFER)

    def value(self, field: str, default: object = None) -> Any:
        """The value of a field, if it is known."""
        return self.facts[field].value if field in self.facts else default

    def look_up(self, word: str) -> Any:
        """A fact, or whether the tensors are there that depend on a word; None if unknown."""
        return self.value(word, self.present.get(word))

    def by_default(self) -> Iterator[tuple[str, Fact]]:
        """What the table says of fields where nobody else does."""
        table = self.binding.table
        for default in table.defaults:
            if default.holds(self.look_up):
                yield default.name, Fact(default.value, table.origin)

    def overrule(self, text: str, origin: str, *, may_differ: bool = True) -> None:
        """A statement that the tensors contradict: a note if fine-tuning explains it."""
        tolerated = may_differ and origin != USER
        (self.notes if tolerated else self.conflicts).append(text)


def read_tensors(found: TensorEvidence) -> None:
    """Learn all that the tensors show, but for the size of the images."""
    _read_presence(found)
    _read_counts(found)
    _read_sizes(found)
    _read_heads(found)
    _read_kv_heads(found)
    _read_patches(found)
    _read_frames(found)
    _read_own_grid(found)
    _read_merging(found)


def _read_presence(found: TensorEvidence) -> None:
    """A word on which tensors depend holds if they are there."""
    links = found.binding.links.values()
    names = {link.tensor.name.text for group in links for link in group}
    present = found.present
    for name, tensor in canonical_tensors().items():
        for word in tensor.conditions[-1:]:
            present[word] = present.get(word, False) or name in names
    for word in sorted(present.keys() & _BOOLEAN):
        if names & _MATRICES.get(word, names):
            found.learn(word, present[word])
    for word, (field, value) in _SHOWN_BY_PRESENCE.items():
        if present[word]:
            found.learn(field, value)
    kinds = (kind for kind, word in _RELATIVE_POSITIONS.items() if present[word])
    found.learn("relative_positions", next(kinds, "none"))
    for field, several in _COUNTED.items():
        if not names & several:
            found.learn(field, 0)
    size = found.sizes.get("feature", 0) if "pre_logits.fc.weight" in names else 0
    found.learn("representation_size", size)


def _read_own_grid(found: TensorEvidence) -> None:
    """Rows and columns of positions with a grid of their own, if a dimension holds both."""
    sizes, both = found.sizes, frozenset({"grid_y", "grid_x"})
    if found.present["axis_positions"]:
        found.learn("position_grid", (sizes.get("grid_side", 0),) * 2)
        return
    after_one = found.present["class_grid_positions"]
    if not found.present["grid_positions"] and not after_one:
        found.learn("position_grid", ())
        return
    if both <= sizes.keys():
        found.learn("position_grid", (sizes["grid_y"], sizes["grid_x"]))
        return
    count = found.binding.sizes.products.get(both, 0)
    count = sizes.get("grid_after_one", 1) - 1 if after_one else count
    known = dict(found.by_default()) | found.stated
    said = known.get("position_grid", Fact((), ""))
    if math.prod(said.value) == count and len(said.value) == 2:
        found.facts["position_grid"] = said
    elif _is_square(count):
        assumed = f"assumed: {count} positions form a square grid"
        found.facts["position_grid"] = Fact((math.isqrt(count),) * 2, assumed)
    else:
        found.missing["position_grid"] = f"{count} positions do not form a square grid"


def _read_merging(found: TensorEvidence) -> None:
    """An MLP that merges patches shows how many make up its inputs."""
    if not found.present["merge_mlp"]:
        found.learn("merge_mlp_dim", 0)
        found.learn("merge_dim", 0)
        return
    apart = found.sizes.get("merge_y", 0) * found.sizes.get("merge_x", 0)
    count = found.binding.sizes.products.get(frozenset({"merge_y", "merge_x"}), apart)
    if _is_square(count):
        found.learn("merge_size", math.isqrt(count))
    else:
        found.missing["merge_size"] = f"{count} patches do not form a square"


def _read_counts(found: TensorEvidence) -> None:
    blocks: set[int] = set()
    stages: dict[int, int] = {}
    branches = 1
    for links in found.binding.links.values():
        indices = links[0].indices
        if "i" in indices:
            blocks.add(indices["i"])
        if "u" in indices:
            stages[indices["s"]] = max(stages.get(indices["s"], 0), indices["u"] + 1)
        branches = max(branches, indices.get("j", 0) + 1)
    found.learn("depth", max(blocks, default=-1) + 1)
    found.learn("branches", branches)
    if found.value("stem"):
        last = max(stages, default=-1)
        found.learn("stem_depths", tuple(stages.get(s, 0) for s in range(last + 1)))


def _read_sizes(found: TensorEvidence) -> None:
    sizes = found.sizes
    if {"joined_in", "joined_out", "dim"} <= sizes.keys():
        # The first has q, k and v beside the hidden channels; the second one as wide as they.
        inner = (sizes["joined_in"] - sizes["joined_out"]) // 2
        sizes["hidden"] = sizes["joined_out"] - inner
        sizes["head"] = inner // max(sizes["dim"], 1)  # ViTConfig refuses heads without width
    # RADIO keeps them so: `cls_token.token` of its patch generator.
    if "prefix" in sizes:  # one table of the class token and the registers
        sizes["register"] = sizes["prefix"] - 1
    for axis, field in _FIELD_OF_AXIS.items():
        if axis in sizes:
            found.learn(field, sizes[axis])


def _read_heads(found: TensorEvidence) -> None:
    """Most files show only the product of head count and head width."""
    inner = found.binding.sizes.products.get(frozenset({"head", "dim"}))
    if inner is None:
        return
    width = found.sizes.get("width", 0)
    released = _RELEASED_HEADS.get(width)
    known = f"; released ViTs of width {width} have {released}" if released else ""
    always = dict(found.by_default())
    said = always | found.stated
    for field, other in (("num_heads", "head_dim"), ("head_dim", "num_heads")):
        if field in said and not (field in always and other in found.stated):
            number, origin = said[field]
            if number < 1 or inner % number:
                found.conflicts.append(
                    f"{field} = {number} ({origin}) does not divide {inner}, the width of q"
                )
                return
            found.facts[field] = said[field]
            found.learn(other, inner // number)
            heads = found.value("num_heads")
            if origin == USER and released not in (None, heads) and inner == width:
                found.notes.append(f"num_heads is {heads}, as you state{known}")
            return
    found.missing["num_heads"] = f"q has {inner} rows, and the number of heads is unknown{known}"
    found.missing["head_dim"] = ""


def _read_kv_heads(found: TensorEvidence) -> None:
    """Heads of k and v, block by block, where they are not always as many as of q."""
    axes = [f"kv_head{i}" for i in range(found.value("depth"))]
    products = found.binding.sizes.products
    rows = [products.get(frozenset({axis, "dim"}), 0) for axis in axes]
    dim = max(found.value("head_dim", 1), 1)
    heads = [found.sizes.get(axis, n // dim) for axis, n in zip(axes, rows, strict=True)]
    # A block that lacks k and v is reported as incomplete, so any number of heads will do here.
    most = max(heads, default=0)
    found.learn("kv_heads", tuple(n or most for n in heads) if most else ())


def _read_patches(found: TensorEvidence) -> None:
    """A patch kernel shows its size; flattened patches show only pixels times channels."""
    sizes = found.sizes
    if {"y", "x", "channel"} <= sizes.keys():
        found.learn("patch_size", (sizes["y"], sizes["x"]))
        rgb = sizes.get("rgb") if found.value("stem") else sizes["channel"]
        if rgb is not None:
            found.learn("in_channels", rgb)
        return
    axes = frozenset({"y", "x", "channel"})
    flattened = found.binding.sizes.products.get(axes.difference(sizes))
    if flattened is not None:
        if "channel" in sizes:
            found.learn("in_channels", sizes["channel"])
        known = math.prod(sizes[axis] for axis in axes & sizes.keys())
        _split_patch(found, flattened * known)


def _read_frames(found: TensorEvidence) -> None:
    """A kernel of several frames shows that the model reads clips, and not how long they are."""
    if not found.present["clips"]:
        found.learn("frames", 0)
        found.learn("tubelet", 1)
        return
    if "frames" not in found.stated and "frames" not in dict(found.by_default()):
        found.missing["frames"] = (
            "the model reads clips, and no tensor shows how many frames of one"
        )


def _split_patch(found: TensorEvidence, area: int) -> None:
    said = found.stated | found.facts
    patch, patch_origin = said.get("patch_size") or UNKNOWN
    channels, channels_origin = said.get("in_channels") or UNKNOWN
    if patch is None and channels is None:
        # Three channels or one fit at most one of the two: 3 k^2 is never a square.
        channels = next((c for c in (3, 1) if _is_square(area / c)), None)
        channels_origin = f"assumed: a patch of {area} values is square"
    if patch is None and channels and _is_square(area / channels):
        side = math.isqrt(area // channels)
        patch, patch_origin = (side, side), f"assumed: a patch of {area} values is square"
    if patch is None:
        found.missing["patch_size"] = f"a patch of {area} values is not a square of pixels"
        if channels is not None:
            found.facts["in_channels"] = Fact(channels, channels_origin)
        return
    if channels is None and area % math.prod(patch) == 0:
        channels, channels_origin = area // math.prod(patch), TENSORS
    if math.prod(patch) * (channels or 0) != area:
        found.conflicts.append(
            f"patch_size and in_channels: {show(patch)} and {channels} do not make up the "
            f"{area} values of a patch"
        )
        return
    found.facts["patch_size"] = Fact(patch, patch_origin)
    found.facts["in_channels"] = Fact(channels, channels_origin)


def _is_square(number: float) -> bool:
    return number >= 1 and math.isqrt(int(number)) ** 2 == number
