"""lucidrains' vit-pytorch: two classes, built by arguments; it has no configuration files."""

from importlib.metadata import version
from typing import TYPE_CHECKING, ClassVar

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonDict
from vitconvert.errors import NotRepresentable, UsageError
from vitconvert.programs.example import Example, class_example
from vitconvert.programs.program import Foreign, Program
from vitconvert.programs.reference import Reference, load_strictly, own_tensors, package
from vitconvert.programs.taps import Tap
from vitconvert.programs.target import Target, fit_target
from vitconvert.tables.dialects import find_tables

if TYPE_CHECKING:
    from torch import nn


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
    adapted: ClassVar = {"lucidrains_adapted": "adapted-module"}

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """The class of the installed release, which can read the layouts since 1.4.

        vit-pytorch 1.26. Training scripts often replace its activation or epsilon, and some leave
        out the norms of the patches. Where the configuration says so, the same is done here and
        noted.
        """

        table, config = checkpoint.table, checkpoint.config
        if table.install:
            raise NotRepresentable(
                f"{table.title}: {table.install} computes it, and not the release that is "
                "installed."
            )
        package("vit_pytorch", install="vit-pytorch")
        kind, _ = _class_and_arguments(config)
        adapted = ", adapted" if table.name in self.adapted else ""
        name = f"vit-pytorch {version('vit-pytorch')} {kind}{adapted}"
        if config.num_registers or config.class_token != (config.pooling == "token"):
            raise NotRepresentable(
                "the installed vit-pytorch has no class that pools these tokens in this way."
            )
        model, notes = vit_pytorch_model(config)
        tensors, wanted = own_tensors(checkpoint), dict(model.named_parameters())
        for key in ("cls_token", "pos_embedding"):  # before 1.16.1 they had a leading axis of one
            if key in tensors and tensors[key].numel() == wanted[key].numel():
                tensors[key] = tensors[key].reshape(wanted[key].shape)
        load_strictly(model, tensors, name)
        # The residual sums are no modules of their own, but each is what the next module reads.
        taps = {"patch_embed": Tap("to_patch_embedding"), "norm": Tap("transformer.norm")}
        taps["embedding"] = Tap("transformer.layers.0.0", input=True)
        for i in range(config.depth):
            last = i + 1 == config.depth
            after = "transformer.norm" if last else f"transformer.layers.{i + 1}.0"
            taps[f"blocks.{i}.attn"] = Tap(f"transformer.layers.{i}.1", input=True)
            taps[f"blocks.{i}.mlp"] = Tap(after, input=True)
        taps["features"] = Tap("to_latent")
        return Reference(
            name=name,
            model=model.eval(),
            taps=taps,
            reads="output" if config.num_classes else "tokens",
            notes=notes,
            told=_TOLD,
        )

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """The class of the current release, where it is this model without being changed."""
        config, table = source.config, target.table
        usual = config.activation == "gelu" and config.norm_eps == _EPS
        unchanged = usual and not config.attention_scale and config.num_classes > 0
        if table.install or table.name in self.adapted or not unchanged:
            return super().examples(target, source, has_processor)
        name, arguments = _class_and_arguments(config)
        imports = f"import torch\nfrom vit_pytorch import {name}"
        if "pool" in arguments:
            arguments["pool"] = f'"{arguments["pool"]}"'
        return [class_example("With vit-pytorch", imports, name, arguments, config)]


def _class_and_arguments(config: ViTConfig) -> tuple[str, JsonDict]:
    """The name of the class for a configuration, and its arguments."""
    arguments: JsonDict = {
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
    """The installed release's class for a configuration, and what was replaced in it.

    Raises:
        NotRepresentable: torch has no module for the activation.
    """
    import vit_pytorch
    from torch import nn

    name, arguments = _class_and_arguments(config)
    model: Foreign = getattr(vit_pytorch, name)(**arguments)
    layers, notes = model.transformer.layers, []
    for index, present in {1: config.patch_pre_norm, 3: config.patch_norm}.items():
        if not present:
            model.to_patch_embedding[index] = nn.Identity()
            notes.append(f"to_patch_embedding.{index}, a norm, was replaced by nn.Identity")
    if config.activation != "gelu":
        if config.activation not in (*_MODULES, "gelu_tanh"):
            raise NotRepresentable(f"torch has no module for the activation {config.activation}.")
        kind = _MODULES.get(config.activation)
        for _, mlp in layers:
            for place, module in enumerate(mlp.net):
                if isinstance(module, nn.GELU):
                    mlp.net[place] = getattr(nn, kind)() if kind else nn.GELU("tanh")
        notes.append(f"GELU was replaced by {config.activation}, as the configuration says")
    if config.norm_eps != _EPS:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = config.norm_eps
        notes.append(f"the norms' epsilon was set to {config.norm_eps}, as the configuration says")
    if config.attention_scale:
        for attention, _ in layers:
            attention.scale = config.attention_scale
        notes.append(f"attention was scaled by {config.attention_scale:.6g}")
    return model, tuple(notes)


def build_vit_pytorch(source: Checkpoint | ViTConfig) -> "nn.Module":
    """Build vit-pytorch's class, and load a checkpoint; see `vitconvert.build_lucidrains`."""

    package("vit_pytorch", install="vit-pytorch")
    if isinstance(source, ViTConfig):
        refused = []
        for table in find_tables("lucidrains"):
            if table.install:  # another release computes it
                continue
            try:
                fit_target(table, source)
            except NotRepresentable as error:
                refused.append(f"{table.name}: {error.in_one_line()}")
            else:
                return vit_pytorch_model(source)[0].eval()
        raise NotRepresentable(
            "vit-pytorch's class cannot compute this function, even changed.", details=refused
        )
    if source.table.program != "vit_pytorch":
        raise UsageError(
            "This checkpoint does not have vit-pytorch's layout.",
            evidence={
                "source": source.located.reference,
                "dialect": f"{source.dialect} ({source.table.file})",
            },
            hint='convert it first: --to lucidrains (in Python, to="lucidrains").',
        )
    with source.weights.container:
        return PROGRAM.reference(source).model


PROGRAM = VitPytorch()
