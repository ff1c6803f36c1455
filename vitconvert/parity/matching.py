"""Which modules of the user's own model compute which layer of vitconvert's ViT.

A dialect's table says which of the module's tensors is which of ours, and so which of its modules
is which norm or projection. What passes these is the same in any ViT whose norms stand at the same
places, however the code around them is written; and a ViT whose norms stand elsewhere shows it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from vitconvert.checkpoint import ReadOptions
from vitconvert.config import ViTConfig
from vitconvert.errors import UsageError, VitConvertError, nearest
from vitconvert.facts.materialise import materialise
from vitconvert.facts.plan import plan_reading
from vitconvert.model import ViT
from vitconvert.programs.taps import BRANCH, OUTPUT, Tap, Taps, canonical_taps
from vitconvert.tables import canonical
from vitconvert.tables.axes import Sizes
from vitconvert.tables.binding import Binding
from vitconvert.tables.detection import recognise


@dataclass(frozen=True, kw_only=True)
class Match:
    """How a module is matched to vitconvert's ViT.

    Attributes:
        ours: Where the layers are kept in the ViT.
        theirs: Where the same layers are kept in the module.
        binding: Which of its tensors are which of ours; None if no table was found for them.
        prefix: What stands before the names of all its tensors.
        notes: What could not be matched, and why.
    """

    ours: Taps = field(default_factory=dict)
    theirs: Taps = field(default_factory=dict)
    binding: Binding | None = None
    prefix: str = ""
    notes: tuple[str, ...] = ()


_THIRDS = re.compile(r"the thirds of \S+ are ([qkv]), ([qkv]), ([qkv]), not")
_ROWS = re.compile(r"the rows of \S+ are (\([a-z ]+\)), not \(qkv head dim\)")
_EXCHANGED = re.compile(r"blocks\.\d+\.(norm[12]) and blocks\.\d+\.(norm[12]) are exchanged")


def corrected_rows(cause: str, rows: Mapping[str, str]) -> Iterator[str]:
    """The rows of a table as they are typed if a likely cause is a mistake of the table.

    Args:
        cause: A sentence of `diagnose`.
        rows: Ours = theirs, as the table says now.
    """
    block = "blocks.{i}."
    if thirds := _THIRDS.search(cause):
        order = [thirds.groups().index(letter) for letter in "qkv"]
        for name, text in rows.items():
            if name.startswith(f"{block}attn.qkv.") and "|" not in text:
                yield from _reordered(name, text, order)
    elif rows_are := _ROWS.search(cause):
        for name, text in rows.items():
            key, _, axes = text.partition(" : ")
            if name.startswith(f"{block}attn.qkv.") and key.isascii() and "(" not in key:
                yield from _with_rows(name, key, axes, rows_are[1])
    elif both := _EXCHANGED.search(cause):
        for one, other in (both.groups(), both.groups()[::-1]):
            for kind in ("{p}", "weight", "bias"):
                if f"{block}{other}.{kind}" in rows:
                    yield f'"{block}{one}.{kind}" = "{rows[f"{block}{other}.{kind}"]}"'


def _with_rows(name: str, key: str, axes: str, rows: str) -> Iterator[str]:
    """A row of joined q, k and v whose rows lie in another order."""
    for kind in ("weight", "bias") if "{p}" in name else (name.rpartition(".")[2],):
        usual = axes or str(canonical.canonical_tensors()[f"blocks.{{i}}.attn.qkv.{kind}"].axes)
        laid = usual.replace("(qkv head dim)", rows)
        yield f'"{name.replace("{p}", kind)}" = "{key.replace("{p}", kind)} : {laid}"'


def _reordered(name: str, text: str, order: Sequence[int]) -> Iterator[str]:
    """A row of joined q, k and v whose thirds are taken in another order."""
    if joined := re.fullmatch(r"cat\((.*)\)", text):
        items = [item.strip() for item in joined[1].split(",")]
        yield f'"{name}" = "cat({", ".join(items[i] for i in order)})"'
        return
    for kind in ("weight", "bias") if "{p}" in name else (name.rpartition(".")[2],):
        key, _, axes = text.replace("{p}", kind).partition(" : ")
        axes = axes or str(canonical.canonical_tensors()[f"blocks.{{i}}.attn.qkv.{kind}"].axes)
        taken = ", ".join(f"{key}[qkv={i}] : {axes}" for i in order)
        yield f'"{name.replace("{p}", kind)}" = "cat({taken})"'


def match_by_tensors(module: nn.Module, config: ViTConfig, options: ReadOptions) -> Match:
    """Match a module to the ViT of a configuration through the names of its tensors.

    Args:
        module: Of any project.
        config: Of the ViT.
        options: `table` or `dialect` says how the module's tensors are named; by default, the one
            table that explains them all.

    Raises:
        UnknownDialect, TensorMismatch: The table that was named does not explain the tensors.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    try:
        recognised = recognise(shapes, options.tables())
    except VitConvertError as error:
        if options.table or options.dialect:
            raise
        hint = "layers are not compared: table=, dialect= or layers= says which module is which"
        return Match(notes=(f"{error.fact} So {hint}.",))
    binding, prefix = recognised.binding, recognised.prefix
    owners = {
        name: prefix + links[0].theirs.rpartition(".")[0]
        for name, links in binding.links.items()
        if links[0].theirs and links[0].their_step is None and not links[0].shared
    }
    modules = dict(module.named_modules())
    theirs = _taps({n: path for n, path in owners.items() if path in modules}, config)
    own = canonical_taps(config.depth, config.block_order)
    # At the same place as theirs, so that another order of norms can be recognised there.
    at = _taps({name: name.rpartition(".")[0] for name in owners}, config)
    own |= {layer: tap for layer, tap in at.items() if layer == "embedding"}
    turned = any(dim.turned for links in binding.links.values() for dim in links[0].their_axes.dims)
    last = set(theirs) - {"patch_embed"} if turned else set()
    return Match(
        ours={layer: own[layer] for layer in theirs},
        theirs={
            layer: replace(_laid_out(modules[tap.module], tap), class_last=layer in last)
            for layer, tap in theirs.items()
        },
        binding=binding,
        prefix=prefix,
    )


