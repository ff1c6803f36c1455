"""The card of an output is one for the Hub, tells the truth, and its code runs."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard, metadata_load
from PIL import Image

import vitconvert
from tests.conversion.conftest import fill
from tests.hub_server import HubServer, use_hub
from tests.huggingface.classes import CLASSES
from tests.packages import timm, vit_pytorch
from tests.sampling import sampled
from tests.small_models import SMALL_TIMM as SMALL
from tests.spelling import google_arrays


def _card(directory):
    """The text of a card, after the Hub's library found no fault with its metadata."""
    text = (directory / "README.md").read_text()
    card = ModelCard(text, ignore_metadata_errors=False)
    assert card.data.to_dict() == metadata_load(directory / "README.md")
    return text


def _run(text, directory, monkeypatch):
    """Run every example of a card in its directory; what each of them computed."""
    monkeypatch.chdir(directory)
    pixels = np.random.default_rng(0).integers(0, 256, (61, 75, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("photo.jpg")
    outputs = []
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        scope: dict[str, object] = {}
        with torch.inference_mode():
            exec(compile(block, "README.md", "exec"), scope)
        outputs.append(scope.get("output"))
    return [getattr(output, "logits", output) for output in outputs]


def _close(one, other):
    """Equal but for the order of sums, which depends on where in memory weights lie."""
    return torch.allclose(one, other, rtol=0, atol=float(2e-5 * other.abs().max()))


def test_a_whole_card(timm_directory, tmp_path, monkeypatch):
    source = timm_directory(**SMALL, img_size=(48, 32))
    conversion = vitconvert.convert(source, to="timm", output=tmp_path / "out", image_size=(32, 64))
    text = _card(tmp_path / "out")
    sha256 = json.loads((tmp_path / "out" / "vitconvert.json").read_text())["source"]["sha256"]
    assert text.partition("\n## Use\n")[0] == (
        "---\n"
        'license: "apache-2.0"\n'
        'library_name: "timm"\n'
        'pipeline_tag: "image-classification"\n'
        "tags:\n"
        '- "timm"\n'
        '- "transformers"\n'
        '- "vitconvert"\n'
        '- "vision-transformer"\n'
        "---\n"
        "\n"
        "# `timm-model`\n"
        "\n"
        "A Vision Transformer in the layout of timm VisionTransformer (plain, distilled, hybrid), "
        f"written by vitconvert {vitconvert.__version__}.\n"
        "`vitconvert.json` has everything below, and more, for programs.\n"
        "\n"
        "## Model\n"
        "\n"
        "| | |\n"
        "|---|---|\n"
        "| architecture | `vit_tiny_patch16_224` |\n"
        "| parameters | 36,877, float32 |\n"
        "| blocks | 2, of width 30, 3 heads of 10, MLPs of 45 |\n"
        "| images | 32x64 pixels, 3 channels, patches of 16x16 |\n"
        "| arithmetic | gelu, layer norms with eps 1e-06 |\n"
        "| pooling | token |\n"
        "| output | 7 classes |\n"
        "| preprocessing | the EXIF orientation ignored; transparency dropped; "
        "covering 35x71 (bicubic), middle 32x64, over 255, "
        "mean 0.5, 0.5, 0.5, std 0.5, 0.5, 0.5 |\n"
        "\n"
        "## Source\n"
        "\n"
        "```text\n"
        "dialect  timm\n"
        f"sha256   {sha256['config.json']}  config.json\n"
        f"sha256   {sha256['model.safetensors']}  model.safetensors\n"
        "```\n"
        "\n"
        "## Assumed, changed, ignored\n"
        "\n"
        "```text\n"
        "tensors  32 read, 32 used, 0 ignored\n"
        "assumed  position_resampling bicubic_antialias (weights_map/timm.toml)\n"
        "assumed  stem_style timm (weights_map/timm.toml)\n"
        "changed  positions resampled from 3x2 to 2x4 patches (bicubic_antialias)\n"
        "```\n"
        "\n"
        "## Parity\n"
        "\n"
        "```text\n"
        f"function   {vitconvert.load_checkpoint(conversion.output).function_hash}\n"
        "parity     the source, before it was changed: "
        + conversion.parity.summary().replace("\n", "\n           ")
        + "\n"
        "opened by  timm: the output, bit-equal to the changed model\n"
        "opened by  transformers: the output, bit-equal to the changed model\n"
        "```\n"
    )
    parameters = timm.create_model("vit_tiny_patch16_224", img_size=(32, 64), **SMALL).parameters()
    assert sum(parameter.numel() for parameter in parameters) == 36877
    theirs, wrapped, ours = _run(text, tmp_path / "out", monkeypatch)
    assert _close(theirs, ours) and _close(wrapped, ours)


@pytest.mark.parametrize(
    "settings",
    [{}, {"img_size": 48, "in_chans": 1}, {"img_size": 32, "in_chans": 4}, {"num_classes": 0}],
    ids=str,
)
@pytest.mark.parametrize("to", ["timm", "hf"])
def test_examples_of_timm_and_transformers_run(settings, to, timm_directory, tmp_path, monkeypatch):
    source = timm_directory(**SMALL | settings)
    vitconvert.convert(source, to=to, output=tmp_path / "out", verify=False)
    text = _card(tmp_path / "out")
    outputs = _run(text, tmp_path / "out", monkeypatch)
    assert len(outputs) == {"timm": 3, "hf": 2}[to]
    if settings.get("num_classes") != 0:
        assert "image-classification" in text
        assert all(_close(output, outputs[-1]) for output in outputs)
    else:
        assert "image-feature-extraction" in text


def test_examples_without_a_processor(timm_directory, tmp_path, monkeypatch):
    source = timm_directory(**SMALL, img_size=(48, 32))  # a crop that transformers cannot say
    vitconvert.convert(source, to="hf", output=tmp_path / "out", verify=False)
    text = _card(tmp_path / "out")
    assert "images  preprocessor_config.json is left out: transformers cannot express" in text
    theirs, ours = _run(text, tmp_path / "out", monkeypatch)
    assert theirs.shape == ours.shape


@pytest.mark.parametrize(
    ("name", "classifies"), [("ViTModel", False), ("DeiTForImageClassificationWithTeacher", True)]
)
def test_classes_of_transformers(name, classifies, huggingface_directory, tmp_path, monkeypatch):
    source = huggingface_directory(name)
    vitconvert.convert(source, output=tmp_path / "out", verify=False)
    text = _card(tmp_path / "out")
    assert f"| architecture | `{name}` |" in text
    assert "license" not in text
    assert metadata_load(tmp_path / "out" / "README.md") == {
        "library_name": "transformers",
        "pipeline_tag": f"image-{'classification' if classifies else 'feature-extraction'}",
        "tags": ["transformers", "vitconvert", "vision-transformer"],
    }
    assert len(_run(text, tmp_path / "out", monkeypatch)) == 2


@pytest.mark.parametrize("name", sampled(CLASSES, 4))
def test_every_class_of_transformers(name, tmp_path, monkeypatch):
    CLASSES[name].model().save_pretrained(tmp_path / "theirs")
    vitconvert.convert(tmp_path / "theirs", to="hf", output=tmp_path / "out", verify=False)
    first, ours = _run(_card(tmp_path / "out"), tmp_path / "out", monkeypatch)
    if first is None:  # of SigLIP 2, the tensors are loaded
        assert name.startswith("SigLIP 2")
    elif isinstance(first, torch.Tensor):
        assert _close(first, ours)


def test_torchvision(timm_directory, tmp_path, monkeypatch):
    vitconvert.convert(timm_directory(**SMALL), to="torchvision", output=tmp_path / "out")
    text = _card(tmp_path / "out")
    assert metadata_load(tmp_path / "out" / "README.md")["library_name"] == "vitconvert"
    theirs, _ = _run(text, tmp_path / "out", monkeypatch)
    assert torch.equal(theirs, vitconvert.load_model(tmp_path / "out")(torch.zeros(1, 3, 224, 224)))


@pytest.mark.parametrize(
    ("kind", "dialect"),
    [("ViT", "lucidrains"), ("SimpleViT", "lucidrains_simple")],
)
def test_lucidrains(kind, dialect, tmp_path, monkeypatch):
    sizes = {"image_size": (32, 48), "patch_size": (8, 16), "num_classes": 5, "dim": 36}
    model = getattr(vit_pytorch, kind)(
        **sizes, depth=2, heads=3, mlp_dim=40, dim_head=20, channels=1
    )
    torch.save(fill(model).state_dict(), tmp_path / "vit.pt")
    overrides = {"num_heads": 3, "in_channels": 1, "patch_size": (8, 16), "image_size": (32, 48)}
    output = tmp_path / "out"
    vitconvert.convert(
        tmp_path / "vit.pt", to=dialect, output=output, overrides=overrides, verify=False
    )
    theirs, ours = _run(_card(output), output, monkeypatch)
    with torch.inference_mode():
        assert torch.equal(theirs, model(torch.zeros(1, 1, 32, 48)))
    assert ours.shape == theirs.shape


@pytest.mark.parametrize("to", ["jax", "jeonsworld"])
def test_other_layouts_at_least_open(to, tmp_path, monkeypatch):
    arrays = google_arrays(depth=2, heads=3, width=36, size=32)
    np.savez(tmp_path / "vit.npz", **arrays)
    overrides = {"activation": "gelu"} if to == "jeonsworld" else {}
    vitconvert.convert(
        tmp_path / "vit.npz", to=to, output=tmp_path / "out", overrides=overrides, verify=False
    )
    text = _card(tmp_path / "out")
    assert "# `vit.npz`\n" in text
    assert len(_run(text, tmp_path / "out", monkeypatch)) == 2


def test_a_repository_is_the_base_model(timm_directory, tmp_path, monkeypatch):
    directory = timm_directory(**SMALL)
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    with HubServer({"org/vit": files}) as server:
        use_hub(monkeypatch, server, tmp_path)
        vitconvert.convert("hf:org/vit", output=tmp_path / "out", verify=False)
    text = _card(tmp_path / "out")
    assert metadata_load(tmp_path / "out" / "README.md")["base_model"] == "org/vit"
    assert f"repository    org/vit\nrevision      {server.branches['org/vit']['main']}\n" in text
    assert "as published  config.json\nas published  model.safetensors\n" in text
    assert "# `org/vit`\n" in text


@pytest.mark.parametrize(
    ("stated", "written"),
    [
        ("MIT", {"license": "mit"}),
        ("dinov3-license", {"license": "other", "license_name": "dinov3-license"}),
        ('"\n---\nevil: yes', {}),
        (None, {}),
        (["mit"], {}),
    ],
)
def test_licences(stated, written, timm_directory, tmp_path):
    source = timm_directory(**SMALL)
    config = json.loads((source / "config.json").read_text())
    config["pretrained_cfg"]["license"] = stated
    (source / "config.json").write_text(json.dumps(config))
    vitconvert.convert(source, output=tmp_path / "out", verify=False)
    metadata = metadata_load(tmp_path / "out" / "README.md")
    assert {k: v for k, v in metadata.items() if k.startswith("license")} == written


def test_names_cannot_break_out_of_their_place(timm_directory, tmp_path):
    bad = tmp_path / "a`<b>|\n---\n```x"
    shutil.copytree(timm_directory(**SMALL), bad)
    vitconvert.convert(bad, output=tmp_path / "out", verify=False)
    text = _card(tmp_path / "out")
    assert "# `a''b''\\n---\\n'''x`\n" in text
    assert str(tmp_path) not in text
