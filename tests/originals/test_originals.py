"""Models of the projects' own code: questions that name both functions."""

import pytest
import torch

import vitconvert
from tests.originals.make_originals import FOLDER, ORIGINALS, picture
from tests.originals.rows import OF_CODE
from tests.small_models import relative
from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable

RESAMPLED = 1e-5


@torch.no_grad()
def test_dinos_backbone_is_resampled_by_its_own_rule_once_that_is_said():
    path = FOLDER / "dino.pth"
    images, output = picture(*ORIGINALS["dino"].image), torch.load(path)["output"]
    stated, size = {"num_heads": 2}, images.shape[-2:]
    with pytest.raises(MissingFact) as error:
        vitconvert.load_model(path, image_size=size, overrides=stated)
    assert "timm's rule is bicubic_antialias, that of Meta's DINO bicubic_offset" in str(
        error.value
    )
    rules = {"bicubic_offset": True, "bicubic_antialias": False, "bicubic": False}
    for rule, same in rules.items():
        said = {**stated, "position_resampling": rule}
        model = vitconvert.load_model(path, image_size=size, overrides=said)
        assert (relative(model(images), output) <= RESAMPLED) == same
    model = vitconvert.load_model(path, image_size=size, overrides=stated, dialect="dino")
    assert relative(model(images), output) <= RESAMPLED
    assert vitconvert.load_model(path, image_size=16, overrides=stated)


def shapes_of_timm_small():
    """Of the sizes that the name fixes; one number stands for all of a tensor."""
    file = torch.load(FOLDER / "timm_small.pth", weights_only=True)["model"]
    sizes = {16: 768, 48: 2304}
    wide = {
        name: torch.ones(1).expand([sizes.get(n, n) for n in t.shape]) for name, t in file.items()
    }
    first = {n: t for n, t in wide.items() if n.startswith("blocks.0.")}
    blocks = {n.replace(".0.", f".{i}.", 1): t for i in range(8) for n, t in first.items()}
    return {n: t for n, t in wide.items() if not n.startswith("blocks.")} | blocks


def test_timms_first_small_vit_is_asked_about():
    stated = {"num_heads": 8}
    with pytest.raises(MissingFact) as error:
        vitconvert.convert_state_dict(shapes_of_timm_small(), to="vit", overrides=stated)
    text = str(error.value)
    assert "timm 0.3's pretrained vit_small_patch16_224 has 0.0360844" in text
    assert "a VisionTransformer of these sizes 0.1020621" in text
    assert "--set attention_scale=... --set norm_eps=..." in text


@pytest.mark.parametrize("name", [name for name in OF_CODE if "lucidrains" in name])
def test_the_pooling_of_lucidrains_is_asked_for(name):
    path = FOLDER / f"{name}.pth"
    with pytest.raises(MissingFact) as error:
        vitconvert.load_checkpoint(path, overrides={"num_heads": 2, "head_dim": 4})
    assert "pool='cls'" in str(error.value) and "pool='mean'" in str(error.value)
    stated = {"num_heads": 2, "head_dim": 4}
    config = vitconvert.load_checkpoint(path, overrides={**stated, "pooling": "token"}).config
    assert config.pooling == "token"


@pytest.mark.slow
def test_apples_padding_is_no_function_of_timms(tmp_path):
    path = FOLDER / "mobileclip.pth"
    stated = {"num_heads": 2, "image_size": (48, 32)}
    with pytest.raises(NotRepresentable, match="stem_style mobileclip and not mobileclip_padded"):
        vitconvert.convert(path, to="timm", output=tmp_path / "timm", overrides=stated)
    assert not (tmp_path / "timm").exists()


def rotations(name, change):
    """The tensors of a file of EVA-02, of whose rotary tables each number is changed."""
    kept = torch.load(FOLDER / f"{name}.pth", weights_only=True)["model"]
    return {key: change(tensor) if "freqs" in key else tensor for key, tensor in kept.items()}


