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
