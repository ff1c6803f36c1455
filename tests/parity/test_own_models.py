"""Somebody's own model is proved, or its mistake is found: in a module that is not ours."""

import pytest
import torch
from safetensors.torch import save_file

from tests.packages import timm
from tests.parity.team import BUGS, STATED, TeamViT, team
from tests.sampling import sampled
from tests.small_models import randomise
from vitconvert.api import check_golden, compare, load_checkpoint, verify
from vitconvert.errors import SourceError, UsageError
from vitconvert.programs.taps import Tap, record


def test_a_right_model_is_equal(weights, checkpoint, table):
    report = compare(team(weights), against=checkpoint, table=table)
    assert report.ok
    assert {c.images for c in report.comparisons} == {
        *("noise", "photograph", "constant", "large", "1 channel", "batch of 1", "batch of 3"),
    }
    assert {c.dtype for c in report.comparisons} == {"float32", "float64"}
    assert len({layer.layer for layer in report.layers}) == 2 + 2 * 11 + 3


@pytest.mark.parametrize("bug", sampled(BUGS, 4, "slow"))
def test_planted_bugs_are_found(bug, weights, checkpoint, table):
    exact = {"dtypes": ("float64",), "batch": 2}
    report = compare(team(weights, bug), against=checkpoint, table=table, **exact)
    layer, cause = BUGS[bug]
    assert not report.ok
    assert report.first_divergence.layer == layer
    assert cause in report.first_divergence.cause


# Bugs that are other values of fields: what the report says to state makes both equal.
STATED_AS = ("eps", "GELU", "wrong scale", "no scale", "post-LN", "res-post", "mean", "last eps")
STATED_AS += ("activation after fc2", "scaled after the softmax", "scaled twice", "mean of patches")


@pytest.mark.parametrize("bug", sampled(STATED_AS, 4, "slow"))
def test_what_the_report_says_to_state_makes_both_equal(bug, weights, trained, table):
    model = team(weights, bug)
    how = {"table": table, "overrides": STATED}
    report = compare(model, against=load_checkpoint(trained / "team.pth", **how), table=table)
    settings = report.first_divergence.settings
    said = " ".join(f"--set {name}={value}" for name, value in settings.items())
    assert any(f"if your code is right, {said} (in Python" in note for note in report.notes)
    how["overrides"] = STATED | {name: str(value) for name, value in settings.items()}
    assert compare(model, against=load_checkpoint(trained / "team.pth", **how), table=table).ok


def test_a_norm_order_that_was_stated_wrongly(weights, trained, table):
    how = {"table": table, "overrides": STATED | {"block_order": "post_norm"}}
    report = compare(
        team(weights), against=load_checkpoint(trained / "team.pth", **how), table=table
    )
    assert report.first_divergence.layer == "blocks.0.attn"
    assert "block_order is pre, not post_norm" in report.first_divergence.cause


@pytest.mark.slow
def test_layers_that_are_mapped_by_hand(weights, checkpoint):
    layers = {f"layers.{i}.attention": f"blocks.{i}.attn" for i in range(11)}
    layers |= {"layers.3": "blocks.3", "ln_last": "norm", "answer": "head"}
    assert compare(team(weights), against=checkpoint, layers=layers).ok
    report = compare(team(weights, "wrong scale"), against=checkpoint, layers=layers)
    assert report.first_divergence.layer == "blocks.0.attn output"
    assert "computes as if attention_scale is embed_dim ** -0.5" in report.first_divergence.cause
    assert {"blocks.3.mlp", "norm", "output"} < {layer.layer for layer in report.layers}
    with pytest.raises(UsageError, match="not a module of the module"):
        compare(team(weights), against=checkpoint, layers={"encoder.0": "blocks.0"})
    with pytest.raises(UsageError, match="not a module of what it is compared with"):
        compare(team(weights), against=checkpoint, layers={"layers.0": "blocks.11"})


def test_error_a_module_of_another_depth(checkpoint, table):
    with pytest.raises(UsageError, match="other sizes than what it is compared with") as error:
        compare(TeamViT(depth=10), against=checkpoint, table=table)
    assert error.value.evidence == {"blocks": "10, and 11 in what it is compared with"}


@pytest.mark.slow
def test_two_modules_of_other_people(weights):
    size = {"image_size": (32, 24), "in_channels": 4}
    buggy = torch.nn.Sequential(team(weights, "GELU"))
    layers = {f"layers.{i}": f"0.layers.{i}" for i in range(11)}
    report = compare(team(weights), against=buggy, layers=layers, **size)
    assert report.first_divergence.layer == "0.layers.0"
    assert compare(team(weights), against=team(weights), **size).ok
    with pytest.raises(UsageError, match="Neither of the two models says which images"):
        compare(team(weights), against=buggy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda model, mine: verify(model, against=mine), "vitconvert.compare(model, against)"),
        (lambda model, mine: verify(mine, against=model), "vitconvert.compare(model, against)"),
        (
            lambda _, mine: verify(mine, against="a.golden"),
            "vitconvert.check_golden(model, golden)",
        ),
        (lambda model, _: compare(model, "a.golden"), "vitconvert.check_golden(model, golden)"),
        (lambda _, mine: compare(mine, mine), "vitconvert.verify(source, against=...)"),
        (lambda model, _: check_golden(model, "vit.safetensors"), "vitconvert.compare"),
    ],
)
def test_an_error_names_the_function_that_compares(call, named, checkpoint):
    with pytest.raises(UsageError) as error:
        call(lambda images: images, checkpoint)
    assert named in error.value.hint


