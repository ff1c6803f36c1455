"""timm: models by an architecture's name, and arguments where it takes them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.facts.derivation import state
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.steps import departures_of
from vitconvert.programs.example import Example, imports_for, opened_image, zeros
from vitconvert.programs.program import CompanionFiles, DescribedModel, Opener, Program
from vitconvert.programs.target import Target, check_place, fit_target
from vitconvert.programs.timm.config import BY_ARGUMENTS, config_by_arguments, config_by_name
from vitconvert.programs.transformers import auto_model_opener, transformers_example
from vitconvert.tables.architectures import find_architecture
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.programs.program import Preparation
    from vitconvert.programs.reference import Reference


class Timm(Program):
    """timm, whose directories transformers opens too."""

    one_file = True
    packages = ("timm", "transformers")

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """By arguments, which describe a plain ViT, or else by an architecture's name."""
        if table.name not in BY_ARGUMENTS:
            return _fit_by_name(table, model)
        try:
            return _fit_by_arguments(table, model)
        except NotRepresentable as by_arguments:
            try:
                return _fit_by_name(table, model)
            except NotRepresentable:
                raise by_arguments from None

    def with_preprocessing(
        self, name: str, config: dict[str, Any], preprocessing: Preprocessing
    ) -> CompanionFiles:
        """A file for transformers is added only where it is exact and timm's words are not.

        transformers 5.23, TimmWrapperImageProcessor: without such a file, timm makes the images.
        """
        theirs = Preprocessing.from_timm(config["pretrained_cfg"])
        departures = departures_of("timm", preprocessing, theirs)
        processor = _exact_processor(preprocessing) if departures else None
        if processor is None:
            return CompanionFiles(files={name: config}, departures=departures)
        # Without it, transformers would not read the other file of a timm directory.
        config["image_processor_type"] = processor["image_processor_type"]
        files = {name: config, "preprocessor_config.json": processor}
        return CompanionFiles(files=files, departures=departures)

    def openers(self, config: ViTConfig) -> Mapping[str, Opener]:
        """timm, and transformers through its TimmWrapper, which needs a model with a head."""
        own = _open_resnet_d if config.resnet_d_stem else _open
        wrapper = {} if _of_merged(config) else {"transformers": auto_model_opener}
        return {"timm": own, **wrapper}

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """The named architecture, or the class for the configuration."""
        from vitconvert.programs.timm.reference import timm_reference

        return timm_reference(checkpoint)

    def preparation(self, checkpoint: Checkpoint) -> "Preparation | None":
        """What `create_transform` makes of `pretrained_cfg`."""
        from vitconvert.programs.timm.reference import timm_preparation

        cfg = checkpoint.their_config.get("pretrained_cfg")
        return timm_preparation(cfg) if isinstance(cfg, dict) else None

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """With timm and with transformers."""
        config, preprocessing = source.config, source.preprocessing
        kind = "AutoModelForImageClassification" if config.num_classes else "AutoModel"
        if _of_merged(config):
            return [_example(config, preprocessing)]
        return [
            _example(config, preprocessing),
            transformers_example(kind, config, has_processor=preprocessing is not None),
        ]


def _of_merged(config: ViTConfig) -> bool:
    """Whether timm's class is an encoder for a language model, which has no `forward_head`."""
    return bool(config.merge_size) and config.pooling == "none"


def _fit_by_arguments(table: Table, model: DescribedModel) -> Target:
    check_place(table, model.config)
    written = config_by_arguments(table, model)
    # All else that the architecture's name says is overruled by the arguments.
    eps = find_architecture("timm", written["architecture"])["norm_eps"]
    return fit_target(table, model.config, written, state({"norm_eps": eps}, "architecture"))


def _fit_by_name(table: Table, model: DescribedModel) -> Target:
    """The name that the checkpoint came with, or one that fits."""
    check_place(table, model.config, only=False)
    written = config_by_name(table, model)
    row = find_architecture("timm", written["architecture"])
    return fit_target(table, model.config, written, state(row, "architecture"), only=False)


def _exact_processor(source: Preprocessing) -> dict[str, Any] | None:
    """transformers' own file if it makes the images of the source, else None."""
    try:
        processor = source.to_huggingface()
    except NotRepresentable:
        return None
    theirs = Preprocessing.from_huggingface(processor, image_size=source.image_size)
    # A timm model cannot read patches.
    exact = source.resize != "patches" and not theirs.differences(source)
    return processor if exact else None


def _open(directory: Path) -> "Callable[[Tensor], Tensor]":
    import timm

    from vitconvert.programs.reference import as_tokens

    model = timm.create_model(f"local-dir:{directory}", pretrained=True).eval()
    return lambda images: as_tokens(model(images))


def _open_resnet_d(directory: Path) -> "Callable[[Tensor], Tensor]":
    """As `_open`, without the ImageNet weights of the stem, which timm 1.0.31 downloads first."""
    import timm

    model: Callable[[Tensor], Tensor] = timm.create_model(
        f"local-dir:{directory}", checkpoint_path=directory / "model.safetensors"
    ).eval()
    return model


def _example(config: ViTConfig, preprocessing: Preprocessing | None) -> Example:
    # As `_open_resnet_d`.
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
    return Example(title=title, code="\n".join(lines))


PROGRAM = Timm()
