"""open_clip: vision encoders of CLIP models, its own or timm's."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.checkpoint.weights import Text
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import NotRepresentable
from vitconvert.facts.fact import state
from vitconvert.facts.project_config import put, written_config
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.departures import departures_of
from vitconvert.programs.example import Example, blank_text, imports_for, reading_example, zeros
from vitconvert.programs.isolation import silent
from vitconvert.programs.program import (
    BothTowers,
    CompanionFiles,
    DescribedModel,
    Foreign,
    Preparation,
    Program,
    opened,
)
from vitconvert.programs.reference import (
    Reference,
    built_of_size,
    call,
    load_strictly,
    own_tensors,
    package,
)
from vitconvert.programs.taps import Tap, block_taps
from vitconvert.programs.target import Target, fit_target
from vitconvert.programs.timm.fitting import PLAIN, fitting_architecture
from vitconvert.programs.timm.reference import TOLD, fit_to, timm_taps, vision_transformer
from vitconvert.tables.architectures import find_architecture
from vitconvert.tables.config_file import look_up
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor


_NAMED = "model_cfg.vision_cfg.timm_model_name"
_POOL_TYPES = {"token": "tok", "none": "none"}


class OpenClip(Program):
    """open_clip, whose loader needs a text encoder too: its functions build encoders alone."""

    packages = ("open_clip",)

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """With `open_clip_config.json`, unless it is an encoder of timm's that has no name.

        Of these, only a plain ViT is known to be of the class whose tensors a dialect spells.
        """
        path = table.config_file.architecture if table.config_file else ""
        try:
            written = openclip_config(table, model.config)
        except NotRepresentable:
            plain = _timm_dialect(table) in PLAIN
            if not path or not (plain or table.name == model.dialect):
                raise
            return fit_target(table, model.config)
        row = find_architecture("timm", look_up(written, path)) if path else {}
        named = state(row, "architecture")
        return fit_target(table, model.config, written, named, text=model.text)

    def with_preprocessing(
        self, name: str, config: JsonDict, preprocessing: Preprocessing
    ) -> CompanionFiles:
        """The same file says how images are prepared."""
        try:
            cfg = preprocessing.to_openclip()
        except NotRepresentable as error:
            left_out = f"preprocess_cfg is left out: {error.fact}"
            return CompanionFiles(files={name: config}, departures=(left_out,))
        theirs = Preprocessing.from_openclip(cfg, image_size=preprocessing.image_size)
        departures = departures_of("open_clip", preprocessing, theirs)
        return CompanionFiles(
            files={name: {**config, "preprocess_cfg": cfg}}, departures=departures
        )

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """The vision encoder without the text encoder, open_clip 3.3.

        `transformer.py`, VisionTransformer, from the configuration; `timm_model.py`, TimmModel,
        from the architecture that open_clip_config.json names.
        """

        open_clip = open_clip_module()
        tensors = {n.removeprefix("visual."): t for n, t in own_tensors(checkpoint).items()}
        build = _own_tower if "class_embedding" in tensors else _timm_tower
        return build(open_clip, checkpoint, tensors)

    def open_both(self, directory: Path) -> BothTowers:
        """With `open_clip.create_model("local-dir:...")`, which is strict."""

        open_clip = open_clip_module()
        with silent("root"):
            model = open_clip.create_model(f"local-dir:{directory}", precision="fp32").eval()
        return both_towers(open_clip, model)

    def texts(self, checkpoint: Checkpoint) -> "Callable[[Tensor], Tensor]":
        """By `open_clip_config.json`."""
        model_cfg = look_up(checkpoint.companions.whole_config, "model_cfg")
        if not isinstance(model_cfg, Mapping):
            raise NotRepresentable("The text encoder needs an open_clip_config.json.")
        assert checkpoint.text is not None
        return text_tower(checkpoint.text, model_cfg)

    def preparation(self, checkpoint: Checkpoint) -> Preparation | None:
        """`image_transform_v2` of open_clip 3.3, by `preprocess_cfg`."""
        cfg, image_size = (
            checkpoint.their_config.get("preprocess_cfg"),
            checkpoint.config.image_size,
        )
        if not isinstance(cfg, dict):
            return None
        open_clip = open_clip_module()
        size = image_size[0] if image_size[0] == image_size[1] else list(image_size)
        stated = open_clip.transform.PreprocessCfg(**{**cfg, "size": size})
        preprocess = open_clip.transform.image_transform_v2(stated, is_train=False)

        def prepare(image: "Path | Image.Image") -> "Tensor":
            with opened(image) as found:
                prepared: Tensor = preprocess(found)
                return prepared

        return Preparation(
            name=f"open_clip {open_clip.__version__}'s image_transform_v2",
            prepare=prepare,
            steps=Preprocessing.from_openclip(cfg, image_size=image_size),
        )

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """With open_clip's function that builds encoders, if `open_clip_config.json` names one."""
        if target.text:
            return [_example_of_both(target, source.config, source.preprocessing)]
        if target.their_config:
            return [_example(target, source.config, source.preprocessing)]
        title = (
            "For open_clip, which builds such vision encoders by the name of a timm model. No timm "
            "model is this one (there is no `open_clip_config.json`)"
        )
        return [reading_example(target, title)]


