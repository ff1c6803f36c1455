"""Which tensors of a model those of an adapter are for: by name, in any spelling of a table.

What a tensor of an adapter is, its name says: PEFT's, loralib's or mmengine's.

    module.lora_A.weight, module.lora_B.weight          PEFT; in memory with the adapter's name
    module.lora_A, module.lora_B                        loralib
    module.lora_down.weight, module.lora_up.weight      mmengine
    module.lora_embedding_A, module.lora_embedding_B    PEFT, of a table of embeddings
    module.lora_magnitude_vector                        PEFT, DoRA: the length of each output's row
    module.ia3_l                                        PEFT, IA3: a factor for each output or input
    module.hada_w1_a, module.lokr_w1, ...               PEFT, LoHa and LoKr: factors of two matrices
    module.ln_tuning_layers.weight                      PEFT, LN tuning: a norm in place of another
    module.modules_to_save.NAME.weight                  a whole module in place of another's
    module.base_layer.weight, module.original_layer.weight, module.original_module.weight
                                                        what they are for, in a file that has both

PEFT 0.21 (utils/save_and_load.py), mmpretrain 1.2 (models/peft/lora.py), loralib 0.1.

An adapter has the names that the modules had in memory where it was trained, and the base those of
its file: two tables, or two spellings of one, which meet in the canonical names.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from vitconvert.config import ViTConfig
from vitconvert.errors import AmbiguousDialect, TensorMismatch
from vitconvert.tables.axes import Equation, Shape, solve
from vitconvert.tables.binding import Link, links_alone
from vitconvert.tables.canonical import canonical_tensors, expected_tensors, instances
from vitconvert.tables.dialects import builtin_tables, family_of, likely_dialects
from vitconvert.tables.table import Table

_ROLES = {
    "lora_A": "down",
    "lora_B": "up",
    "lora_down": "down",
    "lora_up": "up",
    "lora_embedding_A": "embedding_down",
    "lora_embedding_B": "embedding_up",
    "lora_magnitude_vector": "magnitude",
    "ia3_l": "factors",
    **{f"hada_w{n}_{side}": f"hada_w{n}_{side}" for n in (1, 2) for side in ("a", "b")},
    **{f"lokr_w{n}{side}": f"lokr_w{n}{side}" for n in (1, 2) for side in ("", "_a", "_b")},
    **{name: name for name in ("hada_t1", "hada_t2", "lokr_t2")},  # of convolutions
}
_ROLE = re.compile(
    rf"(?P<module>.+?)\.(?P<role>{'|'.join(_ROLES)})(?:\.(?P<adapter>[^.]+))??"
    r"(?:\.(?P<kind>weight|bias))?"
)
_OUTERMOST = "base_model.model."
_WRAPPED = re.compile(r"\.(?:base_layer|original_layer)(?=\.)")
_SAVED = re.compile(r"\.(?:modules_to_save|ln_tuning_layers)\.(?:(?P<adapter>[^.]+)\.(?=.))?")
_REPLACED = ".original_module."
# What a layer calls its matrix; torch's MultiheadAttention has one for q, k and v.
_WEIGHTS = ("weight", "in_proj_weight")


@dataclass(frozen=True, kw_only=True)
class AdapterNames:
    """The tensors of a file that holds an adapter, or a model with one that is not merged.

    Attributes:
        changed: Module -> role ("down", "up", "up.bias", "factors", ...) -> name in the file.
        saved: Plain name -> name in the file, of modules that stand in place of the model's.
        rest: Plain name -> name in the file, of all others.
        replaced: Plain name -> name in the file, of those that the saved ones stand in place of.
        adapters: What the file calls its adapters.
        inside: Modules inside another one that is changed: out_proj of MultiheadAttention.
    """

    changed: Mapping[str, Mapping[str, str]]
    saved: Mapping[str, str]
    rest: Mapping[str, str]
    replaced: Mapping[str, str]
    adapters: frozenset[str]
    inside: frozenset[str]

    @property
    def has_base(self) -> bool:
        """Whether the file holds the layers too that its adapter is for."""
        weights = (f"{module}.{name}" for module in self.changed for name in _WEIGHTS)
        layers = {name.rpartition(".")[0] for name in weights if name in self.rest}
        return bool(self.changed) and layers == self.changed.keys()


def read_names(names: Iterable[str]) -> AdapterNames:
    """Sort the tensors of a file by what their names say."""
    changed: dict[str, dict[str, str]] = defaultdict(dict)
    saved: dict[str, str] = {}
    rest: dict[str, str] = {}
    replaced: dict[str, str] = {}
    adapters, inside = set(), set()
    for name in names:
        plain = name.removeprefix(_OUTERMOST)
        if match := _ROLE.fullmatch(plain):
            bias = ".bias" if match["kind"] == "bias" else ""
            module = _WRAPPED.sub("", match["module"])
            inside |= {module} - {match["module"]}
            changed[module][_ROLES[match["role"]] + bias] = name
            adapters.add(match["adapter"])
        elif match := _SAVED.search(plain):
            saved[_SAVED.sub(".", plain)] = name
            adapters.add(match["adapter"])
        elif _REPLACED in plain:
            replaced[plain.replace(_REPLACED, ".")] = name
        else:
            rest[_WRAPPED.sub("", plain)] = name
    return AdapterNames(
        changed=changed,
        saved=saved,
        rest=rest,
        replaced=replaced,
        adapters=frozenset(adapters - {None}),
        inside=frozenset(inside),
    )


OWN = "vit"  # the dialect of the names that models of vitconvert's have
HEAD = "head"  # what the canonical names of a classifier begin with
_OF_THE_HEAD = ("label", "feature")  # the axes that a new classifier is free in
_WEIGHT, _IN_PROJ = (f".{name}" for name in _WEIGHTS)
_BIAS = ".bias"
_SHOWN = 6
ANY = -1  # a size that an adapter does not show
_KERNEL = (ANY, ANY, ANY)  # in, height, width


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A tensor that an adapter changes or replaces.

    Attributes:
        shape: It must have this shape, but for sizes of `ANY`.
        saved: Whether the adapter has the whole tensor.
        optional: Whether a model without it is the adapter's too.
        flat: Whether the shape is a matrix, which stands for a convolution too: (out, in x height x
            width).
    """

    shape: Shape
    saved: bool = False
    optional: bool = False
    flat: bool = False

    def has(self, shape: Shape) -> bool:
        """Whether a tensor of this shape is meant."""
        if self.flat:
            shape = (shape[0], prod(shape[1:]))
        alike = len(shape) == len(self.shape)
        return alike and all(w in (ANY, n) for w, n in zip(self.shape, shape, strict=True))


