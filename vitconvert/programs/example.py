"""Code that a model card shows, to be run in the output's directory."""

from collections.abc import Mapping
from dataclasses import dataclass

from vitconvert.config import ViTConfig
from vitconvert.formats import written_module
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.target import Target


@dataclass(frozen=True, kw_only=True)
class Example:
    """Python code and its title."""

    title: str
    code: str


def reading_example(target: Target, title: str = "") -> Example:
    """Reads the tensors: no more is known of the program."""
    title = title or f"For {target.table.title}"
    return Example(title=title, code=written_module(target.table.container).EXAMPLE)


def vitconvert_example(
    config: ViTConfig, preprocessing: Preprocessing | None, table: str = ""
) -> Example:
    """Code that loads any output; `table` is the file of a table of the user's own."""
    title = 'With vitconvert (from the Hub: `"hf-hub:ORG/REPO"` instead of `"."`)'
    if table:
        title += f", where your own table {table} is"
        example = vitconvert_example(config, preprocessing)
        code = example.code.replace('(".")', f'(".", table="{table}")')
        return Example(title=title, code=code)
    if preprocessing is None:
        code = (
            'import torch\nimport vitconvert\n\nmodel = vitconvert.load_model(".")\n'
            f"output = model({zeros(config)})"
        )
        return Example(title=title, code=code)
    if config.clips:
        code = (
            'import vitconvert\n\nmodel = vitconvert.load_model(".")\n'
            'preprocessing = vitconvert.load_checkpoint(".").preprocessing\n'
            'clip = preprocessing.clip("frames", model.config.frames)  # a folder of frames\n'
            "output = model(clip[None])"
        )
        return Example(title=title, code=code)
    code = (
        "import vitconvert\nfrom PIL import Image\n\n"
        'model = vitconvert.load_model(".")\n'
        'preprocessing = vitconvert.load_checkpoint(".").preprocessing\n'
        'output = model(preprocessing(Image.open("photo.jpg")).unsqueeze(0))'
    )
    return Example(title=title, code=code)


def class_example(
    title: str, imports: str, name: str, arguments: Mapping[str, object], config: ViTConfig
) -> Example:
    """A class that is built with arguments, each of them Python code, and loads `model.pt`."""
    lines = "\n".join(f"    {argument}={value}," for argument, value in arguments.items())
    code = (
        f"{imports}\n\nmodel = {name}(\n{lines}\n)\n"
        'model.load_state_dict(torch.load("model.pt", weights_only=True))\n'
        f"output = model.eval()({zeros(config)})"
    )
    return Example(title=title, code=code)


def imports_for(preprocessing: Preprocessing | None) -> list[str]:
    """Imports that the images of an example need."""
    return ["from PIL import Image"] if preprocessing else ["import torch"]


def opened_image(config: ViTConfig) -> str:
    """An image of the model's channels."""
    mode = "L" if config.in_channels == 1 else "RGB"
    return f'Image.open("photo.jpg").convert("{mode}")'


def blank_text(target: Target) -> str:
    """A text of ids where nothing says how texts are prepared."""
    length = target.text.plan.sizes["position"] if target.text else 0
    return f"torch.zeros(1, {length}, dtype=torch.long)"


def zeros(config: ViTConfig) -> str:
    """Images, or clips, where nothing says how they are prepared."""
    sizes = ", ".join(map(str, (1, *config.input_shape)))
    return f"torch.zeros({sizes})"
