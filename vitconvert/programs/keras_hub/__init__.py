"""KerasHub: presets, which are directories with the backbone and the task apart."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.conversion.project_config import written_config
from vitconvert.conversion.target import Target, check_place, fit_target
from vitconvert.errors import NotRepresentable
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.example import Example
from vitconvert.programs.program import CompanionFiles, DescribedModel, Opener, Program
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.programs.reference import Reference

_DEPARTURE = "nothing is written of how photographs become the model's input; KerasHub asks for it"


class KerasHub(Program):
    """KerasHub, in the layout of `save_to_preset`."""

    one_file = True

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """With a `task.json` that names the classes of backbone and task."""
        check_place(table, model.config)
        if not (table.config_file and table.config_file.writes):
            raise NotRepresentable(
                f"{table.title} is read, and not written.", evidence={"table": table.file}
            )
        return fit_target(table, model.config, preset_config(table, model.config))

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


def preset_config(table: Table, config: ViTConfig) -> dict[str, Any]:
    """A `task.json`, with the `config.json` of the backbone in it."""
    written = written_config(table, config)
    backbone = written["config"]["backbone"]["config"]
    backbone.pop("image_shape[:2]")  # read so; written with the channels
    backbone["image_shape"] = [*config.image_size, config.in_channels]
    backbone["patch_size"] = list(config.patch_size)
    if not written["config"].get("intermediate_dim"):
        written["config"].pop("intermediate_dim", None)
    return written


def preset_files(their_config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The files of a preset, by name, from its `task.json`; a backbone alone has none."""
    files = {"config.json": their_config["config"]["backbone"]}
    return files | ({"task.json": their_config} if "class_name" in their_config else {})


def open_preset(directory: Path) -> "Callable[[Tensor], Tensor]":
    """Load a preset with the class that it names: images to logits, or to tokens."""
    from vitconvert.programs.keras_hub.reference import load_preset, run

    model = load_preset(directory)
    return lambda images: run(model, images)


PROGRAM = KerasHub()
