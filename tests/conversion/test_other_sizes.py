"""What an output does at other sizes of images, and how far that is from the source's library.

Numbers that a report states are computed again here, each library opened as its users open it.
"""

import json

import numpy as np
import pytest
import torch

import vitconvert
from tests.packages import open_clip, timm, torchvision, transformers
from tests.small_models import SMALL_TIMM, randomise, relative, small_config
from tests.spelling import google_arrays
from vitconvert.cli import main
from vitconvert.conversion.other_sizes import size_to_measure
from vitconvert.errors import as_flags

SIDE = 84
_HF = {
    "image_size": SIDE,
    "patch_size": 7,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "layer_norm_eps": 1e-6,
}
_TIMM = {"img_size": SIDE, "patch_size": 7, "embed_dim": 36, "num_heads": 3, "depth": 3}
RULES = "{} resamples {}positions by {}"


def save_hf(folder, name, **settings):
    """A small model of transformers, as it saves one."""
    kind = getattr(transformers, name)
    if "num_attention_heads" not in settings.get("vision_config", {}):
        settings = _HF | settings
    torch.manual_seed(0)
    randomise(kind(kind.config_class(**settings))).save_pretrained(folder / "source")
    return folder / "source"


def save_timm(folder, name, **arguments):
    """A small model of timm's, as it saves one for the Hub."""
    torch.manual_seed(0)
    model = randomise(timm.create_model(name, **_TIMM | arguments))
    timm.models.save_for_hf(model, folder / "source", model_args=_TIMM | arguments)
    return folder / "source"


def in_transformers(directory, images):
    """What transformers computes of images of any size."""
    config = transformers.AutoConfig.from_pretrained(directory)
    kind = getattr(transformers, config.architectures[0])
    model = kind.from_pretrained(directory).eval()
    needs_no_word = ("Dinov2", "DINOv3")
    word = {} if kind.__name__.startswith(needs_no_word) else {"interpolate_pos_encoding": True}
    if kind.__name__ == "CLIPModel":
        return model.get_image_features(images, **word).pooler_output
    found = model(images, **word)
    kinds = ("logits", "image_embeds", "pooler_output")
    return next(found[kind] for kind in kinds if found.get(kind) is not None)


def in_timm(directory, images):
    """What timm computes, opened for the size of the images."""
    size, channels = tuple(images.shape[-2:]), images.shape[1]
    options = {"pretrained": True, "img_size": size, "in_chans": channels}
    return timm.create_model(f"local-dir:{directory}", **options).eval()(images)


def in_open_clip(directory, images):
    """What open_clip computes of images, opened for their size."""
    size = tuple(images.shape[-2:])
    model = open_clip.create_model(f"local-dir:{directory}", force_image_size=size)
    return model.eval().encode_image(images)


