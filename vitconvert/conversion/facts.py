"""From what a header shows and what was stated to a ViTConfig, each field with its origin.

Tensors come first: what they show, nobody can state otherwise. Then, from the strongest: the
user, a vitconvert.json, the project's own config.json, the named architecture, the table. What
only an assumption can settle is assumed aloud, and what nothing settles is asked for.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitconvert.config import ViTConfig, field_names
from vitconvert.config.vit_config import stem_positions, stem_stride
from vitconvert.conversion.their_config import Facts
from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable
from vitconvert.tables.architectures import architectures, named
from vitconvert.tables.binding import Binding
from vitconvert.tables.canonical import canonical_tensors
from vitconvert.tables.reading import SCALED_BY_WIDTH, Default
from vitconvert.tables.table import Table

TENSORS = "tensors"
USER = "user"

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
    "stem": "stem_width",
}
_BOOLEAN = {f.name for f in dataclasses.fields(ViTConfig) if f.type is bool}
_FIELDS = [f for f in dataclasses.fields(ViTConfig) if f.name != "origins"]
_REQUIRED = [f.name for f in _FIELDS if f.default is dataclasses.MISSING]

# What fine-tuning changes: a config or an architecture may say otherwise, and the tensors win.
# Any other contradiction means that tensors are missing or belong to another model.
_MAY_DIFFER = {
    *("num_classes", "image_size", "in_channels", "representation_size"),
    *("pooling", "fc_norm", "final_norm"),
}

# A word for a bias says nothing where the matrix that would have it is another one.
_MATRICES = {
    "head_bias": {"head.weight"},
    "mlp_bias": {"blocks.{i}.mlp.fc2.weight", "blocks.{i}.ffns.{j}.mlp.fc2.weight"},
}

_LAST_NORMS = {"final_norm": True, "fc_norm": False}  # and what is so if nobody says otherwise

# What no tensor shows: how it mostly is, and what a model does where it is otherwise.
_TRACELESS = {
    "rope": ("none", "turns q and k by their position"),
    "block_order": ("pre", "norms what a branch gives, not what it reads"),
}

# Rows of architectures.toml leave these out where they have their default, and these do not count.
_TOLD_BY_ROWS = {
    *("layer_scale", "gated_mlp", "final_norm", "fc_norm", "dist_token", "branches"),
    *("class_token", "num_registers", "position_embedding", "pre_norm", "qkv_bias", "qk_norm"),
    *("attention_norm", "mlp_norm", "relative_positions", "differential"),
}
_INCIDENTAL = {"image_size", "num_classes", "num_heads", "pool_heads", "no_embed_class"}

# Widths of released ViTs and their head counts; for hints only, since D / 64 is often wrong.
_RELEASED_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1664: 16}


def derive_config(binding: Binding, stated: Facts) -> tuple[ViTConfig, tuple[str, ...]]:
    """Find every field of ViTConfig.

    Args:
        binding: A table laid over a checkpoint's header.
        stated: What is known from elsewhere, strongest already chosen: field -> value, origin.

    Returns:
        The configuration and notes on what the tensors overruled.

    Raises:
        ConflictingFact: The user states what the tensors contradict.
        MissingFact: Neither the tensors nor anybody tells a field. Lists all such fields.
    """
    gathered = gather_facts(binding, stated)
    return gathered.config(), gathered.notes


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What is known of a checkpoint's function, complete or not."""

    table: Table
    facts: Facts
    conflicts: tuple[str, ...]
    asked: Mapping[str, str]  # field that nothing tells -> why
    notes: tuple[str, ...]  # what the tensors overruled

    def config(self) -> ViTConfig:
        """The configuration, if it is known and without contradiction.

        Raises:
            ConflictingFact: What is stated contradicts the tensors.
            MissingFact: Fields are not known. Lists all of them.
            NotRepresentable: The dialect's own project mistakes such tensors.
        """
        if self.conflicts:
            raise ConflictingFact(
                "What is stated contradicts the tensors.",
                details=self.conflicts,
                hint="Leave these out, or name the file they belong to. --image-size resamples "
                "positions; --set only states what the file already is.",
            )
        if self.asked:
            settings = " ".join(f"--set {name}=..." for name in self.asked)
            width = max(map(len, self.asked))
            raise MissingFact(
                "The tensors do not tell everything that decides the function.",
                evidence={"dialect": f"{self.table.name} ({self.table.file})"},
                details=[f"{name:<{width}}  {why}" for name, why in self.asked.items()],
                hint=f"{settings} (in Python, overrides={{...}}) states it.",
            )
        values = {name: value for name, (value, _) in self.facts.items()}
        origins = {name: origin for name, (_, origin) in self.facts.items()}
        config = ViTConfig(**values, origins=origins)
        broken = [f"not {k}: {why}" for k, why in self.table.must.items() if not getattr(config, k)]
        if broken:
            raise NotRepresentable(
                "The project's own code mistakes tensors like these.",
                evidence={"dialect": f"{self.table.name} ({self.table.file})"},
                details=broken,
                meaning="So nothing tells which function they were trained for.",
            )
        return config