def openclip_config(table: Table, config: ViTConfig) -> JsonObject:
    """The file for a vision encoder alone: the arguments of `_build_vision_tower` (open_clip 3.3).

    Of an encoder of timm's, open_clip passes on the name of an architecture and its pooling.

    Raises:
        NotRepresentable: open_clip has no word for a value, or timm has no architecture that is
            this model by its name alone.
    """
    written = written_config(table, config)
    if not (table.config_file and table.config_file.architecture):
        return written
    own = builtin_tables()[_timm_dialect(table)]
    headless = replace(config, num_classes=0)  # the projection is open_clip's own
    name, arguments = fitting_architecture(own, headless, repooled=config.num_classes > 0)
    sizes = sorted(arguments.keys() - {"global_pool"})
    if sizes or config.in_channels != 3:
        raise NotRepresentable(
            "open_clip builds timm's models only by name, and none of them has these sizes.",
            evidence={"nearest": name},
            details=[f"{size} would be {arguments[size]}" for size in sizes],
        )
    put(written, table.config_file.architecture, name)
    return written


def _timm_dialect(table: Table) -> str:
    """The dialect of timm's own files of a tower: the tables are called after it."""
    return table.name.removeprefix("openclip_")


def open_clip_module() -> ModuleType:
    """open_clip, imported."""

    return package("open_clip", install="open-clip-torch")


def _own_tower(
    open_clip: ModuleType, checkpoint: Checkpoint, tensors: "Mapping[str, Tensor]"
) -> Reference:
    from torch import nn

    config = checkpoint.config
    if not config.even_heads or config.attention_scale or config.in_channels != 3:
        raise NotRepresentable(
            "open_clip's VisionTransformer reads three channels and divides its width among the "
            "heads; this model does not."
        )
    if config.activation not in ("gelu", "quick_gelu"):
        raise NotRepresentable(f"open_clip has no vision encoders with {config.activation}.")
    name = f"open_clip {open_clip.__version__} VisionTransformer"

    def built(image_size: tuple[int, int], tensors: "Mapping[str, Tensor]") -> nn.Module:
        model: nn.Module = open_clip.transformer.VisionTransformer(
            image_size=image_size,
            patch_size=config.patch_size,
            width=config.embed_dim,
            layers=config.depth,
            heads=config.num_heads,
            mlp_ratio=(config.mlp_dim + 0.5) / config.embed_dim,  # open_clip rounds it down
            ls_init_value=1e-5 if config.layer_scale else None,
            output_dim=config.num_classes or 1,
            no_ln_pre=not config.pre_norm,
            pool_type=_POOL_TYPES.get(config.pooling, "avg"),
            final_ln_after_pool=config.pooling not in _POOL_TYPES,
            norm_layer=partial(nn.LayerNorm, eps=config.norm_eps),
            act_layer=open_clip.transformer.QuickGELU
            if config.activation == "quick_gelu"
            else nn.GELU,
        )
        if not config.num_classes:  # the class always has it
            model.register_parameter("proj", None)
        # As `load_checkpoint` does for `create_model(..., force_image_size=...)`.
        state = {f"visual.{name}": tensor for name, tensor in tensors.items()}
        open_clip.model.resize_pos_embed(state, SimpleNamespace(visual=model))
        load_strictly(model, {n.removeprefix("visual."): t for n, t in state.items()}, name)
        return model.eval()

    def run(model: nn.Module, images: "Tensor") -> "Tensor":
        height, width = images.shape[-2:]
        if (height, width) != config.image_size:
            model = built((height, width), model.state_dict())
        return call(model, images)

    notes = () if config.num_classes else ("the projection was removed",)
    block = "transformer.resblocks.{i}"
    taps = block_taps(config.depth, block=block, norm2="ln_2", norm="ln_post")
    del taps["norm"]  # it norms all tokens, and our fc_norm the pooled one
    return Reference(
        name=name,
        model=built(config.image_size, tensors),
        taps={"patch_embed": Tap("conv1"), **taps},
        run=run,
        notes=notes,
        any_size=config.square,  # as its function takes the grid for one
        told=("image_size", "num_heads", "activation", "norm_eps", "pooling"),
    )