def _taps(owners: Mapping[str, str], config: ViTConfig) -> dict[str, Tap]:
    """Where a module keeps the layers of `canonical_taps`, given the owner of each tensor of ours.

    What a block gives is what the next norm takes, or what its own last norm gives.
    """
    last = config.depth - 1
    kernel = "tubelet_proj" if config.clips else "proj"
    patches = f"patch_embed.{'norm' if config.patch_norm else kernel}.weight"
    taps = {"patch_embed": (patches, False)}
    if config.block_order == "post_norm":
        taps["embedding"] = ("blocks.0.attn.qkv.weight", True)
        for i in range(config.depth):
            taps[f"blocks.{i}.attn"] = (f"blocks.{i}.norm1.weight", False)
            taps[f"blocks.{i}.mlp"] = (f"blocks.{i}.norm2.weight", False)
    elif config.block_order == "pre" and config.branches == 1:
        taps["embedding"] = ("blocks.0.norm1.weight", True)
        for i in range(config.depth):
            taps[f"blocks.{i}.attn"] = (f"blocks.{i}.norm2.weight", True)
            after = f"blocks.{i + 1}.norm1.weight" if i < last else "norm.weight"
            taps[f"blocks.{i}.mlp"] = (after, True)
    taps |= {"norm": ("norm.weight", False), "features": ("head.weight", True)}
    return {
        layer: Tap(owners[tensor], input=before)
        for layer, (tensor, before) in taps.items()
        if tensor in owners
    }


def match_by_layers(layers: Mapping[str, str], theirs: nn.Module, ours: nn.Module) -> Match:
    """Match modules by name: their outputs are compared.

    Args:
        layers: Name of a module of theirs -> name of a module of ours.
        theirs: The module that is verified.
        ours: vitconvert's ViT, or the module that it is compared with.

    Raises:
        UsageError: There is no such module.
    """
    their_modules, our_modules = dict(theirs.named_modules()), dict(ours.named_modules())
    for names, known, whose in (
        (layers.keys(), their_modules, "the module"),
        (layers.values(), our_modules, "what it is compared with"),
    ):
        if unknown := sorted(name for name in names if name not in known):
            like = nearest(unknown[0], known, 3)
            raise UsageError(
                f"`layers` names {unknown[0]!r}, which is not a module of {whose}.",
                evidence={"modules like it": ", ".join(like) or "none"},
            )
    is_vit = isinstance(ours, ViT)
    named = {mine: (_layer(mine) if is_vit else mine, path) for path, mine in layers.items()}
    return Match(
        ours={layer: _laid_out(our_modules[m], Tap(m)) for m, (layer, _) in named.items()},
        theirs={layer: _laid_out(their_modules[p], Tap(p)) for _, (layer, p) in named.items()},
    )


def _layer(ours: str) -> str:
    """The layer that a module of vitconvert's ViT ends with, as reports call it."""
    match ours.split("."):
        case ["blocks", number]:
            return f"blocks.{number}.mlp"
        case ["patch_embed" | "norm"]:
            return ours
        case ["head"]:
            return OUTPUT
    return ours + BRANCH


def _laid_out(module: nn.Module, tap: Tap) -> Tap:
    """Only convolutions have their channels before the grid."""
    return Tap(tap.module, tap.input, channels_last=not isinstance(module, nn.Conv2d | nn.Conv3d))


def other_shapes(match: Match, config: ViTConfig) -> dict[str, str]:
    """The module's tensors that would have another shape in the ViT of a configuration."""
    assert match.binding is not None
    sizes = Sizes(config.axes(), {})
    shapes = {
        link.theirs: (match.binding.shapes[link.theirs], sizes.shape(link.their_axes))
        for links in match.binding.links.values()
        for link in links
        if link.theirs
    }
    return {
        match.prefix + name: f"{found}, and {wanted} in what it is compared with"
        for name, (found, wanted) in shapes.items()
        if found != wanted
    }


def canonical_tensors(module: nn.Module, match: Match, config: ViTConfig) -> dict[str, Tensor]:
    """A module's weights under canonical names.

    Args:
        module: Matched by its tensors.
        match: Of this module.
        config: Of the ViT.

    Raises:
        NotRepresentable: A tensor that plays no part in the ViT has other numbers than it should.
    """
    assert match.binding is not None
    every, plan = module.state_dict(), plan_reading(match.binding, config)
    return materialise(plan, lambda key: every[match.prefix + key].detach().cpu())