def gather_facts(binding: Binding, stated: Facts) -> Gathered:
    """Collect what the tensors show and what was stated. Raises nothing."""
    return _Derivation(binding, stated).gathered()


class _Derivation:
    """The facts so far, with the problems and notes that came up."""

    def __init__(self, binding: Binding, stated: Facts) -> None:
        self.binding = binding
        self.sizes = dict(binding.sizes.known)
        self.stated = stated
        self.facts: Facts = {}
        self.conflicts: list[str] = []
        self.missing: dict[str, str] = {}  # field -> how it could be told
        self.notes: list[str] = []

    def gathered(self) -> Gathered:
        self.read_presence()
        self.read_counts()
        self.read_sizes()
        self.read_heads()
        self.read_kv_heads()
        self.read_patches()
        self.take_stated()
        self.read_positions()
        self.read_last_norm()
        self.read_what_leaves_no_trace()
        for name in _REQUIRED:
            if name not in self.facts and name not in self.missing:
                self.missing[name] = "nothing tells it"
        return Gathered(
            table=self.binding.table,
            facts=self.facts,
            conflicts=tuple(self.conflicts),
            asked={name: why for name, why in self.missing.items() if why},
            notes=tuple(self.notes),
        )

    def learn(self, field: str, value: Any) -> None:
        """A fact that the tensors show."""
        self.facts[field] = (value, TENSORS)
        said, origin = self.stated.get(field, (value, TENSORS))
        if said == value:
            return
        text = f"{field} = {_show(said)} ({origin}), but the tensors have {_show(value)}"
        if origin == USER or field not in _MAY_DIFFER:
            self.conflicts.append(text)
        else:
            self.notes.append(text)

    def read_presence(self) -> None:
        """A word on which tensors depend holds if they are there."""
        found = {link.tensor.name.text for links in self.binding.links.values() for link in links}
        present: dict[str, bool] = {}
        for name, tensor in canonical_tensors().items():
            for word in tensor.conditions[-1:]:
                present[word] = present.get(word, False) or name in found
        for word in sorted(present.keys() & _BOOLEAN):
            if found & _MATRICES.get(word, found):
                self.learn(word, present[word])
        if present["learned_positions"]:
            self.learn("position_embedding", "learned")
        if present["parallel_order"]:
            self.learn("block_order", "parallel")
        if present["map_pooling"]:
            self.learn("pooling", "map")
        for style in ("resnet_d", "mobileclip"):
            if present[f"{style}_stem"]:
                self.learn("stem_style", style)
        if present["mixed_rope"]:
            self.learn("rope", "mixed")
        if present["rope_periods"]:
            self.learn("rope", "dinov3")
        tables = [k for k in ("block", "shared") if present[f"{k}_relative_positions"]]
        self.learn("relative_positions", tables[0] if tables else "none")
        for field, name in (("num_registers", "reg_token"), ("num_classes", "head.weight")):
            if name not in found:
                self.learn(field, 0)
        size = self.sizes.get("feature", 0) if "pre_logits.fc.weight" in found else 0
        self.learn("representation_size", size)

    def read_counts(self) -> None:
        blocks: set[int] = set()
        stages: dict[int, int] = {}
        branches = 1
        for links in self.binding.links.values():
            indices = links[0].indices
            if "i" in indices:
                blocks.add(indices["i"])
            if "u" in indices:
                stages[indices["s"]] = max(stages.get(indices["s"], 0), indices["u"] + 1)
            branches = max(branches, indices.get("j", 0) + 1)
        self.learn("depth", max(blocks, default=-1) + 1)
        self.learn("branches", branches)
        if self.facts["stem"][0]:
            last = max(stages, default=-1)
            self.learn("stem_depths", tuple(stages.get(s, 0) for s in range(last + 1)))

    def read_sizes(self) -> None:
        if {"joined_in", "joined_out", "dim"} <= self.sizes.keys():
            # The first has q, k and v beside the hidden channels; the second one as wide as they.
            inner = (self.sizes["joined_in"] - self.sizes["joined_out"]) // 2
            self.sizes["hidden"] = self.sizes["joined_out"] - inner
            self.sizes["head"] = inner // self.sizes["dim"]
        for axis, field in _FIELD_OF_AXIS.items():
            if axis in self.sizes:
                self.learn(field, self.sizes[axis])

    def read_heads(self) -> None:
        """Most files show only the product of head count and head width."""
        inner = self.binding.sizes.products.get(frozenset({"head", "dim"}))
        if inner is None:
            return
        table = self.binding.table
        always = {d.field: (d.value, table.origin) for d in table.defaults if not d.word}
        said = always | self.stated
        for field, other in (("num_heads", "head_dim"), ("head_dim", "num_heads")):
            if field in said and not (field in always and other in self.stated):
                number, origin = said[field]
                if number < 1 or inner % number:
                    self.conflicts.append(
                        f"{field} = {number} ({origin}) does not divide {inner}, the width of q"
                    )
                    return
                self.facts[field] = (number, origin)
                self.learn(other, inner // number)
                return
        width = self.sizes.get("width", 0)
        released = _RELEASED_HEADS.get(width)
        known = f"; released ViTs of width {width} have {released}" if released else ""
        self.missing["num_heads"] = (
            f"q has {inner} rows, and nothing shows how many heads share them{known}"
        )
        self.missing["head_dim"] = ""

    def read_kv_heads(self) -> None:
        """Heads of k and v, block by block, where they are not always as many as of q."""
        axes = [f"kv_head{i}" for i in range(self.facts["depth"][0])]
        products = self.binding.sizes.products
        rows = [products.get(frozenset({axis, "dim"}), 0) for axis in axes]
        dim = self.facts.get("head_dim", (1, ""))[0]
        heads = [self.sizes.get(axis, n // dim) for axis, n in zip(axes, rows, strict=True)]
        # A block that lacks k and v is reported as incomplete; its heads are beside the point.
        most = max(heads, default=0)
        self.learn("kv_heads", tuple(n or most for n in heads) if most else ())

    def read_patches(self) -> None:
        """A patch kernel shows its size; flattened patches show only pixels times channels."""
        if {"y", "x", "channel"} <= self.sizes.keys():
            self.learn("patch_size", (self.sizes["y"], self.sizes["x"]))
            rgb = self.sizes.get("rgb") if self.facts["stem"][0] else self.sizes["channel"]
            if rgb is not None:
                self.learn("in_channels", rgb)
            return
        axes = frozenset({"y", "x", "channel"})
        flattened = self.binding.sizes.products.get(axes.difference(self.sizes))
        if flattened is not None:
            if "channel" in self.sizes:
                self.learn("in_channels", self.sizes["channel"])
            known = math.prod(self.sizes[axis] for axis in axes & self.sizes.keys())
            self.split_patch(flattened * known)

    def split_patch(self, area: int) -> None:
        said = self.stated | self.facts
        patch, patch_origin = said.get("patch_size", (None, ""))
        channels, channels_origin = said.get("in_channels", (None, ""))
        if patch is None and channels is None:
            # Three channels or one fit at most one of the two: 3 k^2 is never a square.
            channels = next((c for c in (3, 1) if _is_square(area / c)), None)
            channels_origin = f"assumed: a patch of {area} values is square"
        if patch is None and channels and _is_square(area / channels):
            side = math.isqrt(area // channels)
            patch, patch_origin = (side, side), f"assumed: a patch of {area} values is square"
        if patch is None:
            self.missing["patch_size"] = f"a patch of {area} values is no square of pixels"
            if channels is not None:
                self.facts["in_channels"] = (channels, channels_origin)
            return
        if channels is None and area % math.prod(patch) == 0:
            channels, channels_origin = area // math.prod(patch), TENSORS
        if math.prod(patch) * (channels or 0) != area:
            self.conflicts.append(
                f"patch_size and in_channels: {_show(patch)} and {channels} do not make up the "
                f"{area} values of a patch"
            )
            return
        self.facts["patch_size"] = (patch, patch_origin)
        self.facts["in_channels"] = (channels, channels_origin)

    def take_stated(self) -> None:
        for default in self.binding.table.defaults:
            holds = not default.word or bool(self.facts.get(default.word, (False, ""))[0])
            if holds != default.negated and default.field not in self.stated:
                self.facts.setdefault(
                    default.field, (self.default(default), self.binding.table.origin)
                )
        for field, why in self.binding.table.ask.items():
            if field not in self.stated:
                self.missing[field] = why
        for field, (value, origin) in self.stated.items():
            if field not in self.facts:
                self.facts[field] = (value, origin)

    def read_last_norm(self) -> None:
        """Few ViTs end without a norm; a file that was cut short must not be read as one."""
        ends_with_norm = self.facts["final_norm"][0] or self.facts["fc_norm"][0]
        said = {n: self.stated.get(n, (default, ""))[0] for n, default in _LAST_NORMS.items()}
        if not ends_with_norm and any(said.values()) and not self.table_ends_bare():
            self.missing["final_norm"] = (
                "there is no last norm, and nothing says that there is none"
            )

    def read_what_leaves_no_trace(self) -> None:
        """A file must not look like a model that has what no tensor shows."""
        table = self.binding.table
        rows = architectures().get(table.name)
        if table.config_file and table.config_file.architectures:
            rows = named(table.config_file.architectures)
        for field, (usual, otherwise) in _TRACELESS.items():
            if field in self.stated or field in self.facts or rows is None:
                continue
            unusual = ((n, row) for n, row in rows.stating(field).items() if row[field] != usual)
            alike = next((name for name, row in unusual if self.looks_like(row)), None)
            if alike:
                self.missing[field] = (
                    f"the tensors are those of {alike} too, which {otherwise}; --architecture "
                    f"NAME says which model this is, --set {field}={usual} that it is not"
                )

    def looks_like(self, row: Mapping[str, Any]) -> bool:
        """Whether the tensors show nothing that an architecture does not have."""
        shown = {name: value for name, (value, origin) in self.facts.items() if origin == TENSORS}
        fields = (f.name for f in _FIELDS if f.name in shown and f.name not in _INCIDENTAL)
        defaults = {f.name: f.default for f in _FIELDS}
        if (row["pooling"] == "map") != (shown.get("pooling") == "map"):
            return False
        return all(
            shown[name] == row.get(name, defaults[name])
            for name in fields
            if name in row or name in _TOLD_BY_ROWS
        )

    def table_ends_bare(self) -> bool:
        """Whether the dialect has no last norm to miss."""
        rows = self.binding.table.row_of
        return "norm.weight" not in rows and "fc_norm.weight" not in rows

    def default(self, default: Default) -> Any:
        if default.value == SCALED_BY_WIDTH:
            return self.facts["embed_dim"][0] ** -0.5
        return _tuple(default.value)

    def read_positions(self) -> None:
        """The number of positions tells the grid, or checks the stated one."""
        rows = self.sizes.get("position")
        if rows is None and "relative" in self.sizes:
            self.read_relative_positions(self.sizes["relative"])
            return
        if rows is None or "patch_size" not in self.facts:
            self.facts.pop("no_embed_class", None)
            if "image_size" not in self.facts:
                why = "" if rows else "positions are not stored, so nothing shows the grid"
                self.missing["image_size"] = why
            return
        prefix = sum(int(self.facts[name][0]) for name in ("class_token", "dist_token"))
        if self.facts.get("register_positions", (True, ""))[0]:
            prefix += self.facts["num_registers"][0]
        counts = {False: rows - prefix, True: rows}  # no_embed_class -> patches
        image, image_origin = self.facts.pop("image_size", (None, ""))
        said, said_origin = self.facts.pop("no_embed_class", (None, ""))
        if image is not None:
            fitting = [how for how, count in counts.items() if count == self.patches_in(image)]
            if fitting:
                how = said if said in fitting else fitting[0]
                if how != said and said_origin == USER:
                    self.contradict_positions(image, rows, said=said)
                self.facts["image_size"] = (image, image_origin)
                self.facts["no_embed_class"] = (how, said_origin if how == said else TENSORS)
                return
            self.contradict_image_size(image, image_origin, rows)
        options = (
            [said] if said is not None else [how for how in (False, True) if prefix or not how]
        )
        square = [how for how in options if math.isqrt(max(counts[how], 0)) ** 2 == counts[how] > 0]
        if len(square) != 1:
            self.missing["image_size"] = (
                f"{rows} positions with {prefix} prefix tokens form no one square grid"
            )
            return
        count = counts[square[0]]
        assumed = f"assumed: {count} patches form a square grid"
        self.facts["image_size"] = (self.pixels(math.isqrt(count)), assumed)
        self.facts["no_embed_class"] = (square[0], said_origin if said is not None else assumed)

    def read_relative_positions(self, rows: int) -> None:
        """(2 rows - 1) (2 columns - 1) offsets, and three for the class token."""
        image, origin = self.facts.pop("image_size", (None, ""))
        self.facts.pop("no_embed_class", None)
        if image is not None and self.relative_rows(image) == rows:
            self.facts["image_size"] = (image, origin)
            return
        if image is not None:
            text = (
                f"image_size = {_show(image)} ({origin}) needs {self.relative_rows(image)} "
                f"relative positions, but the tensors have {rows}"
            )
            (self.conflicts if origin == USER else self.notes).append(text)
        side = (math.isqrt(max(rows - 3, 0)) + 1) // 2
        if (2 * side - 1) ** 2 + 3 != rows:
            self.missing["image_size"] = f"{rows} relative positions form no square grid"
            return
        assumed = f"assumed: {rows} relative positions form a square grid"
        self.facts["image_size"] = (self.pixels(side), assumed)

    def relative_rows(self, image: tuple[int, int]) -> int:
        down, across = self.facts["patch_size"][0]
        return int((2 * (image[0] // down) - 1) * (2 * (image[1] // across) - 1) + 3)

    def stem(self) -> tuple[str, tuple[int, ...]]:
        """Style and depths of the stem."""
        return self.facts.get("stem_style", ("google", ""))[0], self.facts["stem_depths"][0]

    def patches_in(self, image: tuple[int, int]) -> int:
        down, across = self.facts["patch_size"][0]
        height, width = image
        if self.facts["stem"][0]:
            height, width = (stem_positions(side, *self.stem()) for side in image)
        return int((height // down) * (width // across))

    def pixels(self, side: int) -> tuple[int, int]:
        down, across = self.facts["patch_size"][0]
        stride = stem_stride(*self.stem()) if self.facts["stem"][0] else 1
        return side * down * stride, side * across * stride

    def contradict_positions(self, image: tuple[int, int], rows: int, *, said: bool) -> None:
        self.conflicts.append(
            f"no_embed_class = {said} (user), but image_size = {_show(image)} and the {rows} "
            f"positions of the tensors leave only {not said}"
        )

    def contradict_image_size(self, image: tuple[int, int], origin: str, rows: int) -> None:
        count = self.patches_in(image)
        text = (
            f"image_size = {_show(image)} ({origin}) makes {count} patches, but the tensors have "
            f"{rows} positions"
        )
        (self.conflicts if origin == USER else self.notes).append(text)


def strongest(*sources: Facts) -> Facts:
    """Merge statements; earlier ones win."""
    merged: Facts = {}
    for source in sources:
        for field, fact in source.items():
            if field in field_names():
                merged.setdefault(field, fact)
    return merged


def state(values: Mapping[str, Any], origin: str) -> Facts:
    """Values that all come from one place."""
    return {field: (value, origin) for field, value in values.items()}


def _is_square(number: float) -> bool:
    return number >= 1 and math.isqrt(int(number)) ** 2 == number


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _show(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
