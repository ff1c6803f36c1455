"""Files of ViTs around torch's own encoder: drafted, asked about, proved and written."""

import pytest
import torch

import vitconvert
from tests.drafting.torch_encoders import (
    EncoderViT,
    NormedThriceViT,
    SummedViT,
    scaled_afterwards_vit,
)
from tests.sampling import sampled
from tests.small_models import randomise
from vitconvert.errors import MissingFact, NotRepresentable

# Where torch takes no path of its own, it says so.
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")
TORCH = {"block_order": "post_norm", "activation": "relu", "norm_eps": "1e-5"}
SIZES = {"num_heads": 4, "image_size": (32, 18), "patch_size": (8, 6)}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(20)


def drafted(folder, model, like, *, guesses=True, **changes):
    """A draft for a module's file against another model of the same sizes; the file and the table.

    Guesses are taken, as somebody does who has looked at them.
    """
    torch.save(randomise(model).state_dict(), folder / "model.pth")
    config = vitconvert.ViTConfig(**(like | changes))
    torch.save(randomise(vitconvert.ViT(config)).state_dict(), folder / "like.pth")
    stated = {k: v for k, v in config.to_dict().items() if v is not None}
    reference = vitconvert.load_checkpoint(folder / "like.pth", dialect="vit", overrides=stated)
    found = vitconvert.draft_table(
        folder / "model.pth", like=reference, output=folder / "team.toml"
    )
    text = found.text.replace('\n# "', '\n"') if guesses else found.text
    (folder / "team.toml").write_text(text)
    return folder / "model.pth", folder / "team.toml"


LIKE = {
    **SIZES,
    "in_channels": 4,
    "num_classes": 7,
    "embed_dim": 36,
    "depth": 3,
    "head_dim": 9,
    "mlp_dim": 50,
    "activation": "gelu",
    "norm_eps": 1e-6,
    "pooling": "token",
}
ARGUMENTS = {
    "as torch has it": ({"depth": 11}, TORCH),
    "pre-LN": ({"norm_first": True}, TORCH | {"block_order": "pre"}),
    "GELU": ({"activation": "gelu"}, TORCH | {"activation": "gelu"}),
    "another eps": (
        {"layer_norm_eps": 1e-3, "normed": False},
        TORCH | {"norm_eps": "1e-3"},
    ),
    "a norm of torch's": ({"norm": True, "normed": False}, TORCH),
    "no last norm": ({"normed": False}, TORCH),
    "no biases": ({"bias": False, "normed": False}, TORCH | {"norm": "layer"}),
    "tokens first": ({"batch_first": False}, TORCH),
}


@pytest.mark.parametrize("name", sampled(ARGUMENTS, 2, "slow"))
def test_what_the_names_leave_open_is_asked_and_then_equal(name, tmp_path):
    arguments, stated = ARGUMENTS[name]
    model = EncoderViT(**arguments).eval()
    last = arguments.get("normed", True) or "norm" in arguments
    bias = arguments.get("bias", True)
    no_bias = (
        {} if bias else dict.fromkeys(("norm_bias", "qkv_bias", "proj_bias", "mlp_bias"), False)
    )
    depth = arguments.get("depth", 3)
    file, table = drafted(tmp_path, model, LIKE, depth=depth, final_norm=last, **no_bias)
    with pytest.raises(MissingFact) as error:
        vitconvert.load_model(file, table=table)
    asked = "\n".join(error.value.details)
    assert all(field in asked for field in TORCH)
    assert "is post-LN (post_norm) unless norm_first=True (pre)" in asked
    checkpoint = vitconvert.load_checkpoint(file, table=table, overrides=stated)
    report = vitconvert.compare(model, against=checkpoint, table=table)
    assert report.ok, report.summary()
    assert checkpoint.config.origins["block_order"] == "user"


def test_the_usual_guess_is_corrected_step_by_step(tmp_path):
    """Each report says what to state next; nothing but that leads to equal numbers."""
    model = EncoderViT().eval()
    file, table = drafted(tmp_path, model, LIKE)
    stated = {"block_order": "pre", "activation": "gelu", "norm_eps": 1e-6}
    causes = []
    for _ in range(5):
        checkpoint = vitconvert.load_checkpoint(file, table=table, overrides=stated)
        report = vitconvert.compare(model, against=checkpoint, table=table, dtypes=("float64",))
        if report.ok:
            break
        causes += report.first_divergence.settings
        stated |= report.first_divergence.settings
    assert causes == ["block_order", "norm_eps", "activation"]
    assert stated == {"block_order": "post_norm", "activation": "relu", "norm_eps": 1e-5}


def test_who_holds_post_ln(tmp_path):
    """Our own names do; every other layout says that its blocks norm elsewhere."""
    model = EncoderViT(depth=2, activation="gelu", layer_norm_eps=1e-6).eval()
    file, table = drafted(tmp_path, model, LIKE, depth=2)
    stated = TORCH | {"activation": "gelu", "norm_eps": "1e-6", "final_norm_eps": "1e-5"}
    how = {"table": table, "overrides": stated}
    for target, order in {"timm": "and post_norm here", "hf": "post_norm, and there it is"}.items():
        with pytest.raises(NotRepresentable) as error:
            vitconvert.plan_conversion(file, to=target, **how)
        text = str(error.value) + "".join(error.value.details)
        assert order in text, text
        assert "vit" in text
    vitconvert.convert(file, to="vit", output=tmp_path / "ours", **how)
    images = torch.randn(3, 4, 32, 18)
    with torch.no_grad():
        wanted, found = model(images), vitconvert.load_model(tmp_path / "ours")(images)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
        fast = vitconvert.load_model(tmp_path / "ours", fast=True)(images)
        torch.testing.assert_close(fast, wanted, rtol=1e-5, atol=1e-5)
        # The layers of torch see the same on their way, and what they attend to.
        x = vitconvert.load_model(tmp_path / "ours").hidden_states(images)
        layer = model.encoder.layers[1]
        torch.testing.assert_close(layer(x[1]), x[2], rtol=1e-5, atol=1e-6)
        _, seen = layer.self_attn(x[1], x[1], x[1], average_attn_weights=False)
        maps = vitconvert.attentions(vitconvert.load_model(tmp_path / "ours"), images)
        torch.testing.assert_close(maps[1], seen, rtol=1e-5, atol=1e-6)