def printed(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    assert end.value.code == 0, capsys.readouterr().err
    return capsys.readouterr().out


def noise(size, channels=3):
    return torch.randn(1, channels, *size, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


MLP = {"intermediate_size": 60}
CLIP = {
    "vision_config": _HF | MLP | {"layer_norm_eps": 1e-5},
    "projection_dim": 9,
    "text_config": {"vocab_size": 60},
}
CLIP["text_config"] |= {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
CLIP["text_config"] |= {"num_attention_heads": 2, "max_position_embeddings": 11}
CLIP["text_config"] |= {"eos_token_id": 59, "bos_token_id": 58}
BEIT = {"use_relative_position_bias": True, "use_absolute_position_embeddings": False}
HF, TIMM = "Hugging Face", "timm VisionTransformer"
# The source, the target, what opens both, and what each of them does.
DIFFERING = {
    "DINOv2 to timm": (
        lambda folder: save_hf(folder, "Dinov2Model", mlp_ratio=2, num_hidden_layers=11),
        ("timm", in_transformers, in_timm),
        (RULES.format(f"{HF} DINOv2", "", "bicubic"), RULES.format(TIMM, "", "bicubic_antialias")),
    ),
    "ViT to timm": (
        lambda folder: save_hf(
            folder, "ViTForImageClassification", **MLP, num_labels=5, num_channels=1
        ),
        ("timm", in_transformers, in_timm),
        (RULES.format(f"{HF} ViT", "", "bicubic"), RULES.format(TIMM, "", "bicubic_antialias")),
    ),
    "timm's ViT to transformers": (
        lambda folder: save_timm(folder, "vit_base_patch16_224", num_classes=7, in_chans=4),
        ("hf", in_timm, in_transformers),
        (RULES.format(TIMM, "", "bicubic_antialias"), RULES.format(f"{HF} ViT", "", "bicubic")),
    ),
    "SigLIP to timm": (
        lambda folder: save_hf(folder, "SiglipVisionModel", **MLP),
        ("timm", in_transformers, in_timm),
        (RULES.format(f"{HF} SigLIP", "", "bicubic"), RULES.format(TIMM, "", "bicubic_antialias")),
    ),
    "CLIP to timm": (
        lambda folder: save_hf(folder, "CLIPVisionModelWithProjection", **MLP, projection_dim=9),
        ("timm", in_transformers, in_timm),
        (RULES.format(f"{HF} CLIP", "", "bicubic"), RULES.format(TIMM, "", "bicubic_antialias")),
    ),
    "CLIP with its texts to open_clip": (
        lambda folder: save_hf(folder, "CLIPModel", **CLIP),
        ("openclip", in_transformers, in_open_clip),
        (RULES.format(f"{HF} CLIP", "", "bicubic"), RULES.format("OpenCLIP", "", "bicubic_anti")),
    ),
    "BEiT to timm": (
        lambda folder: save_hf(
            folder, "BeitForImageClassification", **MLP, **BEIT, num_labels=5, use_mean_pooling=True
        ),
        ("timm", in_transformers, in_timm),
        (
            RULES.format(f"{HF} BEiT", "relative ", "bilinear"),
            RULES.format("timm Eva", "relative ", "geometric"),
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # timm's own, of BEiT's tables
@pytest.mark.parametrize("name", DIFFERING)
def test_what_the_report_says_is_what_both_libraries_compute(name, tmp_path, capsys):
    make, (to, theirs, ours), (source_rule, target_rule) = DIFFERING[name]
    source, output = make(tmp_path), tmp_path / "out"
    report = printed(capsys, "convert", source, "--to", to, "-o", output)
    said = json.loads((output / "vitconvert.json").read_text())["other_sizes"]
    assert said["source"].startswith(source_rule) and said["target"].startswith(target_rule)
    config = vitconvert.load_checkpoint(output).config
    assert said["size"] == [224, 224] and config.image_size == (SIDE, SIDE)

    images = noise(said["size"], config.in_channels)
    apart = relative(ours(output, images), theirs(source, images))
    assert apart > 1e-4
    assert float(f"{apart:.1e}") == pytest.approx(said["relative"], rel=0.03)
    (line,) = (line for line in report.splitlines() if "other image sizes" in line)
    assert line.startswith("note ") and said["target"] in line
    who, _, rule = said["source"].partition(" resamples ")
    assert f", {who} by {rule.rpartition(' by ')[2]} (outputs at 224x224 are" in line
    assert f"at 224x224 are {said['relative']:.1e} apart); for images of another size" in line
    assert len(report.splitlines()) <= 5
    assert (
        line.removeprefix("note").strip().partition(" (and")[0]
        in (output / "README.md").read_text()
    )

    fitted = vitconvert.convert(source, to=to, output=tmp_path / "fitted", image_size=224)
    assert fitted.other_sizes is None and fitted.to_dict()["other_sizes"] is None
    assert relative(ours(tmp_path / "fitted", images), theirs(source, images)) < 2e-5


ALIKE = {
    "DINOv2 with registers to timm": (
        lambda folder: save_hf(folder, "Dinov2WithRegistersModel", mlp_ratio=2),
        ("timm", ["fold-class-position"], in_transformers, in_timm),
    ),
    "DINOv3 to timm": (
        lambda folder: save_hf(
            folder, "DINOv3ViTModel", **MLP, num_register_tokens=4, layer_norm_eps=1e-5
        ),
        ("timm", ["fold-qkv-bias"], in_transformers, in_timm),
    ),
    "EVA-02 in timm": (
        lambda folder: save_timm(folder, "eva02_tiny_patch14_224", num_classes=3),
        ("timm", [], in_timm, in_timm),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALIKE)
def test_nothing_is_said_where_both_libraries_resample_alike(name, tmp_path):
    make, (to, allow, theirs, ours) = ALIKE[name]
    source, output = make(tmp_path), tmp_path / "out"
    conversion = vitconvert.convert(source, to=to, output=output, allow=allow)
    assert vitconvert.plan_conversion(source, to=to, allow=allow).other_sizes is None
    assert conversion.other_sizes is None and "sizes" not in (output / "README.md").read_text()
    images = noise((112, 112))
    assert relative(ours(output, images), theirs(source, images)) < 2e-5


@pytest.mark.slow
def test_torchvisions_function_is_the_source_and_no_target(tmp_path):
    torch.manual_seed(0)
    model = randomise(torchvision.models.VisionTransformer(SIDE, 7, 3, 3, 36, 60, num_classes=5))
    torch.save(model.state_dict(), tmp_path / "vit.pth")
    stated = {"num_heads": 3, "image_size": SIDE}
    conversion = vitconvert.convert(
        tmp_path / "vit.pth", to="timm", output=tmp_path / "out", overrides=stated
    )
    resize = torchvision.models.vision_transformer.interpolate_embeddings
    there = torchvision.models.VisionTransformer(224, 7, 3, 3, 36, 60, num_classes=5)
    there.load_state_dict(resize(224, 7, model.state_dict()))
    apart = relative(in_timm(tmp_path / "out", noise((224, 224))), there.eval()(noise((224, 224))))
    assert conversion.other_sizes.relative == pytest.approx(apart, rel=0.06)
    # By the record, the model keeps torchvision's rule, which timm does not follow.
    again = vitconvert.convert(tmp_path / "out", to="timm", output=tmp_path / "again")
    said = str(again.other_sizes)
    assert "the source by bicubic_align_corners (not measured: " in said
    assert "vitconvert.json states position_resampling, which its layout does not" in said
    for file in ("README.md", "vitconvert.json"):
        (tmp_path / "out" / file).unlink()
    assert vitconvert.plan_conversion(tmp_path / "out", to="torchvision").other_sizes is None


def _timm(folder, name="vit_tiny_patch16_224", **arguments):
    """A model of oblong images in the default run."""
    arguments = SMALL_TIMM | {"img_size": (48, 32)} | arguments
    model = randomise(timm.create_model(name, **arguments))
    timm.models.save_for_hf(model, folder / "source", model_args=arguments)
    return folder / "source"


def test_a_target_that_no_package_computes(tmp_path):
    source = _timm(tmp_path, "deit3_small_patch16_224")
    conversion = vitconvert.convert(source, to="deit3", output=tmp_path / "out")
    said = conversion.other_sizes
    assert said.target == "Meta DeiT III resamples positions by bicubic"
    assert said.source == "timm VisionTransformer resamples positions by bicubic_antialias"
    assert said.relative is None
    assert "not measured: Meta DeiT III: a repository of scripts, not a package" in str(said)
    for file in ("README.md", "vitconvert.json"):
        (tmp_path / "out" / file).unlink()
    stated = {"num_heads": 3, "image_size": (48, 32)}
    back = vitconvert.convert(
        tmp_path / "out", dialect="deit3", to="timm", output=tmp_path / "back", overrides=stated
    )
    assert back.other_sizes.relative is None
    assert "not measured: Meta DeiT III: a repository of scripts" in str(back.other_sizes)


def test_a_plan_and_a_conversion_without_verification_measure_nothing(tmp_path, capsys):
    source = _timm(tmp_path, img_size=48)
    plan = vitconvert.plan_conversion(source, to="hf")
    assert "not measured: nothing was computed); for images of" in str(plan.other_sizes)
    assert plan.to_dict()["other_sizes"]["relative"] is None
    report = printed(capsys, "convert", source, "--to", "hf", "--dry-run")
    assert f"sizes          {as_flags(str(plan.other_sizes))}" in report
    unverified = vitconvert.convert(source, to="hf", output=tmp_path / "out", verify=False)
    assert unverified.other_sizes == plan.other_sizes
    assert vitconvert.plan_conversion(source, to="hf", image_size=64).other_sizes is None
    assert vitconvert.plan_conversion(source, to="timm").other_sizes is None


def test_a_package_that_reads_the_source_by_a_rule_of_its_own(tmp_path):
    """timm reads Google's arrays, and resamples otherwise than Google does."""
    arrays = google_arrays(depth=2, heads=3, width=12, size=48)
    np.savez(tmp_path / "vit.npz", **arrays)
    conversion = vitconvert.convert(
        tmp_path / "vit.npz", to="hf", output=tmp_path / "out", overrides={"activation": "gelu"}
    )
    said = str(conversion.other_sizes)
    assert conversion.parity.ok and "by bilinear_align_corners (not measured: " in said
    assert "no package that is installed fits positions as the source's code does" in said


def test_outputs_that_were_changed_are_not_compared(tmp_path):
    source = _timm(tmp_path, img_size=48)
    for change in ({"num_classes": 3}, {"in_channels": 1}, {"dtype": torch.bfloat16}):
        conversion = vitconvert.convert(
            source, to="hf", output=tmp_path / "out", overwrite=True, **change
        )
        assert "not measured: the outputs were changed on the way" in str(conversion.other_sizes)


def test_a_source_whose_project_nobody_names(tmp_path):
    model = randomise(timm.create_model("vit_tiny_patch16_224", **SMALL_TIMM, img_size=48))
    torch.save(model.state_dict(), tmp_path / "vit.pth")
    stated = {"num_heads": 3, "image_size": 48}
    plan = vitconvert.plan_conversion(tmp_path / "vit.pth", to="hf", overrides=stated)
    assert plan.other_sizes.source == "timm VisionTransformer may do it differently"
    unknown = "no file names the library that it was trained with; "
    unknown += "--set position_resampling=RULE states the rule"
    assert f"not measured: {unknown}" in str(plan.other_sizes)
    known = vitconvert.plan_conversion(
        tmp_path / "vit.pth", to="hf", overrides=stated | {"position_resampling": "bicubic"}
    )
    assert known.other_sizes is None


@pytest.mark.parametrize(
    ("image", "patch", "width", "measured"),
    [
        ((518, 518), 14, 768, (224, 224)),  # DINOv2
        ((518, 518), 14, 384, (224, 224)),
        ((518, 518), 14, 1536, (112, 112)),
        ((224, 224), 16, 384, (384, 384)),
        ((224, 224), 16, 768, (112, 112)),
        ((60, 60), 12, 24, (384, 384)),
        ((65, 65), 13, 24, (130, 130)),
        ((32, 24), 8, 24, (64, 48)),
        ((640, 480), 16, 768, (320, 240)),
    ],
)
def test_the_size_is_a_usual_one_that_is_computed_soon(image, patch, width, measured):
    sizes = {"image_size": image, "patch_size": (patch, patch), "embed_dim": width}
    assert size_to_measure(small_config(**sizes, mlp_dim=4 * width, depth=12)) == measured
