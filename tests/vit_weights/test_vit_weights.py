"""The page about a ViT's weights is true: of the libraries themselves, and of what is printed."""

import json
import re
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import vitconvert
from tests.packages import open_clip, timm, torchvision, transformers, vit_pytorch
from tests.tables.specimens.google import jeonsworld
from tests.vit_weights.layouts import BASE, LAYOUTS, STEPS, names_of, numerics, tensors
from tests.vit_weights.make_page import (
    INSTALL,
    MEASURED,
    NOTEBOOK,
    PAGE,
    WRITTEN,
    blocks,
    notebook,
    printed,
    with_tables,
)
from vitconvert.facts.plan import plan_writing
from vitconvert.model.layers import ACTIVATION

TEXT = PAGE.read_text(encoding="utf-8")
STALE = "run: python -m tests.vit_weights.make_page"
Shapes = Mapping[str, tuple[int, ...]]


def _shapes(model: nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _lucidrains() -> nn.Module:
    sizes = {"image_size": 224, "patch_size": 16, "num_classes": 1000, "dim": 768, "depth": 12}
    return vit_pytorch.ViT(heads=12, dim_head=64, mlp_dim=3072, **sizes)


def _clip() -> nn.Module:
    vision = {"image_size": 224, "layers": 12, "width": 768, "head_width": 64, "patch_size": 16}
    text = {"context_length": 7, "vocab_size": 40, "width": 64, "heads": 1, "layers": 1}
    return open_clip.model.CLIP(512, vision_cfg=vision, text_cfg=text, quick_gelu=True)


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "timm": lambda: timm.create_model("vit_base_patch16_224"),
    "lucidrains": _lucidrains,
    "torchvision": lambda: torchvision.models.vit_b_16(),
    "CLIP": _clip,
}


@pytest.fixture(scope="module", params=MODELS)
def real(request) -> tuple[str, nn.Module]:
    with torch.device("meta"):
        return request.param, MODELS[request.param]()


def test_names_and_shapes_are_those_of_the_librarys_model(real):
    library, model = real
    found = _shapes(model)
    if library == "CLIP":
        found = {name: shape for name, shape in found.items() if name.startswith("visual.")}
    assert tensors(LAYOUTS[library]) == found


def test_eps_and_gelu_are_those_of_the_librarys_model(real):
    library, model = real
    model = model.visual if library == "CLIP" else model
    eps = {part.eps for part in model.modules() if isinstance(part, nn.LayerNorm)}
    assert eps == {numerics(LAYOUTS[library])["norm_eps"]}
    activations = [part for part in model.modules() if "GELU" in type(part).__name__]
    x = torch.linspace(-3, 3, 99)
    ours = ACTIVATION[numerics(LAYOUTS[library])["activation"]]
    assert activations and all(torch.equal(one(x), ours(x)) for one in activations)


@pytest.mark.slow
def test_names_and_shapes_are_those_of_the_file_that_transformers_writes(tmp_path):
    config = transformers.ViTConfig(num_labels=1000)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert tensors(LAYOUTS["transformers"]) == found
    values = numerics(LAYOUTS["transformers"])
    assert (config.layer_norm_eps, config.hidden_act) == (values["norm_eps"], values["activation"])


@pytest.mark.slow
def test_names_and_axes_are_those_that_timm_reads_of_googles_files(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in tensors(LAYOUTS["Google npz"]).items()
    }
    np.savez(tmp_path / "ViT-B_16.npz", **arrays)
    theirs = timm.create_model("vit_base_patch16_224")
    theirs.load_pretrained(str(tmp_path / "ViT-B_16.npz"))
    ours = vitconvert.load_checkpoint(tmp_path / "ViT-B_16.npz")
    assert "0 ignored" in str(ours.ledger)
    found = vitconvert.load_model(tmp_path / "ViT-B_16.npz").state_dict()
    assert found.keys() == theirs.state_dict().keys()
    assert all(torch.equal(found[n], tensor) for n, tensor in theirs.state_dict().items())


def test_jeonsworlds_names_are_those_of_its_source():
    def first(shapes: Shapes) -> dict[str, int]:
        return {n: len(s) for n, s in shapes.items() if not re.search(r"layer\.[1-9]", n)}

    assert first(tensors(LAYOUTS["jeonsworld"])) == first(jeonsworld())


@pytest.mark.parametrize("library", LAYOUTS)
def test_every_tensor_is_in_one_step(library):
    layout = LAYOUTS[library]
    plan = plan_writing(layout.table, BASE.replace(**layout.differs, depth=1))
    wanted = [one.target for one in plan.assemblies if one.pieces]
    shown = [name for step in STEPS for name in names_of(layout, step)]
    assert sorted(shown) == sorted(wanted)


def test_tables_are_those_of_weights_map():
    assert with_tables(TEXT, WRITTEN) == TEXT, STALE


@pytest.mark.slow
def test_errors_are_those_that_are_measured():
    pytest.importorskip("sklearn")
    assert with_tables(TEXT, MEASURED) == TEXT, STALE


def test_the_notebook_is_the_page():
    assert notebook(TEXT) == NOTEBOOK.read_text(encoding="utf-8"), STALE


def _rounded(outputs: list[str]) -> list[str]:
    """Outputs in which rounding and versions of packages do not count; whole numbers do."""
    return [re.sub(r"\d+\.\d[\d.]*(\+\w+)?(e-\d+)?|\d+e[+-]\d+", "0.0", one) for one in outputs]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the programs that the page calls
def test_the_notebook_prints_what_it_says(tmp_path):
    cells = [c for c in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if "outputs" in c]
    codes = ["".join(cell["source"]) for cell in cells]
    said = ["".join(o["text"]) for cell in cells for o in cell["outputs"]]
    assert codes[0] == INSTALL and len(codes) == 1 + len(blocks(TEXT))
    found = [one for one in printed(codes[1:], tmp_path) if one]
    assert _rounded(found) == _rounded(said), STALE
