"""vit-pytorch's ViT and SimpleViT, as the installed release has them."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable, UsageError
from vitconvert.programs.reference import Reference, load_strictly, own_tensors, package
from vitconvert.programs.taps import Tap, Taps
from vitconvert.programs.target import fit_target
from vitconvert.programs.vit_pytorch.classes import EPS, class_and_arguments
from vitconvert.tables.dialects import find_tables
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import nn


_ACTIVATION = {"relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh}

# Fields of ViTConfig that the class is built with, and that tensors need not show
_TOLD = (
    *("image_size", "patch_size", "in_channels", "num_heads", "head_dim"),
    *("activation", "norm_eps", "attention_scale"),
)


def vit_pytorch_reference(checkpoint: Checkpoint) -> Reference:
    """Build the class of the installed release, which can read the layouts since 1.4.

    vit-pytorch 1.26. Training scripts often replace its activation or epsilon, and some leave out
    the norms of the patches. Where the configuration says so, the same is done here and noted.

    Raises:
        MissingPackage: vit-pytorch is not installed.
        NotRepresentable: The checkpoint is of an earlier release or a changed model.
    """
    table, config = checkpoint.table, checkpoint.config
    if table.install:
        raise NotRepresentable(
            f"{table.title}: {table.install} computes it, and not the release that is installed."
        )
    package("vit_pytorch", install="vit-pytorch")
    kind, _ = class_and_arguments(config)
    adapted = ", adapted" if table.allowed_as else ""
    name = f"vit-pytorch {version('vit-pytorch')} {kind}{adapted}"
    if config.num_registers or config.class_token != (config.pooling == "token"):
        raise NotRepresentable(
            "the installed vit-pytorch has no class that pools these tokens in this way."
        )
    model, notes = vit_pytorch_model(config)
    load_strictly(model, _flat_tokens(model, own_tensors(checkpoint)), name)
    return Reference(
        name=name,
        model=model.eval(),
        taps=_taps(config.depth),
        reads="output" if config.num_classes else "tokens",
        notes=notes,
        told=_TOLD,
    )


def vit_pytorch_model(config: ViTConfig) -> tuple[nn.Module, tuple[str, ...]]:
    """The installed release's class for a configuration, and what was replaced in it."""
    import vit_pytorch

    name, arguments = class_and_arguments(config)
    model: nn.Module = getattr(vit_pytorch, name)(**arguments)
    return model, _fit(model, config)


def _fit(model: nn.Module, config: ViTConfig) -> tuple[str, ...]:
    """Replace what the class has no arguments for."""
    notes = []
    for index, present in {1: config.patch_pre_norm, 3: config.patch_norm}.items():
        if not present:
            embedding: Any = model.to_patch_embedding
            embedding[index] = nn.Identity()
            notes.append(f"to_patch_embedding.{index}, a norm, was replaced by nn.Identity")
    if config.activation != "gelu":
        _replace_activation(model, config.activation)
        notes.append(f"GELU was replaced by {config.activation}, as the configuration says")
    if config.norm_eps != EPS:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = config.norm_eps
        notes.append(f"the norms' epsilon was set to {config.norm_eps}, as the configuration says")
    if config.attention_scale:
        for layer in _layers(model):
            layer[0].scale = config.attention_scale
        notes.append(f"attention was scaled by {config.attention_scale:.6g}")
    return tuple(notes)


def _replace_activation(model: nn.Module, activation: str) -> None:
    if activation not in (*_ACTIVATION, "gelu_tanh"):
        raise NotRepresentable(f"torch has no module for the activation {activation}.")
    for layer in _layers(model):
        net = layer[1].net
        places = [i for i, module in enumerate(net) if isinstance(module, nn.GELU)]
        for place in places:
            net[place] = nn.GELU("tanh") if activation == "gelu_tanh" else _ACTIVATION[activation]()


def _layers(model: nn.Module) -> Any:
    transformer: Any = model.transformer
    return transformer.layers


def _flat_tokens(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Before 1.16.1 the class token and the positions had a leading axis of one."""
    wanted = dict(model.named_parameters())
    for name in ("cls_token", "pos_embedding"):
        if name in tensors and tensors[name].numel() == wanted[name].numel():
            tensors[name] = tensors[name].reshape(wanted[name].shape)
    return tensors


def _taps(depth: int) -> Taps:
    # The residual sums are no modules of their own, but each is what the next module reads.
    taps = {"patch_embed": Tap("to_patch_embedding"), "norm": Tap("transformer.norm")}
    taps["embedding"] = Tap("transformer.layers.0.0", input=True)
    for i in range(depth):
        after = f"transformer.layers.{i + 1}.0" if i + 1 < depth else "transformer.norm"
        taps[f"blocks.{i}.attn"] = Tap(f"transformer.layers.{i}.1", input=True)
        taps[f"blocks.{i}.mlp"] = Tap(after, input=True)
    taps["features"] = Tap("to_latent")
    return taps


def build_vit_pytorch(source: Checkpoint | ViTConfig) -> "nn.Module":
    """Build vit-pytorch's class, and load a checkpoint; see `vitconvert.build_lucidrains`."""
    from vitconvert.programs.reference import package
    from vitconvert.programs.vit_pytorch.reference import vit_pytorch_model, vit_pytorch_reference

    package("vit_pytorch", install="vit-pytorch")
    if isinstance(source, ViTConfig):
        _require_class(source)
        return vit_pytorch_model(source)[0].eval()
    if source.table.program != "vit_pytorch":
        raise UsageError(
            "This checkpoint is not spelled as vit-pytorch's are.",
            evidence={
                "source": source.located.reference,
                "dialect": f"{source.dialect} ({source.table.file})",
            },
            hint='convert it first: --to lucidrains (in Python, to="lucidrains").',
        )
    with source.weights.container:
        return vit_pytorch_reference(source).model


def _require_class(config: ViTConfig) -> None:
    current = (table for table in find_tables("lucidrains") if not table.install)
    refused = {table.name: _refusal(table, config) for table in current}
    if all(refused.values()):
        raise NotRepresentable(
            "vit-pytorch's class cannot compute this function, even changed.",
            details=[f"{name}: {why}" for name, why in refused.items()],
        )


def _refusal(table: Table, config: ViTConfig) -> str | None:
    try:
        fit_target(table, config)
    except NotRepresentable as error:
        return error.in_one_line()
    return None
