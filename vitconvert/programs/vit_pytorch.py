"""lucidrains' vit-pytorch: two classes, built by arguments; it has no configuration files."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable, UsageError
from vitconvert.programs.example import Example, class_example
from vitconvert.programs.program import Program
from vitconvert.programs.target import Target, fit_target
from vitconvert.tables.dialects import find_tables
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitconvert.programs.reference import Reference
    from vitconvert.programs.taps import Taps

_EPS = 1e-5  # torch.nn.LayerNorm's default, which the package never changes
_MODULES = {"relu": "ReLU", "silu": "SiLU", "tanh": "Tanh"}  # of torch, by our activations

# Fields of ViTConfig that the class is built with, and that tensors need not show
_TOLD = (
    *("image_size", "patch_size", "in_channels", "num_heads", "head_dim"),
    *("activation", "norm_eps", "attention_scale"),
)


class VitPytorch(Program):
    """vit-pytorch's ViT and SimpleViT."""

    packages = ("vit-pytorch",)

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """The class of the installed release, which can read the layouts since 1.4.

        vit-pytorch 1.26. Training scripts often replace its activation or epsilon, and some leave
        out the norms of the patches. Where the configuration says so, the same is done here and
        noted.
        """
        from vitconvert.programs.reference import Reference, load_strictly, own_tensors, package

        table, config = checkpoint.table, checkpoint.config
        if table.install:
            raise NotRepresentable(
                f"{table.title}: {table.install} computes it, and not the release that is "
                "installed."
            )
        package("vit_pytorch", install="vit-pytorch")
        kind, _ = _class_and_arguments(config)
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

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """The class of the current release, where it is this model without being changed."""
        config, table = source.config, target.table
        usual = config.activation == "gelu" and config.norm_eps == _EPS
        unchanged = usual and not config.attention_scale and config.num_classes > 0
        if table.install or table.allowed_as or not unchanged:
            return super().examples(target, source, has_processor)
        name, arguments = _class_and_arguments(config)
        imports = f"import torch\nfrom vit_pytorch import {name}"
        if "pool" in arguments:
            arguments["pool"] = f'"{arguments["pool"]}"'
        return [class_example("With vit-pytorch", imports, name, arguments, config)]


def _class_and_arguments(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """The name of the class for a configuration, and its arguments."""
    arguments: dict[str, Any] = {
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "num_classes": config.num_classes,
        "dim": config.embed_dim,
        "depth": config.depth,
        "heads": config.num_heads,
        "dim_head": config.head_dim,
        "mlp_dim": config.mlp_dim,
        "channels": config.in_channels,
    }
    if config.computed_positions:
        return "SimpleViT", arguments
    return "ViT", arguments | {"pool": "cls" if config.class_token else "mean"}


def vit_pytorch_model(config: ViTConfig) -> "tuple[nn.Module, tuple[str, ...]]":
    """The installed release's class for a configuration, and what was replaced in it."""
    import vit_pytorch

    name, arguments = _class_and_arguments(config)
    model: nn.Module = getattr(vit_pytorch, name)(**arguments)
    return model, _fit(model, config)


def _fit(model: "nn.Module", config: ViTConfig) -> tuple[str, ...]:
    """Replace what the class has no arguments for."""
    from torch import nn

    notes = []
    for index, present in {1: config.patch_pre_norm, 3: config.patch_norm}.items():
        if not present:
            embedding: Any = model.to_patch_embedding
            embedding[index] = nn.Identity()
            notes.append(f"to_patch_embedding.{index}, a norm, was replaced by nn.Identity")
    if config.activation != "gelu":
        _replace_activation(model, config.activation)
        notes.append(f"GELU was replaced by {config.activation}, as the configuration says")
    if config.norm_eps != _EPS:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = config.norm_eps
        notes.append(f"the norms' epsilon was set to {config.norm_eps}, as the configuration says")
    if config.attention_scale:
        for layer in _layers(model):
            layer[0].scale = config.attention_scale
        notes.append(f"attention was scaled by {config.attention_scale:.6g}")
    return tuple(notes)


def _replace_activation(model: "nn.Module", activation: str) -> None:
    from torch import nn

    if activation not in (*_MODULES, "gelu_tanh"):
        raise NotRepresentable(f"torch has no module for the activation {activation}.")
    for layer in _layers(model):
        net = layer[1].net
        places = [i for i, module in enumerate(net) if isinstance(module, nn.GELU)]
        for place in places:
            kind = _MODULES.get(activation)
            net[place] = getattr(nn, kind)() if kind else nn.GELU("tanh")


def _layers(model: "nn.Module") -> Any:
    transformer: Any = model.transformer
    return transformer.layers


def _flat_tokens(model: "nn.Module", tensors: "dict[str, Tensor]") -> "dict[str, Tensor]":
    """Before 1.16.1 the class token and the positions had a leading axis of one."""
    wanted = dict(model.named_parameters())
    for name in ("cls_token", "pos_embedding"):
        if name in tensors and tensors[name].numel() == wanted[name].numel():
            tensors[name] = tensors[name].reshape(wanted[name].shape)
    return tensors


def _taps(depth: int) -> "Taps":
    from vitconvert.programs.taps import Tap

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
        model: nn.Module = PROGRAM.reference(source).model
        return model


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


PROGRAM = VitPytorch()
