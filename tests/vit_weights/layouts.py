"""The tensors of a ViT-B/16 in the layouts of seven libraries, as `weights_map/` has them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitconvert.config import ViTConfig
from vitconvert.facts.plan import Assembly, Plan, plan_writing
from vitconvert.model import ViT
from vitconvert.model.blocks import Block
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.table import Table

# ViT-B/16 of Dosovitskiy et al., Table 1, for ImageNet-1k.
BASE = ViTConfig(
    image_size=(224, 224),
    patch_size=(16, 16),
    in_channels=3,
    num_classes=1000,
    embed_dim=768,
    depth=12,
    num_heads=12,
    head_dim=64,
    mlp_dim=3072,
    activation="gelu",
    norm_eps=1e-6,
    pooling="token",
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A library's layout: its table in `weights_map/`, and how its ViT-B/16 differs from BASE."""

    dialect: str
    differs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        """The table of the dialect."""
        return builtin_tables()[self.dialect]

    @property
    def plan(self) -> Plan:
        """Every tensor of the library's ViT-B/16."""
        return plan_writing(self.table, BASE.replace(**self.differs))


CLIP = {"pre_norm": True, "final_norm": False, "fc_norm": True, "patch_bias": False}
CLIP |= {"head_bias": False, "num_classes": 512, "activation": "quick_gelu", "norm_eps": 1e-5}
LAYOUTS: Mapping[str, Layout] = {
    "timm": Layout(dialect="timm"),
    "transformers": Layout(dialect="hf_vit"),
    "Google npz": Layout(dialect="google_jax"),
    "jeonsworld": Layout(dialect="jeonsworld"),
    "lucidrains": Layout(
        dialect="lucidrains",
        differs={"patch_pre_norm": True, "patch_norm": True, "qkv_bias": False},
    ),
    "torchvision": Layout(dialect="torchvision"),
    "CLIP": Layout(dialect="openai_clip", differs=CLIP),
}
# The steps of an image's way, and how the names of vitconvert's tensors begin there.
STEPS: Mapping[str, tuple[str, ...]] = {
    "patches": ("patch_embed.",),
    "positions": ("cls_token", "pos_embed", "norm_pre."),
    "qkv": ("blocks.0.norm1.", "blocks.0.attn.qkv."),
    "attention": ("blocks.0.attn.proj.",),
    "mlp": ("blocks.0.norm2.", "blocks.0.mlp."),
    "pooling": ("norm.", "fc_norm."),
    "head": ("head.",),
}

WAY: Mapping[str, str] = {
    "images": "images, channels, height, width",
    "patch_embed": "a token for each of 14 x 14 patches",
    "positions": "the class token in front; positions added",
    "blocks.0.norm1": "LayerNorm over the 768 channels of each token",
    "blocks.0.attn.qkv": "q, k and v of all heads in one product",
    "q, k, v": "each: images, heads, tokens, channels of a head",
    "softmax": "how much each token reads of each token",
    "blocks.0.attn.proj": "the heads joined and mixed; added to the tokens",
    "blocks.0.mlp.fc1": "4 times as wide, then GELU",
    "blocks.0.mlp.fc2": "back; added to the tokens",
    "blocks.0": "the tokens after one of 12 blocks",
    "norm": "the final LayerNorm",
    "pool": "the class token",
    "head": "a logit for each class",
}

# Fields of a layout that differ from BASE, as the page calls them.
DIFFERENCES: Mapping[str, str] = {
    "patch_pre_norm": "LayerNorm of a patch's pixels",
    "patch_norm": "LayerNorm after the patches",
    "patch_bias": "patches without bias",
    "pre_norm": "LayerNorm before the first block",
    "qkv_bias": "q, k, v without bias",
    "fc_norm": "final LayerNorm on the class token only",
    "head_bias": "head without bias",
}
GELU: Mapping[str, str] = {
    "gelu": "exact",
    "gelu_tanh": "tanh",
    "quick_gelu": "quick, `x * sigmoid(1.702 * x)`",
}


