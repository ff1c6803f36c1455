"""open_clip: image towers of CLIP models, its own or timm's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable
from vitconvert.facts.derivation import state
from vitconvert.facts.project_config import look_up, put, written_config
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.steps import departures_of
from vitconvert.programs.example import Example, blank_text, imports_for, reading_example, zeros
from vitconvert.programs.program import CompanionFiles, DescribedModel, Program
from vitconvert.programs.target import Target, fit_target
from vitconvert.programs.timm.architectures import fitting_architecture
from vitconvert.programs.timm.config import BY_ARGUMENTS
from vitconvert.tables.architectures import find_architecture
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vitconvert.programs.program import BothTowers, Preparation
    from vitconvert.programs.reference import Reference


def openclip_config(table: Table, config: ViTConfig) -> dict[str, Any]:
    """The file for an image tower alone: the arguments of `_build_vision_tower` (open_clip 3.3).

    Of a tower of timm's, open_clip passes on the name of an architecture and its pooling.

    Raises:
        NotRepresentable: open_clip has no word for a value, or timm has no architecture that is
            this model by its name alone.
    """
    written = written_config(table, config)
    if table.config_file and table.config_file.architecture:
        put(written, table.config_file.architecture, _trunk(table, config))
    return written


def timm_dialect(table: Table) -> str:
    """The dialect of timm's own files of a tower: the tables are called after it."""
    return table.name.removeprefix("openclip_")


def _trunk(table: Table, config: ViTConfig) -> str:
    """The architecture of a tower, whose projection is open_clip's own."""
    own = builtin_tables()[timm_dialect(table)]
    headless = replace(config, num_classes=0)
    name, arguments = fitting_architecture(own, headless, repooled=config.num_classes > 0)
    sizes = sorted(arguments.keys() - {"global_pool"})
    if sizes or config.in_channels != 3:
        raise NotRepresentable(
            "open_clip builds timm's models by name alone, and none of them has these sizes.",
            evidence={"nearest": name},
            details=[f"{size} would be {arguments[size]}" for size in sizes],
        )
    return name


class OpenClip(Program):
    """open_clip, whose loader wants a text tower too: towers alone are built by its functions."""

    packages = ("open_clip",)

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """With `open_clip_config.json`, unless it is a tower of timm's that has no name.

        Of these, only a plain ViT is known to be of the class whose tensors a dialect spells.
        """
        path = table.config_file.architecture if table.config_file else ""
        try:
            written = openclip_config(table, model.config)
        except NotRepresentable:
            plain = timm_dialect(table) in BY_ARGUMENTS
            if not path or not (plain or table.name == model.dialect):
                raise
            return fit_target(table, model.config)
        row = find_architecture("timm", look_up(written, path)) if path else {}
        named = state(row, "architecture")
        return fit_target(table, model.config, written, named, text=model.text)

    def with_preprocessing(
        self, name: str, config: dict[str, Any], preprocessing: Preprocessing
    ) -> CompanionFiles:
        """The same file says how images are prepared."""
        cfg = preprocessing.to_openclip()
        theirs = Preprocessing.from_openclip(cfg, image_size=preprocessing.image_size)
        departures = departures_of("open_clip", preprocessing, theirs)
        return CompanionFiles(
            files={name: {**config, "preprocess_cfg": cfg}}, departures=departures
        )

    def reference(self, checkpoint: Checkpoint) -> "Reference":
        """The image tower without the text tower."""
        from vitconvert.programs.open_clip.reference import openclip_reference

        return openclip_reference(checkpoint)

    def open_both(self, directory: Path) -> "BothTowers":
        """With `create_model`, by `open_clip_config.json`."""
        from vitconvert.programs.open_clip.reference import open_directory

        return open_directory(directory)

    def texts(self, checkpoint: Checkpoint) -> "Callable[[Tensor], Tensor]":
        """By `open_clip_config.json`."""
        from vitconvert.programs.open_clip.reference import texts_by_config

        return texts_by_config(checkpoint)

    def preparation(self, checkpoint: Checkpoint) -> "Preparation | None":
        """What `image_transform_v2` makes of `preprocess_cfg`."""
        from vitconvert.programs.open_clip.reference import openclip_preparation

        cfg = checkpoint.their_config.get("preprocess_cfg")
        if not isinstance(cfg, dict):
            return None
        return openclip_preparation(cfg, checkpoint.config.image_size)

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """With open_clip's function that builds towers, if `open_clip_config.json` names one."""
        if target.text:
            return [_example_of_both(target, source.config, source.preprocessing)]
        if target.their_config:
            return [_example(target, source.config, source.preprocessing)]
        title = (
            "For open_clip, which builds such towers by the name of one of timm's models, and none "
            "is this one (there is no `open_clip_config.json`)"
        )
        return [reading_example(target, title)]


def _example(target: Target, config: ViTConfig, preprocessing: Preprocessing | None) -> Example:
    imports = ["import json", "from pathlib import Path", "", "import open_clip"]
    build = [
        'config = json.loads(Path("open_clip_config.json").read_text())',
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
        title="With open_clip (there is no text tower; `model.visual` of a whole CLIP takes the "
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
