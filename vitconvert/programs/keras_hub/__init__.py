"""KerasHub: presets, which are directories with the backbone and the task apart."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.conversion.target import Target, check_place, fit_target
from vitconvert.errors import OtherFunction
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.example import Example
from vitconvert.programs.keras_hub.preset import preset_config, preset_files
from vitconvert.programs.program import CompanionFiles, DescribedModel, Opener, Program
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.programs.both_towers import BothTowers
    from vitconvert.programs.reference import Reference

_DEPARTURE = "nothing is written of how photographs become the model's input; KerasHub asks for it"


class KerasHub(Program):
    """KerasHub, in the layout of `save_to_preset`."""

    one_file = True

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """With files that name the classes of a backbone, and of a task or of both towers."""
        check_place(table, model.config)
        theirs = preset_config(table, model.config)
        target = fit_target(table, model.config, theirs, text=model.text)
        if table.text_towers and target.text is None:
            raise OtherFunction(
                f"{table.title} is a part of a model of both towers: "
                f"{target.left or 'there is no text tower beside this one'}",
                evidence={"table": table.file},
            )
        return target

    def companions(
        self, target: Target, preprocessing: Preprocessing | None, dtypes: Iterable[str]
    ) -> CompanionFiles:
        """`config.json` of the backbone, and `task.json` where there are classes."""
        return CompanionFiles(files=preset_files(target.their_config), departures=(_DEPARTURE,))

    def openers(self, config: ViTConfig) -> Mapping[str, Opener]:
        """The classes that the preset names."""
        return {"keras_hub": open_preset}

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """The class that the tensors are of, which reads them as a preset."""
        from vitconvert.programs.keras_hub.reference import keras_hub_reference

        return keras_hub_reference(checkpoint)

    def open_both(self, directory: Path) -> "BothTowers":
        """The class that the preset names."""
        from vitconvert.programs.keras_hub.reference import both_towers

        return both_towers(directory)

    def texts(self, checkpoint: Checkpoint) -> "Callable[[Tensor], Tensor]":
        """The class of both towers."""
        from vitconvert.programs.keras_hub.reference import own_model, run_texts

        model = own_model(checkpoint)
        return lambda ids: run_texts(model, ids)

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """With the class for tasks, or for backbones."""
        config = source.config
        kind = "ImageClassifier" if config.num_classes else "Backbone"
        height, width = config.image_size
        code = (
            "import keras_hub\nimport numpy\n\n"
            f'model = keras_hub.models.{kind}.from_preset(".")\n'
            f"images = numpy.zeros((1, {height}, {width}, {config.in_channels}))\n"
            "output = model.predict(images)"
        )
        return [Example(title="With KerasHub, on JAX, PyTorch or TensorFlow", code=code)]


def open_preset(directory: Path) -> "Callable[[Tensor], Tensor]":
    """Load a preset with the class that it names: images to logits, or to tokens."""
    from vitconvert.programs.keras_hub.reference import load_preset, run

    model = load_preset(directory)
    return lambda images: run(model, images)


PROGRAM = KerasHub()
