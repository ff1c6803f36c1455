"""A GPU answers as the processor does; skipped where torch sees none."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.small_models import randomise, relative, small_config, small_timm
from vitconvert import embed, load_model, predict
from vitconvert.cli import main
from vitconvert.config import ViTConfig
from vitconvert.errors import VitConvertWarning
from vitconvert.model import FastViT, ViT
from vitconvert.preprocessing import Preprocessing

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
PREPROCESSING = Preprocessing.from_timm({"input_size": (3, 32, 24), "interpolation": "bicubic"})
CONFIGS = {
    "token": small_config(depth=11),
    "avg": small_config(pooling="avg", fc_norm=True, num_heads=5, head_dim=24),
    "map": small_config(pooling="map", class_token=False),
    "registers": small_config(num_registers=3, layer_scale=True, qk_norm=True),
    "grey and gated": small_config(in_channels=1, gated_mlp=True, activation="silu"),
    "windows": small_config(
        relative_positions="decomposed",
        window_size=2,
        global_blocks=(1,),
        class_token=False,
        pooling="avg",
    ),
}


@pytest.fixture(autouse=True)
def whole_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 keeps ten bits of what is multiplied, and torch lets convolutions use it."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def models(config: ViTConfig) -> tuple[ViT, FastViT]:
    torch.manual_seed(0)
    model = ViT(config)
    randomise(model)
    fast = FastViT(config, device="meta").eval()
    fast.load_state_dict(model.state_dict(), assign=True)
    return model, fast


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_logits_are_those_of_the_processor(
    config: ViTConfig, dtype: torch.dtype, bound: float
) -> None:
    images = torch.rand(5, config.in_channels, *config.image_size)
    with torch.inference_mode():
        wanted = models(config)[0].double()(images.double())
        for model in models(config):
            found = model.to(DEVICE, dtype)(images.to(DEVICE, dtype))
            assert found.dtype == dtype and found.device.type == DEVICE
            assert relative(found.double().cpu(), wanted) < bound


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_compiled_model_answers_alike(mode: str | None) -> None:
    model, fast = models(CONFIGS["registers"])
    images = torch.rand(7, 3, 32, 24)
    with torch.inference_mode():
        wanted = model(images)
        fast = fast.to(DEVICE)
        fast.compile(mode=mode)
        for part in (images, images.flip(0), images):  # the second call records a CUDA graph
            found = fast(part.to(DEVICE)).cpu()
            order = found if part is images else found.flip(0)
            assert relative(order, wanted) < 1e-5


def photographs(count: int) -> list[Image.Image]:
    draw = np.random.default_rng(0)
    return [Image.fromarray(draw.integers(0, 256, (40, 37, 3), np.uint8)) for _ in range(count)]


@pytest.mark.parametrize("tokens", [False, True])
def test_features_keep_their_order_while_batches_overlap(tokens: bool) -> None:
    """Page-locked memory is used again by a later batch: what was given stays what it was."""
    model, fast = models(CONFIGS["token"])
    images = photographs(61)
    wanted = list(embed(model, images, PREPROCESSING, tokens=tokens))
    found = list(embed(fast.to(DEVICE), images, PREPROCESSING, tokens=tokens, batch_size=4))
    assert len(found) == len(wanted) == 61
    for ours, theirs in zip(found, wanted, strict=True):
        assert relative(torch.as_tensor(ours.features), torch.as_tensor(theirs.features)) < 1e-5


def test_one_image_that_cannot_be_read_disturbs_no_other(tmp_path: Path) -> None:
    model, _ = models(CONFIGS["token"])
    paths = [tmp_path / f"{n}.png" for n in range(9)]
    for path, image in zip(paths, photographs(9), strict=True):
        image.save(path)
    wanted = [p.top[0].index for p in predict(model, paths, PREPROCESSING)]
    paths[4].write_bytes(b"no image")
    found = list(predict(model.to(DEVICE), paths, PREPROCESSING, batch_size=2))
    assert found[4].error is not None
    kept = [p.top[0].index for p in found if p.error is None]
    assert kept == wanted[:4] + wanted[5:]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_images_decoded_on_it_are_close_to_the_usual_ones(tmp_path: Path, batch_size: int) -> None:
    """JPEG files there, a PNG and a file that is none as ever; the rows keep their order."""
    paths = [tmp_path / f"{n}.{'png' if n == 5 else 'jpg'}" for n in range(21)]
    for path, image in zip(paths, photographs(21), strict=True):
        image.resize((151, 97), Image.Resampling.BICUBIC).save(path, quality=95)
    paths[9].write_bytes(b"no image")
    model, _ = models(CONFIGS["registers"])
    model = model.to(DEVICE)
    wanted = list(embed(model, paths, PREPROCESSING))
    with pytest.warns(VitConvertWarning, match="were decoded and resized on cuda") as told:
        found = list(embed(model, paths, PREPROCESSING, decode="gpu", batch_size=batch_size))
    mean, most = re.findall(r"by (\S+)", str(told[0].message))[:2]
    assert 0 < float(mean) < 1 < float(most) < 12
    for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert ours.path == theirs.path and (ours.error is None) == (number != 9)
        if ours.error is None:
            apart = relative(torch.as_tensor(ours.features), torch.as_tensor(theirs.features))
            assert apart < (1e-5 if number == 5 else 0.1) and (number == 5 or apart > 0)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "model.safetensors"
    save_file(randomise(small_timm(img_size=24)).state_dict(), path)
    return path


def test_a_model_is_loaded_on_it(checkpoint: Path) -> None:
    images = torch.rand(2, 3, 24, 24)
    with torch.inference_mode():
        wanted = load_model(checkpoint, overrides={"num_heads": 3})(images)
        found = load_model(checkpoint, overrides={"num_heads": 3}, device=DEVICE)(images.to(DEVICE))
    assert relative(found.cpu(), wanted) < 1e-5


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", 0.1)])
def test_the_command_line_computes_on_it(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    dtype: str,
    bound: float,
) -> None:
    photo = tmp_path / "photo.png"
    photographs(1)[0].save(photo)

    def logits(*options: str) -> dict[int, float]:
        how = ["--set", "num_heads=3", "--mean", "0.5", "--std", "0.5", "--json"]
        with pytest.raises(SystemExit) as ended:
            main(["predict", str(checkpoint), str(photo), *how, *options])
        output = capsys.readouterr()
        assert not ended.value.code, output.err
        top = json.loads(output.out)["top"]
        return {each["index"]: each["logit"] for each in top}

    wanted, found = logits(), logits("--device", DEVICE, "--dtype", dtype)
    assert found.keys() == wanted.keys()
    assert all(abs(found[index] - wanted[index]) < bound for index in wanted)


def test_a_gpu_that_is_not_there_is_refused(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(checkpoint), "x.png", "--set", "num_heads=3", "--device", "cuda:99"])
    assert ended.value.code in (1, 2)
    assert "cuda:99" in capsys.readouterr().err
