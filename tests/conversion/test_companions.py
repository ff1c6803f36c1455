"""The photographs of an output are those of its source, or the report says what is otherwise."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

import vitconvert
from tests.conversion.conftest import fill
from tests.conversion.test_opening import openclip_directory
from tests.hub_server import HubServer, use_hub
from tests.packages import open_clip, timm, transformers
from tests.preprocessing.test_timm import awkward_files
from tests.small_models import SMALL_TIMM as SMALL
from vitconvert.cli.convert import conversion_report
from vitconvert.errors import ConflictingFact
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.program import UNKNOWN

KEYED = "transformers puts images with one transparent colour (GIF, PNG) on white"
SIZES = [(101, 57), (517, 333), (331, 250), (64, 203), (61, 45)]  # width, height


@pytest.fixture(scope="module")
def photographs():
    """Noise over a ramp, of odd sizes."""
    made = []
    for width, height in SIZES:
        generator = torch.Generator().manual_seed(width)
        noise = torch.randint(0, 160, (height, width, 3), generator=generator)
        ramp = torch.arange(width)[None, :, None] * 90 // width
        made.append(Image.fromarray((noise + ramp).to(torch.uint8).numpy()))
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Greys, palettes, transparency, CMYK, 16 bits and a camera held upright."""
    return awkward_files(tmp_path_factory.mktemp("files"), _noise)


