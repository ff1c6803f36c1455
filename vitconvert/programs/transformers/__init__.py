"""transformers: one class for each model type, built by its `config.json`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import NotRepresentable
from vitconvert.facts.project_config import written_config
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.departures import departures_of
from vitconvert.preprocessing.transformers import of_any_size
from vitconvert.programs.example import Example, blank_text, zeros
from vitconvert.programs.program import (
    BothTowers,
    CompanionFiles,
    DescribedModel,
    Opener,
    Preparation,
    Program,
)
from vitconvert.programs.reference import Reference, as_tokens, package
from vitconvert.programs.target import Target, check_place, fit_target
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor


# They read patches with their places, which the processor of the larger model makes, or sounds.
_OF_ANY_SHAPE = (
    "ASTForAudioClassification",
    "ASTModel",
    "Gemma4VisionModel",
    "Ernie4_5_VLMoeVisionTransformerPretrainedModel",
    "Glm4vVisionModel",
    "GlmOcrVisionModel",
    "Qwen2VisionTransformerPretrainedModel",
    "Qwen2_5OmniVisionEncoder",
    "Qwen2_5_VisionTransformerPretrainedModel",
    "Qwen3OmniMoeVisionEncoder",
    "Qwen3VLVisionModel",
)


_OF_CLIPS: Mapping[str, JsonObject] = {
    "videomae": {"image_processor_type": "VideoMAEImageProcessor"},
    "vivit": {"image_processor_type": "VivitImageProcessor", "offset": False},
}


class Transformers(Program):
    """transformers, in the layout of `save_pretrained`."""

    packages = ("transformers",)

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """With a `config.json` that names the class, in the keys that the table maps."""
        check_place(table, model.config)
        written = written_config(table, model.config)
        if not written.get("architectures"):
            raise NotRepresentable(
                f"{table.title} has no class that computes this.", evidence={"table": table.file}
            )
        # CLIP's projection is a head without labels.
        if "Classification" in written["architectures"][0]:
            count = model.config.num_classes
            names = model.labels or [f"LABEL_{index}" for index in range(count)]
            written["id2label"] = {str(index): name for index, name in enumerate(names)}
            written["label2id"] = {name: index for index, name in enumerate(names)}
            written["num_labels"] = count
        fitted = fit_target(table, model.config, written, text=model.text)
        return normalising(fitted, model.preprocessing) if "norm_mean" in written else fitted

    def other_sizes(self, table: Table) -> str:
        """SAM's class takes one size, and Molmo 2's."""
        return "none" if table.name in ("hf_sam", "hf_molmo2") else "program"

    def companions(
        self, target: Target, preprocessing: Preprocessing | None, dtypes: Iterable[str]
    ) -> CompanionFiles:
        """The `config.json` says the dtype too."""
        found = set(dtypes)
        dtype = found.pop() if len(found) == 1 else "float32"
        stated = replace(target, their_config={**target.their_config, "dtype": dtype})
        return super().companions(stated, preprocessing, dtypes)

    def with_preprocessing(
        self, name: str, config: JsonDict, preprocessing: Preprocessing
    ) -> CompanionFiles:
        """Images have a file of their own."""
        if "norm_mean" in config:  # the model does it
            zero, one = ((number,) * preprocessing.channels for number in (0.0, 1.0))
            preprocessing = replace(preprocessing, mean=zero, std=one, normalize=False)
        files: dict[str, JsonObject] = {name: config}
        try:
            patches = _reads_patches(config)
            if patches != (preprocessing.resize == "patches"):
                keeps, other = "the source", "this class"
                if patches:
                    keeps, other = other, keeps
                raise NotRepresentable(
                    f"{keeps} keeps the aspect ratio of images, and {other} does not"
                )
            if preprocessing.of_sounds != ("num_mel_bins" in config):
                raise NotRepresentable("images and recordings are prepared differently")
            processor = preprocessing.to_huggingface()
            if of_clips := _OF_CLIPS.get(config["model_type"]):
                processor = {**processor, **of_clips}
        except NotRepresentable as error:
            left_out = f"preprocessor_config.json is left out: {error.fact}"
            return CompanionFiles(files=files, departures=(left_out,))
        files["preprocessor_config.json"] = processor
        theirs = Preprocessing.from_huggingface(processor, image_size=preprocessing.image_size)
        departures = departures_of("transformers", preprocessing, theirs)
        if departures and BACKENDS[preprocessing.backend].resize == "pil":
            # The file cannot choose it.
            advice = 'to resize as the source does, use AutoImageProcessor(..., backend="pil")'
            departures = (*departures, advice)
        return CompanionFiles(files=files, departures=departures)

    def openers(self, config: ViTConfig) -> Mapping[str, Opener]:
        """The class that `config.json` names."""

        def opened(directory: Path) -> "Callable[[Tensor], Tensor]":
            from vitconvert.programs.transformers.running import (
                behind_normalisation,
                load_named_class,
                run_opened,
            )

            model = load_named_class(directory)
            behind_normalisation(model)
            return lambda images: run_opened(model, images)

        return {"transformers": opened}

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """The class that the tensors are of."""
        from vitconvert.programs.transformers.reference import transformers_reference

        return transformers_reference(checkpoint)

    def open_both(self, directory: Path) -> BothTowers:
        """The class that `config.json` names, as `from_pretrained` loads an output."""
        from vitconvert.programs.transformers.running import load_named_class, run_opened

        transformers = package("transformers", install="transformers")
        model = load_named_class(directory)
        return BothTowers(
            name=f"transformers {transformers.__version__} {type(model).__name__}",
            images=lambda images: run_opened(model, images),
            texts=lambda ids: model.get_text_features(input_ids=ids).pooler_output,
        )

    def texts(self, checkpoint: Checkpoint) -> "Callable[[Tensor], Tensor]":
        """By `config.json`."""
        from vitconvert.programs.transformers.running import texts_by_config

        return texts_by_config(checkpoint)

    def preparation(self, checkpoint: Checkpoint) -> Preparation | None:
        """The processor that `preprocessor_config.json` names, unless it makes any size."""
        from vitconvert.programs.transformers.running import transformers_preparation

        stated = checkpoint.companions.preprocessor
        model_type = checkpoint.their_config.get("model_type")
        if stated is None or of_any_size(stated, model_type):
            return None
        return transformers_preparation(stated, model_type, checkpoint.config.image_size)

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """With the class that `config.json` names."""
        patches = _reads_patches(target.their_config)
        own = target.their_config["architectures"][0] in _OF_ANY_SHAPE
        if own or (patches and not has_processor):
            return super().examples(target, source, has_processor)
        preprocessing = source.preprocessing if has_processor else None
        on_pillow = preprocessing and BACKENDS[preprocessing.backend].resize == "pil"
        example = transformers_example(
            target.their_config["architectures"][0],
            source.config,
            has_processor=preprocessing is not None,
            options=', backend="pil"' if on_pillow else "",
            patches=patches,
        )
        if target.text:  # the same with the functions of a class of both encoders
            code = example.code.replace("output = model(", "output = model.get_image_features(")
            ids = f"ids = {blank_text(target)}  # of your tokenizer"
            texts = "texts = model.get_text_features(input_ids=ids).pooler_output"
            lines = ("import torch", f"{code}.pooler_output", ids, texts)
            example = replace(example, code="\n".join(lines))
        return [example]


def normalising(target: Target, preprocessing: Preprocessing | None) -> Target:
    """A model that normalises pixels itself, as the source's project does, or not at all."""
    mean = preprocessing.mean if preprocessing else (0.0,) * 3
    std = preprocessing.std if preprocessing else (1.0,) * 3
    ends = target.table.normalising
    filled = {ends["mean"]: mean, ends["std"]: std}
    assemblies = tuple(
        next((replace(a, fill=n) for end, n in filled.items() if a.target.endswith(end)), a)
        for a in target.plan.assemblies
    )
    their_config = {**target.their_config, "norm_mean": list(mean), "norm_std": list(std)}
    plan = replace(target.plan, assemblies=assemblies)
    return replace(target, plan=plan, their_config=their_config)