@dataclass(frozen=True, kw_only=True)
class AdapterPlacement:
    """Where an adapter's tensors belong.

    Attributes:
        table: The dialect that its names are of.
        links: Name in the adapter -> the parts of canonical tensors that it is.
        ignored: Names of tensors that play no part in the vision encoder, and why.
        absent: Optional names that the model, or the dialect, does not have.
        heads: Names of tensors of a whole new classifier.
        sizes: The size of every axis, after the adapter is merged.
    """

    table: Table
    links: Mapping[str, tuple[Link, ...]]
    ignored: Mapping[str, str]
    absent: frozenset[str]
    heads: frozenset[str]
    sizes: Mapping[str, int]


def place(
    wanted: Mapping[str, Wanted],
    config: ViTConfig,
    base: Table,
    prefixes: Sequence[str] = ("",),
    *,
    tower: bool = False,
    own: bool | None = None,
    file: str = "",
) -> AdapterPlacement:
    """Find the place of every tensor of an adapter in a model.

    Args:
        wanted: Names of the model's tensors, as the adapter spells them.
        config: The model.
        base: The dialect of the model's own file, which comes first; then those of its library.
        prefixes: What may stand before the names; what has none of it is outside an encoder.
        tower: Whether the model is an encoder, beside which an adapter may have other tensors.
        own: Whether a model of vitconvert's was adapted, whose names are its own; None: unknown.
        file: What messages call the adapter.

    Raises:
        TensorMismatch: Tensors are left over, or have other shapes than the model's.
        AmbiguousDialect: Two spellings of other libraries explain them in two ways.
    """
    tried: list[tuple[AdapterPlacement, Mapping[str, str]]] = []
    for spellings in _spellings(wanted, config, base, prefixes, own):
        attempts = [_attempt(wanted, config, table, prefix, tower) for prefix, table in spellings]
        whole = [len(placement.absent) for placement, left in attempts if not left]
        # By the place of every tensor: two spellings that agree on it are one answer.
        fitting = {
            frozenset(
                (name, link.ours, link.our_step, link.their_step, str(link.their_axes))
                for name, links in placement.links.items()
                for link in links
            ): placement
            for placement, left in reversed(attempts)
            # A dialect that has all biases explains more than one that lacks some.
            if placement.links and not left and len(placement.absent) == min(whole)
        }
        if len(fitting) > 1:
            tables = [placement.table for placement in fitting.values()]
            raise AmbiguousDialect(
                "Several dialects explain the names of this adapter, in different ways.",
                evidence={"file": file, **{table.name: table.title for table in tables}},
                hint="merge it with PEFT (merge_and_unload), and convert what that wrote.",
            )
        if fitting:
            return next(iter(fitting.values()))
        tried += attempts
    nearest, left = min(tried, key=lambda attempt: len(attempt[1]))
    left = left or {"all": "none of them belongs to the vision encoder"}
    lines = [f"left over  {name}  {why}" for name, why in left.items()]
    more = [f"left over  ... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    raise TensorMismatch(
        f"{len(left)} of {len(wanted)} tensors of the adapter do not fit this model.",
        evidence={
            "adapter": file,
            "model": f"{base.name} ({base.file})",
            "nearest layout": nearest.table.name,
        },
        details=[*lines[:_SHOWN], *more],
        meaning="Without them the model is not the one that was trained, so nothing was merged.",
        hint="is the adapter for another model? adapter_config.json names its base.",
    )