def _noise(width, height, channels=3):
    generator = torch.Generator().manual_seed(width)
    noise = torch.randint(0, 256, (height, width, 3)[: 2 + channels // 3], generator=generator)
    return Image.fromarray(noise.to(torch.uint8).numpy())


def _opened(path, load):
    with Image.open(path) as image:
        return load(image)


def _rgb(image):
    """As timm opens a file."""
    return image.convert("RGB")


def _pixels(processor, image):
    return processor(image, return_tensors="pt")["pixel_values"][0]


def _timm_source(timm_directory, size, **cfg):
    directory = timm_directory(**SMALL, img_size=size)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["pretrained_cfg"] |= cfg
    path.write_text(json.dumps(config))
    return directory


def _timm_transform(directory):
    model = timm.create_model(f"local-dir:{directory}", pretrained=False)
    return timm.data.create_transform(
        **timm.data.resolve_model_data_config(model), is_training=False
    )


CFGS = [
    {"crop_pct": 0.9, "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3},
    {"crop_pct": 0.95, "interpolation": "bilinear"},
    {"crop_pct": 1.0, "interpolation": "bicubic"},
    {"crop_pct": 0.85, "crop_mode": "squash", "interpolation": "bilinear"},
    {"crop_pct": 0.9, "crop_mode": "border", "interpolation": "bicubic"},
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
@pytest.mark.parametrize("size", [48, (48, 32)], ids=str)
@pytest.mark.parametrize("cfg", CFGS, ids=lambda cfg: " ".join(map(str, cfg.values()))[:20])
def test_timm_and_transformers_make_the_images_of_a_timm_model(
    cfg, size, timm_directory, tmp_path, photographs, files
):
    source = _timm_source(timm_directory, size, **cfg)
    conversion = vitconvert.convert(source, output=tmp_path / "out", verify=False)
    assert conversion.departures == ()
    assert not (tmp_path / "out" / "preprocessor_config.json").exists()  # timm's config says it
    wanted, written = _timm_transform(source), _timm_transform(tmp_path / "out")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out")
    ours = vitconvert.load_checkpoint(tmp_path / "out").preprocessing
    for image in (*photographs, *(_opened(path, _rgb) for path in files)):
        assert torch.equal(written(image), wanted(image))
        assert torch.equal(_pixels(processor, image), wanted(image))
        assert torch.equal(ours(image), wanted(image))


def test_from_the_hub_too(timm_directory, tmp_path, monkeypatch, photographs):
    source = _timm_source(timm_directory, 48, crop_pct=0.95, interpolation="bilinear")
    vitconvert.convert(source, output=tmp_path / "out", verify=False)
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with HubServer({"org/vit": files}) as server:
        use_hub(monkeypatch, server, tmp_path)
        processor = transformers.AutoImageProcessor.from_pretrained("org/vit")
    wanted = _timm_transform(source)
    assert all(torch.equal(_pixels(processor, i), wanted(i)) for i in photographs)


def test_a_timm_crop_in_the_layout_of_transformers_departs_as_said(
    timm_directory, tmp_path, photographs
):
    source = _timm_source(timm_directory, 48, crop_pct=0.9)
    conversion = vitconvert.convert(source, to="hf", output=tmp_path / "out", verify=False)
    assert conversion.departures == (
        "transformers resizes uint8 tensors, not Pillow images",
        "transformers shifts the crop by one pixel where it cuts 3, 7, 11, ... rows or columns",
        "transformers applies the EXIF orientation",
        KEYED,
        'to resize as the source does, use AutoImageProcessor(..., backend="pil")',
    )
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out", backend="pil")
    wanted = _timm_transform(source)
    apart = []
    for image in photographs:
        cut = (53 * side // min(image.size) - 48 for side in image.size)
        odd = any(pixels % 4 == 3 for pixels in cut)  # half a pixel: to even there, down here
        apart.append(odd)
        assert odd or torch.equal(_pixels(processor, image), wanted(image)), image.size
    assert not all(apart)


@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
def test_open_clips_images_in_the_layout_of_transformers_depart_as_said(
    tmp_path, photographs, files
):
    source = openclip_directory(tmp_path / "source")
    conversion = vitconvert.convert(source, to="hf", output=tmp_path / "out", verify=False)
    assert conversion.departures == (
        "transformers resizes uint8 tensors, not Pillow images",
        "transformers shifts the crop by one pixel where it cuts 3, 7, 11, ... rows or columns",
        "transformers applies the EXIF orientation",
        "transformers converts images that are neither grey nor RGB before resizing",
        KEYED,
        'to resize as the source does, use AutoImageProcessor(..., backend="pil")',
    )
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out", backend="pil")
    transform = open_clip.transform.image_transform_v2(
        open_clip.transform.PreprocessCfg(size=24), is_train=False
    )
    grey, palette = (
        _opened(path, Image.Image.copy) for path in files if path.stem in ("grey", "palette")
    )
    for image in (*photographs, grey):
        cut = 24 * max(image.size) // min(image.size) - 24
        odd = cut % 4 == 3  # half a pixel: to even there, down here
        assert torch.equal(_pixels(processor, image), transform(image)) or odd, image.size
    assert not torch.equal(_pixels(processor, palette), transform(palette))


@pytest.mark.parametrize("cfg", [{"crop_mode": "border"}, {"interpolation": "box"}], ids=str)
def test_what_transformers_cannot_say_is_left_out_and_said(cfg, timm_directory, tmp_path):
    source = _timm_source(timm_directory, 48, crop_pct=0.9, **cfg)
    conversion = vitconvert.convert(source, to="hf", output=tmp_path / "out", verify=False)
    resize, filter_ = cfg.get("crop_mode", "shortest"), cfg.get("interpolation", "bicubic")
    assert conversion.departures == (
        "preprocessor_config.json is left out: "
        f"transformers cannot express this resizing: {resize} with {filter_}.",
    )
    assert not (tmp_path / "out" / "preprocessor_config.json").exists()
    record = json.loads((tmp_path / "out" / "vitconvert.json").read_text())
    assert record["departures"] == list(conversion.departures)


PROCESSORS = {
    "ViTImageProcessor": {"size": {"height": 48, "width": 48}},
    "DeiTImageProcessor": {"size": {"height": 57, "width": 53}, "crop_size": 48},
    "BeitImageProcessor": {"size": {"height": 48, "width": 48}, "do_center_crop": False},
    "BitImageProcessor": {"size": {"shortest_edge": 53}, "crop_size": 48},
    "CLIPImageProcessor": {"size": {"shortest_edge": 48}, "crop_size": 48},
    "SiglipImageProcessor": {"size": {"height": 48, "width": 48}, "resample": 3},
    "DINOv3ViTImageProcessor": {"size": {"height": 48, "width": 48}},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
@pytest.mark.parametrize("to", ["hf", "timm"])
@pytest.mark.parametrize("name", PROCESSORS)
def test_transformers_makes_the_images_of_its_own_processors(
    name, to, huggingface_directory, tmp_path, photographs, files
):
    source = huggingface_directory(image_size=48, layer_norm_eps=1e-6)
    stated = {"image_processor_type": name, **PROCESSORS[name]}
    (source / "preprocessor_config.json").write_text(json.dumps(stated))
    if name == "DeiTImageProcessor" and to == "timm":  # which timm could not say
        stated["size"] = {"height": 57, "width": 57}
        (source / "preprocessor_config.json").write_text(json.dumps(stated))
    conversion = vitconvert.convert(source, to=to, output=tmp_path / "out", verify=False)
    images = [*photographs, *(_opened(path, transformers.image_utils.load_image) for path in files)]
    for backend in ("torchvision", "pil"):
        theirs, written = (
            transformers.AutoImageProcessor.from_pretrained(folder, backend=backend)
            for folder in (source, tmp_path / "out")
        )
        assert all(torch.equal(_pixels(written, i), _pixels(theirs, i)) for i in images)
    assert (conversion.departures == ()) == (to == "hf")
    assert all(said.startswith("timm ") for said in conversion.departures)
    if to == "timm":
        assert timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
        auto = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "out")
        assert auto.config.model_type == "timm_wrapper"


def test_a_model_of_no_photographs_says_so(timm_directory, tmp_path):
    source = timm_directory(**SMALL, img_size=32, in_chans=4)
    conversion = vitconvert.convert(source, output=tmp_path / "out", verify=False)
    assert conversion.departures == (UNKNOWN,)
    line = f"note           {UNKNOWN}"
    assert line in list(conversion_report(conversion))


def test_a_squash_to_the_size_itself_cuts_nothing():
    squashed = Preprocessing.from_timm({"crop_mode": "squash", "crop_pct": 1.0})
    assert not squashed.cuts
    assert replace(squashed, crop=False).differences(squashed) == ()
    assert Preprocessing.from_timm({"crop_mode": "squash", "crop_pct": 0.9}).cuts
    assert Preprocessing.from_timm({"crop_mode": "center", "crop_pct": 1.0}).cuts


def test_what_a_project_does_with_photographs_says_nothing_of_grey_images(tmp_path):
    from torchvision.models import VisionTransformer

    sizes = {"image_size": 24, "patch_size": 8, "num_layers": 2, "num_heads": 3}
    model = VisionTransformer(hidden_dim=30, mlp_dim=50, num_classes=7, **sizes)
    model.conv_proj = torch.nn.Conv2d(1, 30, 8, 8)
    torch.save(fill(model).state_dict(), tmp_path / "grey.pth")
    stated = {"overrides": {"num_heads": 3}}
    assert vitconvert.load_checkpoint(tmp_path / "grey.pth", **stated).preprocessing is None
    conversion = vitconvert.convert(tmp_path / "grey.pth", output=tmp_path / "out", **stated)
    assert conversion.departures == (UNKNOWN,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes", "to_change"),
    [
        ("deit_tiny_distilled_patch16_224", {}, {"num_classes": 3}),
        ("deit_tiny_distilled_patch16_224", {}, {"in_chans": 1}),
        ("vit_tiny_r_s16_p8_224", {"img_size": 64}, {"in_chans": 1}),
        ("vit_base_r50_s16_224", {"img_size": 32}, {"in_chans": 1}),
        ("vit_base_mci_224", {"img_size": 32, "embed_dim": 768, "num_heads": 12}, {"in_chans": 1}),
    ],
    ids=str,
)
def test_timm_finetunes_an_output_as_it_does_the_source(
    name, sizes, to_change, timm_directory, tmp_path
):
    """timm has to be told which layers other classes and other images take away or change."""
    source = timm_directory(name, **SMALL | {"img_size": 48} | sizes)
    vitconvert.convert(source, to="timm", output=tmp_path / "out", verify=False)
    torch.manual_seed(0)
    theirs = timm.create_model(f"local-dir:{source}", pretrained=True, **to_change)
    found = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True, **to_change)
    ours = found.state_dict()
    for key, tensor in theirs.state_dict().items():
        drawn = "num_classes" in to_change and key.startswith("head")
        assert drawn or torch.equal(ours[key], tensor), key
    assert found.pretrained_cfg["first_conv"] == theirs.pretrained_cfg["first_conv"]


@pytest.mark.parametrize("to", ["torchvision", "jeonsworld", "openclip", "hf", "timm"])
def test_names_of_classes_go_along_to_projects_that_have_no_place_for_them(
    to, timm_directory, tmp_path
):
    source = timm_directory(**SMALL | {"img_size": 48})
    names = [f"kind {index}" for index in range(7)]
    config = json.loads((source / "config.json").read_text()) | {"label_names": names}
    (source / "config.json").write_text(json.dumps(config))
    chosen = {"classes": ["kind 4", "1"], "verify": False}
    vitconvert.convert(source, to=to, output=tmp_path / "there", **chosen)
    vitconvert.convert(tmp_path / "there", to="timm", output=tmp_path / "back", verify=False)
    for output in ("there", "back"):
        assert vitconvert.load_checkpoint(tmp_path / output).labels == ("kind 4", "kind 1")
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert written["label_names"] == ["kind 4", "kind 1"]


def test_names_that_were_edited_to_be_others_are_refused(timm_directory, tmp_path):
    source = timm_directory(**SMALL | {"img_size": 48})
    vitconvert.convert(source, to="jeonsworld", output=tmp_path / "out", verify=False)
    record = tmp_path / "out" / "vitconvert.json"
    stated = json.loads(record.read_text())
    assert stated["labels"] is None
    record.write_text(json.dumps(stated | {"labels": ["cat", "dog"]}))
    with pytest.raises(ConflictingFact) as error:
        _ = vitconvert.load_checkpoint(tmp_path / "out").labels
    assert str(error.value) == (
        "error: conflicting-fact\n"
        "  The checkpoint names 2 classes, and its head has 7.\n"
        "  from     vitconvert.json\n"
        "  missing  2, 3, 4, 5, 6\n"
        "  foreign  none\n"
        "  hint: correct the names of the classes in that file, or take them out of it."
    )