def test_a_checkpoint_against_a_function(weights, checkpoint):
    model = team(weights)
    assert compare(checkpoint, against=lambda images: model(images)).ok
    report = compare(checkpoint, against=lambda images: 1.001 * model(images))
    assert not report.ok
    assert report.first_divergence.layer == "output"


def test_outputs_by_name(weights, checkpoint):
    model = team(weights)

    def several(images):
        logits = model(images)
        return {"logits": logits, "loss": None, "aux": logits[:, :2]}

    report = compare(several, against=checkpoint)
    assert report.ok
    assert "outputs that are not compared: aux" in report.notes
    with pytest.raises(UsageError, match="returned no tensor"):
        compare(lambda images: "a cat", against=checkpoint)
    with pytest.raises(UsageError, match="same name and shape"):
        compare(lambda images: model(images)[:, :3], against=checkpoint)


def test_tokens_are_known_by_their_shape(weights, checkpoint):
    model = team(weights)
    kept = {}
    model.ln_last.register_forward_hook(lambda *a: kept.update(tokens=a[-1]))

    def tokens(images):
        model(images)
        return kept["tokens"]

    report = compare(tokens, against=checkpoint)
    assert report.ok
    assert any(note.endswith("returns is tokens") for note in report.notes)


def test_a_function_of_one_image_in_float32(weights, checkpoint):
    model = team(weights)

    def single(images):
        if len(images) == 3:
            raise ValueError("a batch of three")
        return model(images.float())

    report = compare(single, against=checkpoint)
    assert report.ok
    assert {c.dtype for c in report.comparisons} == {"float32"}
    assert "batch of 3" not in {c.images for c in report.comparisons}
    assert any("not compared on a batch of 3" in note for note in report.notes)
    assert any("not compared in float64" in note for note in report.notes)


@pytest.mark.slow
def test_images_of_a_batch_that_are_mixed(weights, checkpoint):
    """Equal on the other kinds of images: only a batch of three shows it."""
    model = team(weights)
    report = compare(
        lambda images: model(images).roll(len(images) // 3, 0), against=checkpoint, batch=2
    )
    assert {c.images for c in report.comparisons if not c.ok} == {"batch of 3"}


def test_the_module_is_left_as_it_was(weights, checkpoint, table):
    model = team(weights).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert compare(model, against=checkpoint, table=table).ok
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(tensor.dtype == torch.float32 for tensor in model.state_dict().values())


def test_the_real_packages(tmp_path, timm_checkpoint):
    """timm's own module against timm's own file, matched by the tables of weights_map/."""
    path = timm_checkpoint()
    theirs = timm.create_model(f"local-dir:{path}", pretrained=True)
    report = compare(theirs, against=path)
    assert report.ok
    assert "bit-equal" in report.summary()
    assert len(report.layers) >= 2 * (2 + 2 * 3)


@pytest.mark.parametrize("against", [None, "missing.pth"])
def test_mistakes(against, weights):
    with pytest.raises((UsageError, SourceError)):
        compare(team(weights), against=against)


def test_code_that_raises_is_named(checkpoint):
    def broken(images):
        raise RuntimeError("no such kernel")

    with pytest.raises(UsageError) as error:
        compare(broken, against=checkpoint)
    assert error.value.evidence["raised"] == "RuntimeError: no such kernel"


def test_layers_are_kept_however_they_are_called():
    """By keyword, in any order, with what is no tensor before; and what they return in a dict."""

    class Layer(torch.nn.Module):
        def forward(self, x, mask=None, scale=2):
            return {"attended": x * scale, "mask": mask}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Layer(), Layer()

        def forward(self, images):
            x = self.first(mask=images * 0, x=images)["attended"]
            return self.second(scale=3, x=x)["attended"]

    taps = {
        "read": Tap("first", input=True),
        "given": Tap("first"),
        "read again": Tap("second", input=True),
        "given again": Tap("second"),
    }
    model, images = Model(), torch.randn(2, 5, 7)
    kept = record(model, taps, lambda: model(images))
    factors = {"read": 1, "given": 2, "read again": 2, "given again": 6, "output": 6}
    assert [*kept] == [*factors]
    assert all(torch.equal(kept[name], images * factor) for name, factor in factors.items())


class _ClassLast(timm.models.VisionTransformer):
    """Its class token comes after the patches, and so does its position."""

    def _pos_embed(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, self.cls_token.expand(len(x), -1, -1)), dim=1) + self.pos_embed

    def pool(self, x: torch.Tensor, pool_type: str | None = None) -> torch.Tensor:
        return x[:, -1]


def test_a_class_token_after_the_patches(tmp_path):
    table = tmp_path / "last.toml"
    table.write_text(
        '[dialect]\nextends = "vit"\ntitle = "class token last"\necosystem = "mine"\n'
        '[rows]\n"pos_embed" = "pos_embed : 1 ~position width"\n'
    )
    sizes = {"img_size": (32, 24), "patch_size": 8, "num_classes": 7, "embed_dim": 30}
    model = randomise(_ClassLast(**sizes, depth=3, num_heads=3)).eval()
    save_file(model.state_dict(), tmp_path / "last.safetensors")
    stated = {"num_heads": 3, "image_size": (32, 24), "activation": "gelu"}
    stated |= {"norm_eps": 1e-6, "pooling": "token"}
    checkpoint = load_checkpoint(tmp_path / "last.safetensors", table=table, overrides=stated)
    report = compare(model, against=checkpoint, table=table)
    assert report.ok, report.summary()
    assert {"embedding", "blocks.2.mlp"} <= {one.layer for one in report.layers}