def test_a_hand_written_table_is_asked_too(tmp_path):
    file, table = drafted(tmp_path, EncoderViT(depth=2), LIKE, depth=2)
    text = table.read_text().replace("[config]", '[config]\nactivation = "relu"\nnorm_eps = 1e-5')
    table.write_text(text)
    with pytest.raises(MissingFact) as error:
        vitconvert.load_checkpoint(file, table=table)
    assert [line.split()[0] for line in error.value.details] == ["block_order"]
    table.write_text(text.replace("[config]", '[config]\nblock_order = "post_norm"'))
    assert vitconvert.load_checkpoint(file, table=table).config.block_order == "post_norm"


def test_the_word_of_before_is_none(tmp_path):
    """`post` meant the order of Swin V2, and must not become another one in silence."""
    file, table = drafted(tmp_path, EncoderViT(depth=2), LIKE, depth=2)
    with pytest.raises(vitconvert.errors.ConflictingFact) as error:
        vitconvert.load_checkpoint(file, table=table, overrides=TORCH | {"block_order": "post"})
    assert "post_norm, res_post_norm" in str(error.value)


SQUARE = LIKE | {"image_size": (32, 24), "patch_size": (8, 8)}


def test_post_ln_by_hand_with_a_tanh_before_the_head(tmp_path):
    model = SummedViT().eval()
    file, table = drafted(tmp_path, model, SQUARE, representation_size=36)
    text = table.read_text()
    assert 'activation = "gelu"' in text  # by-hand names leave it to the reference
    checkpoint = vitconvert.load_checkpoint(file, table=table)
    report = vitconvert.compare(model, against=checkpoint, table=table)
    assert "block_order is post_norm, not pre" in report.first_divergence.cause
    stated = {"block_order": "post_norm", "norm_eps": 1e-5}
    checkpoint = vitconvert.load_checkpoint(file, table=table, overrides=stated)
    assert vitconvert.compare(model, against=checkpoint, table=table).ok


def test_a_norm_that_is_called_for_q_k_and_v(tmp_path):
    model = NormedThriceViT().eval()
    file, table = drafted(tmp_path, model, SQUARE)
    checkpoint = vitconvert.load_checkpoint(file, table=table, overrides={"norm_eps": 1e-5})
    report = vitconvert.compare(model, against=checkpoint, table=table)
    assert report.ok
    assert {"embedding", "blocks.0.attn", "blocks.1.mlp"} <= {one.layer for one in report.layers}


@pytest.mark.parametrize("second", [False, True], ids=["", "activation after fc2"])
def test_a_copied_tutorial_is_corrected_step_by_step(second, tmp_path):
    """Rows of q, k and v by channel, and a scale after the softmax: found together."""
    model = scaled_afterwards_vit(second_activation=second).eval()
    mean = {"pooling": "avg", "pool_include_prefix": True, "final_norm": False, "fc_norm": True}
    file, table = drafted(tmp_path, model, SQUARE, norm_eps=1e-5, **mean)
    stated, said = {}, []
    for _ in range(4):
        checkpoint = vitconvert.load_checkpoint(file, table=table, overrides=stated)
        report = vitconvert.compare(model, against=checkpoint, table=table, dtypes=("float64",))
        if report.ok:
            break
        departs = report.first_divergence
        said.append(departs.cause.partition("as if ")[2])
        stated |= departs.settings
        typed = [note.partition("its row is ")[2] for note in report.notes if "its row" in note]
        lines = [
            line
            for line in table.read_text().splitlines()
            if not (typed and line.startswith('"blocks.{i}.attn.qkv'))
        ]
        lines.insert(lines.index("[rows]") + 1, "\n".join(typed))
        table.write_text("\n".join(lines))
    assert report.ok, said
    assert said[0].startswith("the rows of blocks.0.attn.qkv are (head dim qkv)")
    assert "post_softmax_scale is embed_dim ** -0.5, not 1, and attention_scale is 1" in said[0]
    assert len(said) == 1 + second
    assert stated["post_softmax_scale"] == 36**-0.5
    assert stated.get("mlp_out_activation", False) == second
    for target in ("timm", "hf"):
        with pytest.raises(NotRepresentable):
            vitconvert.plan_conversion(file, to=target, table=table, overrides=stated)
    vitconvert.convert(file, to="vit", output=tmp_path / "ours", table=table, overrides=stated)
    images = torch.randn(3, 4, 32, 24)
    for fast in (False, True):
        ours = vitconvert.load_model(tmp_path / "ours", fast=fast)
        with torch.no_grad():
            torch.testing.assert_close(ours(images), model(images), rtol=1e-4, atol=1e-5)
