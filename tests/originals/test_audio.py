"""AST, M2D and EAT in their authors' names: other lengths, heads, and what is written.

goldens/ has what their own code computed; rows.py compares it.
"""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import vitconvert
from tests.originals.make_originals import FOLDER, ORIGINALS, picture
from tests.originals.rows import OF_CODE
from tests.small_models import relative
from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable, UsageError

ROUNDING = 1e-6


def kept(name):
    """The tensors of a project's model, spectrograms, and what it computed of them."""
    file = torch.load(FOLDER / f"{name}.pth", weights_only=True)
    return file["model"], picture(*ORIGINALS[name].image), file["output"]


def computed(path, spectrograms, **reading):
    with torch.inference_mode():
        return vitconvert.load_model(path, **reading)(spectrograms)


@pytest.mark.parametrize("name", ["m2d", "eat"])
def test_shorter_spectrograms_have_the_first_positions(name):
    _, spectrograms, output = kept(f"{name}_short")
    stated, size = OF_CODE[name].stated, tuple(spectrograms.shape[-2:])
    path = FOLDER / f"{name}_short.pth"
    model = vitconvert.load_model(path, overrides=stated, image_size=size)
    with torch.inference_mode():
        assert relative(model.forward_features(spectrograms), output) < ROUNDING
    longer = tuple(2 * side for side in stated["image_size"])
    with pytest.raises((ConflictingFact, UsageError), match="positions are too few for"):
        vitconvert.load_model(path, overrides=stated, image_size=longer)


def test_the_norm_of_asts_head_has_torchs_own_eps():
    config = vitconvert.load_checkpoint(FOLDER / "ast.pth", overrides=OF_CODE["ast"].stated).config
    assert (config.norm_eps, config.fc_norm_eps, config.pooling) == (1e-6, 1e-5, "prefix_avg")
    _, spectrograms, output = kept("ast")
    small = {**OF_CODE["ast"].stated, "fc_norm_eps": 0.1}
    assert relative(computed(FOLDER / "ast.pth", spectrograms, overrides=small), output) > 1e-3


def test_asts_strides_are_asked_for():
    with pytest.raises(MissingFact, match="fstride and tstride of ASTModel"):
        vitconvert.load_checkpoint(FOLDER / "ast.pth", overrides={"num_heads": 3})


def test_ast_is_written_in_its_authors_names(tmp_path):
    tensors, spectrograms, output = kept("ast")
    stated = {"overrides": OF_CODE["ast"].stated}
    vitconvert.convert(FOLDER / "ast.pth", to="vit", output=tmp_path / "vit", **stated)
    vitconvert.convert(tmp_path / "vit", to="ast", output=tmp_path / "ast")
    written = torch.load(tmp_path / "ast" / "model.pt", weights_only=True)
    assert written.keys() == {key.removeprefix("module.") for key in tensors}
    assert relative(computed(tmp_path / "vit", spectrograms), output) < ROUNDING
    assert relative(computed(tmp_path / "ast", spectrograms), output) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("to", ["vit", "timm", "mae"])
def test_m2d_is_a_vit_in_other_names(to, tmp_path):
    _, spectrograms, output = kept("m2d")
    stated = {"overrides": OF_CODE["m2d"].stated}
    done = vitconvert.convert(FOLDER / "m2d.pth", to=to, output=tmp_path / to, **stated)
    assert to == "mae" or all(opened.why_not is None for opened in done.opened)
    model = vitconvert.load_model(tmp_path / to)
    with torch.inference_mode():
        assert relative(model.forward_features(spectrograms), output) < ROUNDING


def test_m2d_is_not_written_since_nothing_else_has_its_statistics(tmp_path):
    stated = {"overrides": OF_CODE["m2d"].stated}
    vitconvert.convert(FOLDER / "m2d.pth", to="vit", output=tmp_path / "vit", **stated)
    with pytest.raises(NotRepresentable, match="norm_stats"):
        vitconvert.convert(tmp_path / "vit", to="m2d", output=tmp_path / "m2d")