def tensors(layout: Layout) -> Mapping[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a library's ViT-B/16."""
    plan = layout.plan
    return {one.target: plan.shape(one) for one in plan.assemblies if one.pieces}


@torch.no_grad()
def way_table() -> str:
    """What the parts of `vitconvert/model/vit.py` give of an image, in a ViT-B/16."""
    model = ViT(BASE.replace(depth=1))  # all blocks have the same shapes
    shapes: dict[str, torch.Size] = {}

    def note(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda _, __, given: shapes.update({name: given.shape})

    for name, part in model.named_modules():
        part.register_forward_hook(note(name))
    images = torch.zeros(1, 3, *BASE.image_size)
    tokens = model.forward_features(images)
    attention = cast("Block", model.blocks[0]).attn
    qkv = attention.project(tokens)
    shapes |= {"images": images.shape, "q, k, v": qkv[0].shape, "pool": model.pool(tokens).shape}
    shapes |= {"softmax": attention.probabilities(qkv).shape, "head": model(images).shape}
    lines = ["| step | gives | which is |", "|---|---|---|"]
    for name, what in WAY.items():
        lines.append(f"| `{name}` | {', '.join(map(str, shapes[name]))} | {what} |")
    return "\n".join(lines)


def step_table(step: str) -> str:
    """For each library, the tensors of a step; those of the same axes are in one row."""
    lines = ["| library | tensor | axes, shape |", "|---|---|---|"]
    for library, layout in LAYOUTS.items():
        plan = layout.plan
        rows: dict[str, list[str]] = {}
        for one in _of_step(plan, step):
            shape = ", ".join(map(str, plan.shape(one)))
            rows.setdefault(f"{one.axes}<br>[{shape}]", []).append(f"`{one.target}`")
        for first, (axes, names) in zip([library, *[""] * len(rows)], rows.items(), strict=False):
            lines.append(f"| {first} | {'<br>'.join(names)} | {axes} |")
    return "\n".join(lines)


def names_of(layout: Layout, step: str) -> list[str]:
    """Names of the tensors of a step."""
    return [one.target for one in _of_step(layout.plan, step)]


def _of_step(plan: Plan, step: str) -> list[Assembly]:
    def belongs(one: Assembly) -> bool:
        return any((piece.source or "").startswith(STEPS[step]) for piece in one.pieces)

    return [one for one in plan.assemblies if belongs(one)]


def structure_table() -> str:
    """What the tensors show of how the libraries differ."""
    lines = ["| library | q, k, v | kernels | not as in a plain ViT |", "|---|---|---|---|"]
    for library, layout in LAYOUTS.items():
        patches, qkv, fc1 = (
            _axes(layout, name)
            for name in ("patch_embed.proj", "blocks.0.attn.qkv", "blocks.0.mlp.fc1")
        )
        joined = "joined" if len(qkv) == 1 else "apart"
        order = "(out, in)" if fc1 == ["hidden width"] else "(in, out)"
        said = [text for field, text in DIFFERENCES.items() if field in layout.differs]
        said += [f"patches are `{axes}`" for axes in patches if axes != "width channel y x"]
        lines.append(f"| {library} | {joined} | {order} | {'<br>'.join(said)} |")
    return "\n".join(lines)


def _axes(layout: Layout, module: str) -> list[str]:
    """The axes of what makes up the weight of one of our modules."""
    weight = f"{module}.weight"
    made = layout.plan.assemblies
    return [str(one.axes) for one in made if any(weight == piece.source for piece in one.pieces)]


def numerics_table() -> str:
    """What no tensor shows, as the libraries' own code has it."""
    lines = ["| library | eps | GELU | mean, std of pixels |", "|---|---|---|---|"]
    for library, layout in LAYOUTS.items():
        values = numerics(layout)
        eps = f"{values['norm_eps']:g}".replace("e-0", "e-")
        lines.append(f"| {library} | {eps} | {GELU[values['activation']]} | {_pixels(layout)} |")
    return "\n".join(lines)


def numerics(layout: Layout) -> Mapping[str, Any]:
    """Fields that the library's code fixes, or assumes where its config.json is silent."""
    config = BASE.replace(**layout.differs)
    file = layout.table.config_file
    found = dict(file.defaults) if file else {}
    for default in reversed(layout.table.defaults):
        if default.holds_for(config):
            found[default.name] = default.value
    return found


def _pixels(layout: Layout) -> str:
    stated = layout.table.preprocessing
    if not stated:
        return "in the checkpoint's JSON" if layout.table.config_file else "not stated"
    return "<br>".join(" ".join(f"{n:.3g}" for n in _short(stated[key])) for key in ("mean", "std"))


def _short(numbers: list[float]) -> Iterator[float]:
    yield from numbers if len(set(numbers)) > 1 else numbers[:1]