def auto_model_opener(directory: Path) -> "Callable[[Tensor], Tensor]":
    """Open a directory of timm's with the wrapper that transformers has for them."""
    from transformers import AutoConfig, AutoModel, AutoModelForImageClassification

    from vitconvert.programs.transformers.running import load_all

    config = AutoConfig.from_pretrained(directory)
    kind = AutoModelForImageClassification if config.num_labels else AutoModel
    model = load_all(kind, directory)
    output = "logits" if config.num_labels else "pooler_output"
    return lambda images: as_tokens(getattr(model(images), output))


def transformers_example(
    kind: str, config: ViTConfig, *, has_processor: bool, options: str = "", patches: bool = False
) -> Example:
    """Code that loads the output with transformers.

    Args:
        kind: The name of the class.
        config: The model's configuration.
        has_processor: Whether transformers can prepare images for it.
        options: Further arguments of AutoImageProcessor.
        patches: Whether the class reads patches, with their mask and grid.
    """
    of_videos = kind.startswith("VJEPA2")
    word = "pixel_values_videos" if of_videos else "pixel_values"
    taken = f"{word}=images[:, None]" if of_videos else f"{word}=images"
    taken = "**images" if patches else taken
    if config.clips:
        imports = ["import torch", f"from transformers import {kind}"]
        channels, frames, *size = config.input_shape
        sizes = ", ".join(map(str, (1, frames, channels, *size)))
        images = [f"clips = torch.zeros({sizes})  # (batch, frames, channels, height, width)"]
        taken = f"{word}=clips"
    elif has_processor:
        read = "" if patches else '["pixel_values"]'
        imports = [f"from transformers import AutoImageProcessor, {kind}"]
        imports.append("from transformers.image_utils import load_image")
        grey = '.convert("L")' if config.in_channels == 1 else ""
        images = [
            f'processor = AutoImageProcessor.from_pretrained("."{options})',
            "# As `pipeline` opens a file. An image of Image.open is neither turned nor made RGB.",
            f'image = load_image("photo.jpg"){grey}',
            f'images = processor(image, return_tensors="pt"){read}',
        ]
    else:
        imports = ["import torch", f"from transformers import {kind}"]
        images = [f"images = {zeros(config)}"]
    model = [f'model = {kind}.from_pretrained(".").eval()', f"output = model({taken})"]
    return Example(
        title='With transformers (from the Hub: `"ORG/REPO"` instead of `"."`)',
        code="\n".join([*imports, "", *images, *model]),
    )


def _reads_patches(their_config: JsonObject) -> bool:
    """Whether the class is SigLIP 2's, which reads patches that its own processor cuts."""
    return bool(their_config["architectures"][0].startswith("Siglip2"))


PROGRAM = Transformers()
