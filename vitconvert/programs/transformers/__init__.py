"""transformers: one class for each model type, built by its `config.json`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.conversion.project_config import written_config
from vitconvert.conversion.target import Target, check_place, fit_target
from vitconvert.errors import NotRepresentable
from vitconvert.labels import Labels
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.departures import departures_of
from vitconvert.preprocessing.stated import in_the_model, normalised_within
from vitconvert.programs.example import Example, photograph, zeros
from vitconvert.programs.program import CompanionFiles, DescribedModel, Opener, Program
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.programs.preparation import Preparation
    from vitconvert.programs.reference import Reference


class Transformers(Program):
    """transformers, in the layout of `save_pretrained`."""

    packages: ClassVar[tuple[str, ...]] = ("transformers",)

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """With a `config.json` that names the class, in the keys that the table maps."""
        check_place(table, model.config)
        written = written_config(table, model.config)
        if not written.get("architectures"):
            raise NotRepresentable(
                f"{table.title} has no class that computes this.", evidence={"table": table.file}
            )
        # CLIP's projection is a head without labels.
        if "ForImageClassification" in written["architectures"][0]:
            written |= _labels(model.config, model.labels)
        return fit_target(table, model.config, written)

    def companions(
        self, target: Target, preprocessing: Preprocessing | None, dtypes: Iterable[str]
    ) -> CompanionFiles:
        """The `config.json` says the dtype too."""
        found = {name for name in dtypes if "float" in name}
        dtype = found.pop() if len(found) == 1 else "float32"
        stated = replace(target, their_config={**target.their_config, "dtype": dtype})
        if preprocessing is None or not in_the_model(target.table):
            return super().companions(stated, preprocessing, dtypes)
        left = normalised_within(preprocessing, target.table)
        if left is not None:
            return super().companions(stated, left, dtypes)
        why = "preprocessor_config.json is left out: this class normalises with other numbers"
        return replace(super().companions(stated, None, dtypes), departures=(why,))

    def with_preprocessing(
        self, name: str, config: dict[str, Any], preprocessing: Preprocessing
    ) -> CompanionFiles:
        """Photographs have a file of their own."""
        processor, departures = _processor(preprocessing, patches=_reads_patches(config))
        if processor is None:
            return CompanionFiles(files={name: config}, departures=departures)
        files = {name: config, "preprocessor_config.json": processor}
        return CompanionFiles(files=files, departures=departures)

    def openers(self, config: ViTConfig) -> Mapping[str, Opener]:
        """The class that `config.json` names."""
        return {"transformers": _open_named_class}

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """The class that the tensors are of."""
        from vitconvert.programs.transformers.reference import transformers_reference

        return transformers_reference(checkpoint)

    def preparation(self, checkpoint: Checkpoint) -> "Preparation | None":
        """The processor that `preprocessor_config.json` names."""
        from vitconvert.programs.transformers.preparation import transformers_preparation

        stated = checkpoint.companions.preprocessor
        if stated is None:
            return None
        model_type = checkpoint.their_config.get("model_type")
        return transformers_preparation(stated, model_type, checkpoint.config.image_size)

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """With the class that `config.json` names."""
        patches = _reads_patches(target.their_config)
        if patches and not has_processor:
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
        return [example]


def auto_model_opener(directory: Path) -> "Callable[[Tensor], Tensor]":
    """Open a directory of timm's with the wrapper that transformers has for them."""
    from transformers import AutoConfig, AutoModel, AutoModelForImageClassification

    config = AutoConfig.from_pretrained(directory)
    kind = AutoModelForImageClassification if config.num_labels else AutoModel
    model = _load_all(kind, directory)
    output = "logits" if config.num_labels else "pooler_output"
    return lambda images: getattr(model(images), output)


def _open_named_class(directory: Path) -> "Callable[[Tensor], Tensor]":
    import transformers

    from vitconvert.programs.transformers.reference import run, take_normalised

    config = transformers.AutoConfig.from_pretrained(directory)
    model = _load_all(getattr(transformers, config.architectures[0]), directory)
    take_normalised(model)
    return lambda images: run(model, images)


def _load_all(kind: Any, directory: Path) -> Any:
    """A model whose every weight is in the file; transformers would draw what is missing."""
    model, problems = kind.from_pretrained(directory, dtype="float32", output_loading_info=True)
    found = [
        f"{problem}: {', '.join(sorted(map(str, names)))}"
        for problem, names in problems.items()
        if names
    ]
    if found:
        raise ValueError("; ".join(found))
    return model.eval()


def transformers_example(
    kind: str, config: ViTConfig, *, has_processor: bool, options: str = "", patches: bool = False
) -> Example:
    """Code that loads the output with transformers.

    Args:
        kind: The name of the class.
        config: The model's configuration.
        has_processor: Whether transformers can prepare photographs for it.
        options: Further arguments of AutoImageProcessor.
        patches: Whether the class reads patches, with their mask and grid.
    """
    if has_processor:
        read = "" if patches else '["pixel_values"]'
        imports = ["from PIL import Image", f"from transformers import AutoImageProcessor, {kind}"]
        images = [
            f'processor = AutoImageProcessor.from_pretrained("."{options})',
            f'images = processor({photograph(config)}, return_tensors="pt"){read}',
        ]
    else:
        imports = ["import torch", f"from transformers import {kind}"]
        images = [f"images = {zeros(config)}"]
    model = [
        f'model = {kind}.from_pretrained(".").eval()',
        f"output = model({'**images' if patches else 'pixel_values=images'})",
    ]
    return Example(
        title='With transformers (from the Hub: `"ORG/REPO"` instead of `"."`)',
        code="\n".join([*imports, "", *images, *model]),
    )


def _labels(config: ViTConfig, labels: Labels | None) -> dict[str, Any]:
    names = labels or [f"LABEL_{index}" for index in range(config.num_classes)]
    return {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
        "num_labels": config.num_classes,
    }


def _reads_patches(their_config: Mapping[str, Any]) -> bool:
    """Whether the class is SigLIP 2's, which reads patches that its own processor cuts."""
    return bool(their_config["architectures"][0].startswith("Siglip2"))


def _processor(
    source: Preprocessing, *, patches: bool
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The `preprocessor_config.json`, or None, and what departs from the source."""
    if patches != (source.resize == "patches"):
        reason = (
            "this class keeps the aspect ratio of photographs, and the source does not"
            if patches
            else "the source keeps the aspect ratio of photographs, and this class does not"
        )
        return None, (f"preprocessor_config.json is left out: {reason}",)
    try:
        processor = source.to_huggingface()
    except NotRepresentable as error:
        return None, (f"preprocessor_config.json is left out: {error.fact}",)
    theirs = Preprocessing.from_huggingface(processor, image_size=source.image_size)
    departures = departures_of("transformers", source, theirs)
    if departures and BACKENDS[source.backend].resize == "pil":
        # The file cannot choose it.
        advice = 'transformers resizes Pillow images with AutoImageProcessor(..., backend="pil")'
        departures = (*departures, advice)
    return processor, departures


PROGRAM = Transformers()
