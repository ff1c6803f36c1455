"""equimo: ViTs in JAX and Equinox, whose files are leaves, and the arguments of their class."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonDict, write_json
from vitconvert.facts.project_config import written_config
from vitconvert.formats import written_module
from vitconvert.formats.content import content_of
from vitconvert.formats.equinox import DEFAULTS, METADATA
from vitconvert.formats.format_modules import Surroundings
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.example import Example
from vitconvert.programs.program import CompanionFiles, DescribedModel, Foreign, Opener, Program
from vitconvert.programs.reference import Reference, own_tensors, package
from vitconvert.programs.target import Target, check_place, fit_target
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    from torch import Tensor

# equimo/io.py has no place for it.
_NO_IMAGES = "no file of equimo states how images become the model's input"


class Equimo(Program):
    """equimo's VisionTransformer, in the layout of `save_model` without compression."""

    one_file = True
    packages = ("equimo",)

    def fit(self, table: Table, model: DescribedModel) -> Target:
        """With the arguments of the class."""
        check_place(table, model.config)
        written = {**DEFAULTS, **written_config(table, model.config)}
        return fit_target(table, model.config, _with_ratio(written, model.config))

    def companions(
        self, target: Target, preprocessing: Preprocessing | None, dtypes: Iterable[str]
    ) -> CompanionFiles:
        """`metadata.json`, of which the file of leaves is of no use without."""
        within = dict(target.their_config)
        arguments = {name: value for name, value in within.items() if name != "depth"}
        arguments["depths"] = [within["depth"]]
        metadata = {"model_config": arguments, "equimo_version": "1.1.0"}
        return CompanionFiles(files={METADATA: metadata}, within=within, departures=(_NO_IMAGES,))

    def openers(self, config: ViTConfig) -> Mapping[str, Opener]:
        """equimo's own reader."""

        def opened(directory: Path) -> "Callable[[Tensor], Tensor]":
            return partial(_run, _loaded(directory))

        return {"equimo": opened}

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """The class, which reads the checkpoint's own tensors as files that are written for it."""
        from torch import nn

        equimo = package("equimo", install="equimo")
        table = checkpoint.table
        target = self.fit(table, DescribedModel(config=checkpoint.config))
        companions = self.companions(target, None, ())
        tensors = {name: content_of(name, t) for name, t in own_tensors(checkpoint).items()}
        with TemporaryDirectory() as folder:
            path = Path(folder, "weights.eqx")
            said = Surroundings(config=companions.within)
            written_module("equinox").write_file(path, tensors, said)
            write_json(Path(folder, METADATA), companions.files[METADATA])
            model = _loaded(Path(folder))
        return Reference(
            name=f"equimo {equimo.__version__} VisionTransformer",
            model=nn.Identity(),  # stands for the model, which is not PyTorch's
            taps={},
            run=lambda _, images: _run(model, images),
            dtypes=("float32",),
            told=("num_heads", "image_size"),
        )

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """equimo's reader, and one image."""
        shape = (source.config.in_channels, *source.config.image_size)
        code = f"""\
import jax
from equimo.io import load_model
from pathlib import Path

model = load_model("vit", path=Path("."))
output = model(jax.numpy.zeros({shape}), inference=True)"""
        return [Example(title="With equimo, on JAX", code=code)]


def _with_ratio(written: JsonDict, config: ViTConfig) -> JsonDict:
    """With a ratio that makes the hidden width, of which the class takes the whole part."""
    wanted = config.mlp_dim
    if written["ffn_layer"] != "mlp":  # 2 / 3 of what is asked for, and a multiple of 8
        written["ffn_kwargs"] = {"align_to": 1}
        wanted = -(-wanted * 3 // 2)
    return {**written, "mlp_ratio": (wanted + 0.25) / config.embed_dim}


def _loaded(directory: Path) -> Foreign:
    from importlib import import_module

    return import_module("equimo.io").load_model("vit", path=directory)


def _run(model: Foreign, images: "Tensor") -> "Tensor":
    """Images are as ours, (B, C, H, W); the class takes one."""
    import jax
    import numpy as np
    import torch

    run = jax.vmap(partial(model, inference=True))
    return torch.from_numpy(np.array(run(jax.numpy.asarray(images.numpy()))))


PROGRAM = Equimo()