@pytest.mark.slow
def test_ast_becomes_transformers_where_another_eps_is_allowed(tmp_path):
    _, spectrograms, output = kept("ast")
    stated = {"overrides": OF_CODE["ast"].stated}
    with pytest.raises(NotRepresentable, match="norm_eps"):
        vitconvert.convert(FOLDER / "ast.pth", to="hf", output=tmp_path / "no", **stated)
    done = vitconvert.convert(
        FOLDER / "ast.pth", to="hf", output=tmp_path / "hf", allow=["norm-eps"], **stated
    )
    assert done.opened[-1].relative <= 2e-5
    names = load_file(tmp_path / "hf" / "model.safetensors")
    assert "classifier.layernorm.weight" in names
    assert relative(computed(tmp_path / "hf", spectrograms), output) < 1e-4


def test_m2d_within_its_runtime_and_with_what_reads_it(tmp_path):
    tensors, spectrograms, output = kept("m2d")
    wrapped = {f"backbone.{key}": tensor for key, tensor in tensors.items()}
    clap = {"audio_proj.sem_token": torch.ones(1, 1, 12), "text_proj.weight": torch.ones(5, 7)}
    for number, file in enumerate((wrapped, {"model": tensors | clap})):
        torch.save(file, path := tmp_path / f"{number}.pth")
        model = vitconvert.load_model(path, overrides=OF_CODE["m2d"].stated)
        with torch.inference_mode():
            assert relative(model.forward_features(spectrograms), output) < ROUNDING


def fine_tuned(tensors, normed):
    head = {"head.weight": torch.randn(5, 12), "head.bias": torch.randn(5)}
    norm = {"fc_norm.weight": torch.randn(12), "fc_norm.bias": torch.randn(12)} if normed else {}
    return {f"model.{key}": tensor for key, tensor in tensors.items()} | head | norm


@pytest.mark.parametrize("normed", [True, False])
def test_eat_fine_tuned(normed, tmp_path):
    """As `MaeImageClassificationModel.forward` reads the class token, with and without fc_norm."""
    torch.manual_seed(3)
    tensors, spectrograms, output = kept("eat")
    file = fine_tuned(tensors, normed)
    torch.save({"args": None, "model": file}, path := tmp_path / "checkpoint_best.pt")
    read = output[:, 0]
    if normed:
        read = F.layer_norm(read, (12,), file["fc_norm.weight"], file["fc_norm.bias"], 1e-6)
    wanted = F.linear(read, file["head.weight"], file["head.bias"])
    reading = {"overrides": OF_CODE["eat"].stated, "dialect": "eat_classifier"}
    assert relative(computed(path, spectrograms, **reading), wanted) < ROUNDING
    vitconvert.convert(path, to="vit", output=tmp_path / "vit", **reading)
    assert relative(computed(tmp_path / "vit", spectrograms), wanted) < ROUNDING


def test_eat_as_it_pre_trains_with_its_teacher(tmp_path):
    tensors, spectrograms, output = kept("eat")
    beside = {"modality_encoders.IMAGE.decoder.proj.weight": torch.ones(12, 12)}
    beside["_ema"] = {key: tensor + 1 for key, tensor in tensors.items()}
    torch.save({"model": tensors | beside, "cfg": {}}, path := tmp_path / "checkpoint.pt")
    model = vitconvert.load_model(path, overrides=OF_CODE["eat"].stated)
    with torch.inference_mode():
        assert relative(model.forward_features(spectrograms), output) < ROUNDING


def test_the_positions_of_published_eat_are_768_times_of_8_bands(tmp_path):
    tensors, _, _ = kept("eat")
    name = "modality_encoders.IMAGE.fixed_positional_encoder.positions"
    tensors[name] = torch.randn(1, 768 * 8, 12)
    torch.save({"model": tensors}, path := tmp_path / "file.pt")
    config = vitconvert.load_checkpoint(path, overrides={"num_heads": 3}).config
    assert (config.position_grid, config.image_size) == ((768, 8), (1024, 128))