def test_the_grid_of_eva02_is_that_of_its_tables(tmp_path):
    path = FOLDER / "eva02_finetuned.pth"
    config = vitconvert.load_checkpoint(path, overrides={"num_heads": 2}).config
    assert (config.rope_reference, config.origins["rope_reference"]) == ((5, 5), "tensors")
    stated = {"num_heads": 2, "rope_reference": (16, 16)}
    with pytest.raises(ConflictingFact, match=r"rope_reference = 16x16 .* has 5x5"):
        vitconvert.load_checkpoint(path, overrides=stated)
    torch.save(rotations("eva02_finetuned", torch.Tensor.bfloat16), tmp_path / "half.pth")
    config = vitconvert.load_checkpoint(tmp_path / "half.pth", overrides={"num_heads": 2}).config
    assert config.rope_reference == (5, 5)
    torch.save(rotations("eva02_finetuned", lambda t: t * 0.9), tmp_path / "other.pth")
    with pytest.raises(NotRepresentable, match="of no square grid of patches"):
        vitconvert.load_checkpoint(tmp_path / "other.pth", overrides={"num_heads": 2})


@torch.no_grad()
def test_v_jepa_2_1_of_other_lengths_and_of_images():
    path, clip = FOLDER / "vjepa2_1.pth", picture(*ORIGINALS["vjepa2_1"].image)
    others = torch.load(path, weights_only=True)["others"]
    short = {"num_heads": 2, "image_size": (48, 32), "frames": 5}
    image = {"num_heads": 2, "image_size": (48, 80)}
    for fast in (False, True):
        model = vitconvert.load_model(path, overrides=short, fast=fast)
        wanted = others["five frames of another size"]
        assert relative(model(clip[:, :, :5, :, :32]), wanted) <= 1e-6
        model = vitconvert.load_model(path, overrides=image, fast=fast, dialect="vjepa2_1_image")
        assert relative(model(clip[:, :, 0]), others["the first frame"]) <= 1e-6
    with pytest.raises(ConflictingFact, match="needs two of each at least"):
        vitconvert.load_model(path, overrides=short | {"image_size": (48, 16)})


@pytest.mark.parametrize("dialect", ["vjepa2_1", "vjepa2_1_image"])
def test_v_jepa_2_1_comes_back_with_all_that_its_class_loads(dialect, tmp_path):
    path = FOLDER / "vjepa2_1.pth"
    stated = {"num_heads": 2, "image_size": (48, 80)}
    stated |= {"frames": 6} if dialect == "vjepa2_1" else {}
    source = vitconvert.convert(
        path, to="vit", output=tmp_path / "a", overrides=stated, dialect=dialect, verify=False
    )
    vitconvert.convert(tmp_path / "a", to=dialect, output=tmp_path / "b", verify=False)
    back = torch.load(tmp_path / "b" / "model.pt", weights_only=True)["target_encoder"]
    kept = torch.load(path, weights_only=True)["model"]
    assert {key: t.shape for key, t in back.items()} == {key: t.shape for key, t in kept.items()}
    unread = source.ledger.ignored.keys()
    assert len(unread) == 9  # three norms, and what is of images, or of clips
    assert all(torch.equal(back[key], kept[key]) for key in kept.keys() - unread)
    with pytest.raises(NotRepresentable, match="No dialect of 'hf'"):
        vitconvert.convert(tmp_path / "a", to="hf", output=tmp_path / "c")


def test_v_jepa_2_1_of_sizes_that_its_class_does_not_know_is_refused(tmp_path):
    tensors = torch.load(FOLDER / "vjepa2_1.pth", weights_only=True)["model"]
    stated = {"num_heads": 2, "image_size": (48, 80), "frames": 6}
    few = {key: tensor for key, tensor in tensors.items() if ".blocks.11." not in key}
    torch.save(few, tmp_path / "a.pt")
    with pytest.raises(NotRepresentable, match="which norm is the last"):
        vitconvert.load_checkpoint(tmp_path / "a.pt", overrides=stated)
    small = {
        key: t[..., :8, :8] if "proj.weight" in key and t.ndim == 5 else t
        for key, t in tensors.items()
    }
    torch.save(small, tmp_path / "b.pt")
    with pytest.raises(NotRepresentable, match="patches of 14 and of 16 pixels alone"):
        vitconvert.load_checkpoint(tmp_path / "b.pt", overrides=stated)


@torch.no_grad()
def test_eupe_of_another_size():
    path, stated = FOLDER / "eupe.pth", {**OF_CODE["eupe"].stated, "image_size": (20, 8)}
    wanted = torch.load(path, weights_only=True)["others"]["20x8"]
    for fast in (False, True):
        model = vitconvert.load_model(path, overrides=stated, fast=fast)
        assert relative(model(picture(3, 20, 8)), wanted) <= 1e-6