def _spellings(
    wanted: Mapping[str, Wanted],
    config: ViTConfig,
    base: Table,
    prefixes: Sequence[str],
    own: bool | None,
) -> Iterator[list[tuple[str, Table]]]:
    """Prefixes and tables to try together, the likeliest first.

    Of the base's own library these are the spellings of its model alone: matrices of CLIP would
    often fit a ViT.
    """
    if own:
        yield [(prefix, builtin_tables()[OWN]) for prefix in prefixes]
        return
    yield [(prefix, base) for prefix in prefixes]
    likely = []
    for prefix in prefixes:
        inside = (name.removeprefix(prefix) for name in wanted if name.startswith(prefix))
        modules = [name.rpartition(".")[0] or name for name in inside]
        tables = (builtin_tables()[name] for name in likely_dialects(modules))
        known = {base.name} if own is None else {base.name, OWN}
        likely += [(prefix, table) for table in tables if table.name not in known]
    family = family_of(base.name)
    yield [(prefix, table) for prefix, table in likely if family_of(table.name) == family]
    has, names = instances(config), canonical_tensors()
    yield [
        (prefix, table)
        for prefix, table in likely
        if table.ecosystem != base.ecosystem
        # The model has all that the dialect requires, but for a head.
        and all(
            any(name in has or name.startswith(HEAD) or name not in names for name in group)
            for group in table.requires
        )
    ]


def _attempt(
    wanted: Mapping[str, Wanted], config: ViTConfig, table: Table, prefix: str, tower: bool
) -> tuple[AdapterPlacement, Mapping[str, str]]:
    """The place of what a table explains, and why other tensors fit nowhere."""
    inside = {name: one for name, one in wanted.items() if name.startswith(prefix)}
    found = _links(table, inside, prefix)
    saved = {name: links[0].ours for name, links in found.items() if inside[name].saved}
    of_head = frozenset(name for name, ours in saved.items() if ours.startswith(HEAD))
    # A bias alone is no new classifier. A new one may be for other classes.
    heads = of_head if any(saved[name].endswith(_WEIGHT) for name in of_head) else frozenset()
    sizes = dict(config.axes())
    equations = [
        Equation(link.their_axes, inside[name].shape) for name in heads for link in found[name]
    ]
    fixed = {axis: size for axis, size in sizes.items() if axis not in _OF_THE_HEAD}
    known = solve(equations, fixed).known
    sizes |= {axis: known[axis] for axis in _OF_THE_HEAD if axis in known}
    expected = expected_tensors(config)

    # A layer that is changed with its bias may have none, in this model or in this dialect.
    absent = frozenset(
        name
        for name, one in inside.items()
        if one.optional
        and not any(link.ours in expected for link in found.get(name, ()))
        and (name in found or weight_of(name) in found)
    )
    wanted = {name: one for name, one in wanted.items() if name not in absent}

    def unfit(name: str) -> str:
        for link in found[name]:
            there = name in heads or link.ours in expected
            if not there or not set(link.their_axes.names) <= sizes.keys():
                return f"the model has no {link.ours}"
            if not inside[name].has(shape := link.their_axes.shape(sizes)):
                return f"found {list(inside[name].shape)}, wanted {list(shape)}"
        return ""

    ignored: dict[str, str] = {}
    left: dict[str, str] = {}
    for name, one in wanted.items():
        short = name.removeprefix(prefix)
        reason = next((reason for t, reason in table.ignore if t.match(short) is not None), None)
        if name in found:
            if why := unfit(name):
                left[name] = why
        elif name in inside and reason:
            ignored[name] = reason
        elif tower and name not in inside:
            ignored[name] = "outside the vision encoder"
        else:
            left[name] = f"{list(one.shape)}, which {table.name} does not know"
    links = {n: several for n, several in found.items() if n not in left and n not in absent}
    placement = AdapterPlacement(
        table=table, links=links, ignored=ignored, absent=absent, heads=heads, sizes=sizes
    )
    return placement, left


def weight_of(bias: str) -> str:
    """The name of the weight beside a bias."""
    return bias.removesuffix(_BIAS) + _WEIGHT


def _links(table: Table, inside: Mapping[str, Wanted], prefix: str) -> dict[str, tuple[Link, ...]]:
    """The canonical tensors that a table makes of each name."""
    names = {name.removeprefix(prefix): name for name in inside}
    alone = links_alone(table, {short: inside[name].shape for short, name in names.items()})
    joined = {
        short.removesuffix(_WEIGHT) + _IN_PROJ: name
        for short, name in names.items()
        if short.endswith(_WEIGHT) and short not in alone
    }
    packed = links_alone(table, {short: inside[name].shape for short, name in joined.items()})
    kernels = links_alone(
        table,
        {
            short: (inside[name].shape[0], *_KERNEL)
            for short, name in names.items()
            if inside[name].flat and short not in alone
        },
    )
    found = (*alone.items(), *packed.items(), *kernels.items())
    return {{**names, **joined}[short]: links for short, links in found}