def _timm_tower(
    open_clip: ModuleType, checkpoint: Checkpoint, tensors: "Mapping[str, Tensor]"
) -> Reference:
    config, theirs = checkpoint.config, checkpoint.their_config
    name, named = f"open_clip {open_clip.__version__} TimmModel", bool(look_up(theirs, _NAMED))
    if named:  # as open_clip builds it, without what it might download
        vision_cfg = {**look_up(theirs, "model_cfg.vision_cfg"), "timm_model_pretrained": False}
        build = partial(open_clip.model._build_vision_tower, config.num_classes, vision_cfg)
        model: Foreign = built_of_size(build, tensors, "TimmModel")
    else:
        model = _nameless_tower(open_clip, config)
        name += f" around timm's {type(model.trunk).__name__}"
    load_strictly(model, tensors, name)
    taps = timm_taps(model.trunk, config)
    taps.pop("features", None)  # the head is a sequence, empty without a projection

    def run(model: Foreign, images: "Tensor") -> "Tensor":
        fit_to(model.trunk, images)
        return call(model, images)

    return Reference(
        name=name,
        model=model.eval(),
        run=run,
        any_size=True,
        taps={layer: replace(tap, module=f"trunk.{tap.module}") for layer, tap in taps.items()},
        told=() if named else TOLD,
    )


def _nameless_tower(open_clip: ModuleType, config: ViTConfig) -> Foreign:
    """Around timm's class for the configuration."""
    import torch
    from torch import nn

    # The bias of the head is that of the projection.
    trunk = vision_transformer(replace(config, num_classes=0, head_bias=True))
    with torch.device("meta"):
        tower = open_clip.timm_model.TimmModel(
            "vit_tiny_patch16_224",
            embed_dim=config.num_classes,
            proj="linear" if config.num_classes else "none",
            proj_bias=config.head_bias,
        )
    tower.trunk = trunk
    if config.num_classes:
        tower.head.proj = nn.Linear(config.feature_dim, config.num_classes, bias=config.head_bias)
    return tower


def both_towers(open_clip: ModuleType, model: Foreign) -> BothTowers:
    """A model of open_clip's, as it computes images and texts."""
    name = f"open_clip {open_clip.__version__} {type(model).__name__}"
    return BothTowers(name=name, images=model.encode_image, texts=model.encode_text)


def text_tower(text: Text, model_cfg: JsonObject) -> "Callable[[Tensor], Tensor]":
    """The text encoder of a checkpoint, as open_clip builds it by a configuration."""

    build = partial(
        open_clip_module().model._build_text_tower,
        model_cfg["embed_dim"],
        dict(model_cfg["text_cfg"]),
        bool(model_cfg.get("quick_gelu")),
    )
    own = (key for key in text.keys if not key.startswith("logit_"))
    tensors = {key.removeprefix("text."): text.read(key).float() for key in own}
    tower = built_of_size(build, tensors, "TextTransformer")
    load_strictly(tower, tensors, "TextTransformer")
    return tower.eval()


def _example(target: Target, config: ViTConfig, preprocessing: Preprocessing | None) -> Example:
    imports = ["import json", "from pathlib import Path", "", "import open_clip"]
    build = [
        'config = json.loads(Path("open_clip_config.json").read_text(encoding="utf-8"))',
        'tower = open_clip.model._build_vision_tower(**config["model_cfg"]).eval()',
    ]
    own = "width" in target.their_config["model_cfg"]["vision_cfg"]
    build += ["tower.proj = None"] if own and not config.num_classes else []
    load = [
        'tensors = load_file("model.safetensors")',
        'tensors = {name.removeprefix("visual."): tensor for name, tensor in tensors.items()}',
        "tower.load_state_dict(tensors)",
    ]
    if preprocessing:
        imports += ["from open_clip.transform import PreprocessCfg, image_transform_v2"]
        load += [
            'cfg = PreprocessCfg(**config["preprocess_cfg"])',
            'images = image_transform_v2(cfg, is_train=False)(Image.open("photo.jpg"))[None]',
        ]
    else:
        load += [f"images = {zeros(config)}"]
    imports += [*imports_for(preprocessing), "from safetensors.torch import load_file", ""]
    return Example(
        title="With open_clip (there is no text encoder; `model.visual` of a whole CLIP takes the "
        "same state dict)",
        code="\n".join([*imports, *build, *load, "output = tower(images)"]),
    )


def _example_of_both(
    target: Target, config: ViTConfig, preprocessing: Preprocessing | None
) -> Example:
    images = 'preprocess(Image.open("photo.jpg"))[None]' if preprocessing else zeros(config)
    code = [
        *(["from PIL import Image"] if preprocessing else []),
        "import open_clip",
        "import torch",
        "",
        'model, _, preprocess = open_clip.create_model_and_transforms("local-dir:.")',
        f"output = model.eval().encode_image({images})",
        f"texts = model.encode_text({blank_text(target)})  # ids of open_clip.get_tokenizer",
    ]
    title = 'With open_clip (from the Hub: `"hf-hub:ORG/REPO"` instead of `"local-dir:."`)'
    return Example(title=title, code="\n".join(code))


PROGRAM = OpenClip()
