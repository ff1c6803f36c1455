"""timm: models by an architecture's name, and arguments where it takes them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonDict
from vitconvert.errors import NotRepresentable
from vitconvert.facts.fact import state
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.departures import departures_of
from vitconvert.programs.example import Example, imports_for, opened_image, zeros
from vitconvert.programs.program import (
    CompanionFiles,
    DescribedModel,
    Opener,
    Preparation,
    Program,
    opened,
)
from vitconvert.programs.reference import (
    Reference,
    as_tokens,
    built_of_size,
    load_strictly,
    own_tensors,
    package,
)
from vitconvert.programs.target import Target, check_place, fit_target
from vitconvert.programs.timm.fitting import (
    BY_ARGUMENTS,
    PLAIN,
    config_by_arguments,
    config_by_name,
    pooling_word,
)
from vitconvert.programs.timm.reference import (
    ROUNDS,
    TOLD_NAMED,
    fit_to,
    put_back_pre_logits,
    timm_like,
    tower_taps,
    vision_transformer,
)
from vitconvert.programs.transformers import auto_model_opener, transformers_example
from vitconvert.tables.architectures import find_architecture
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor


class Timm(Program):
    """timm, whose directories transformers opens too."""

    one_file = True
    packages = ("timm", "transformers")

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """By arguments, which describe a plain ViT, or else by an architecture's name."""

        def by_name() -> Target:
            check_place(table, model.config, only=False)
            written = config_by_name(table, model)
            named = state(find_architecture("timm", written["architecture"]), "architecture")
            return fit_target(table, model.config, written, named, only=False)

        def by_arguments() -> Target:
            check_place(table, model.config)
            written = config_by_arguments(table, model)
            # All else that the architecture's name says is overruled by the arguments.
            eps = find_architecture("timm", written["architecture"])["norm_eps"]
            named = state({"norm_eps": eps}, "architecture")
            return fit_target(table, model.config, written, named)

        ways = (by_arguments, by_name) if table.name in PLAIN else (by_name, by_arguments)
        try:
            return ways[0]()
        except NotRepresentable as first:
            if table.name not in BY_ARGUMENTS:
                raise
            try:
                return ways[1]()
            except NotRepresentable:
                raise first from None

    def with_preprocessing(
        self, name: str, config: JsonDict, preprocessing: Preprocessing
    ) -> CompanionFiles:
        """A file for transformers is added only where it is exact and timm's words are not.

        transformers 5.23, TimmWrapperImageProcessor: without such a file, timm makes the images.
        """
        files = {name: config}
        theirs = Preprocessing.from_timm(config["pretrained_cfg"])
        departures = departures_of("timm", preprocessing, theirs)
        if not departures or preprocessing.resize == "patches":  # which no model of timm reads
            return CompanionFiles(files=files, departures=departures)
        try:
            processor = preprocessing.to_huggingface()
        except NotRepresentable:
            return CompanionFiles(files=files, departures=departures)
        theirs = Preprocessing.from_huggingface(processor, image_size=preprocessing.image_size)
        if not theirs.differences(preprocessing):
            # Without it, transformers would not read the other file of a timm directory.
            config["image_processor_type"] = processor["image_processor_type"]
            files["preprocessor_config.json"] = processor
        return CompanionFiles(files=files, departures=departures)

    def readers(self, table: Table, config: ViTConfig) -> tuple[str, ...]:
        """timm dropped the layer before the head (`pre_logits`) in 0.6; TimmWrapper has a head."""
        if config.representation_size:
            return ("timm before 0.6",)
        return ("timm",) if _merges_only(config) else self.packages

    def openers(self, config: ViTConfig) -> Mapping[str, Opener]:
        """timm, and transformers through its TimmWrapper, which needs a model with a head."""

        def opened(directory: Path) -> "Callable[[Tensor], Tensor]":
            import timm

            weights: JsonDict = {"pretrained": True}
            if config.resnet_d_stem:  # of whose stem timm 1.0.31 downloads ImageNet weights first
                weights = {"checkpoint_path": directory / "model.safetensors"}
            model = timm.create_model(f"local-dir:{directory}", **weights).eval()

            def run(images: "Tensor") -> "Tensor":
                fit_to(model, images)
                return as_tokens(model(images))

            return run

        wrapper = {} if _merges_only(config) else {"transformers": auto_model_opener}
        return {"timm": opened, **wrapper}

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """The named architecture, or else the class that the configuration describes.

        After timm 1.0.31, `create_model` and `VisionTransformer`. timm dropped the layer before the
        head (`pre_logits`) in 0.6; it is put back in front of the head.
        """
        timm = package("timm", install="timm")
        tensors, config = own_tensors(checkpoint), checkpoint.config
        theirs = checkpoint.their_config
        stated = str(checkpoint.located.name or theirs.get("architecture") or "").split(".")[0]
        if named := timm.is_model(stated):  # as `create_model` makes it
            sizes = {"num_classes": config.num_classes, "in_chans": config.in_channels}
            arguments: JsonDict = {**sizes, "img_size": config.image_size}
            arguments |= {key: theirs[key] for key in theirs.keys() & {"global_pool"}}
            arguments |= theirs.get("model_args", {})
            if arguments.get("global_pool") == "":  # all tokens: a user may say what is read
                arguments["global_pool"] = pooling_word(config)
            if config.gated_mlp and not find_architecture("timm", stated).get("gated_mlp"):
                # What the code of cards adds, for which config.json has no word.
                arguments["mlp_layer"] = timm.layers.SwiGLUPacked
                arguments["act_layer"] = config.activation
            model = built_of_size(partial(timm.create_model, stated, **arguments), tensors)
        else:
            model = built_of_size(partial(vision_transformer, config), tensors)
        if config.representation_size:
            put_back_pre_logits(model, config)
            places = {"pre_logits.fc.": "head.fc.", "head.": "head.head."}
            for name in list(tensors):
                if old := next((prefix for prefix in places if name.startswith(prefix)), ""):
                    tensors[places[old] + name.removeprefix(old)] = tensors.pop(name)
        kind = type(model).__name__
        name = f"timm {timm.__version__} {kind}"
        load_strictly(model, tensors, name)
        model.eval()
        if kind.startswith(ROUNDS):
            return Reference(
                name=name,
                model=model,
                taps=tower_taps(model, config),
                dtypes=("float32",),
                told=TOLD_NAMED,
            )
        reference = replace(timm_like(model, config, name), any_size=True)
        return replace(reference, told=TOLD_NAMED) if named else reference

    def preparation(self, checkpoint: Checkpoint) -> Preparation | None:
        """`create_transform` of timm 1.0.31, by `pretrained_cfg`.

        Images are opened as timm's `ImageDataset` opens them.
        """
        cfg = checkpoint.their_config.get("pretrained_cfg")
        if not isinstance(cfg, dict):
            return None
        timm = package("timm", install="timm")
        arguments = timm.data.resolve_data_config(pretrained_cfg=dict(cfg))
        transform = timm.data.create_transform(**arguments, is_training=False)
        mode = "L" if arguments["input_size"][0] == 1 else "RGB"

        def prepare(image: "Path | Image.Image") -> "Tensor":
            with opened(image) as found:
                prepared: Tensor = transform(found.convert(mode))
                return prepared

        return Preparation(
            name=f"timm {timm.__version__}'s create_transform",
            prepare=prepare,
            steps=Preprocessing.from_timm(cfg),
        )

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """With timm and with transformers."""
        config, preprocessing = source.config, source.preprocessing
        # As in `openers`.
        how = 'checkpoint_path="model.safetensors"' if config.resnet_d_stem else "pretrained=True"
        lines = ["import timm", *imports_for(preprocessing), ""]
        lines += [f'model = timm.create_model("local-dir:.", {how}).eval()']
        if preprocessing:
            lines += [
                "data = timm.data.resolve_model_data_config(model)",
                "transform = timm.data.create_transform(**data, is_training=False)",
                f"output = model(transform({opened_image(config)}).unsqueeze(0))",
            ]
        else:
            lines += [f"output = model({zeros(config)})"]
        title = 'With timm (from the Hub: `"hf-hub:ORG/REPO"` instead of `"local-dir:."`)'
        own = Example(title=title, code="\n".join(lines))
        if _merges_only(config):
            return [own]
        kind = "AutoModelForImageClassification" if config.num_classes else "AutoModel"
        return [own, transformers_example(kind, config, has_processor=preprocessing is not None)]


def _merges_only(config: ViTConfig) -> bool:
    """Whether timm's class is an encoder for a language model, which has no `forward_head`."""
    return bool(config.merge_size) and config.pooling == "none"


PROGRAM = Timm()
