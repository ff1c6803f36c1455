"""The JSON files of a KerasHub preset, each of which names a class."""

from collections.abc import Mapping
from typing import Any


def preset_files(their_config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The files of a preset, by name; a backbone alone has no `task.json`."""
    backbone = their_config["config"].get("backbone", their_config)
    has_task = backbone is not their_config and "class_name" in their_config
    return {"config.json": backbone} | ({"task.json": their_config} if has_task else {})


def image_converter(backbone: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The `image_converter.json` beside the `config.json` of a backbone."""
    return _beside(backbone, "image_converter", "ImageConverter", arguments)


def tokenizer_config(backbone: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The `tokenizer.json` beside the `config.json` of a backbone; its assets are elsewhere."""
    return _beside(backbone, "tokenizer", "Tokenizer", arguments)


def with_preprocessor(task: Mapping[str, Any], converter: Mapping[str, Any]) -> dict[str, Any]:
    """A `task.json` whose class prepares images itself."""
    arguments = {"image_converter": converter, "config_file": "preprocessor.json"}
    name = "image_classifier_preprocessor", "ImageClassifierPreprocessor"
    preprocessor = _beside(task["config"]["backbone"], *name, arguments)
    return {**task, "config": {**task["config"], "preprocessor": preprocessor}}


def _beside(
    backbone: Mapping[str, Any], module: str, kind: str, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Another class for the model of a backbone: KerasHub names them all alike."""
    name = backbone["class_name"].removesuffix("Backbone") + kind
    return {
        "module": backbone["module"].removesuffix("backbone") + module,
        "class_name": name,
        "config": dict(config),
        "registered_name": f"keras_hub>{name}",
    }
