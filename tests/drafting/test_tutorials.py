"""ViTs of tutorials, drafted from their code: equal logits, or a refusal that says why."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import vitconvert
from tests.drafting import tutorials
from tests.drafting.tutorials import EQUAL, FUSED, REFUSED, SURPLUS, StoredSinusoid
from tests.packages import timm
from tests.sampling import sampled
from tests.small_models import randomise
from vitconvert.errors import MissingFact, NotRepresentable, UsageError, VitConvertError

COVERED = [pytest.param(build, marks=pytest.mark.coverage) for build in FUSED[1:]]
BUILT = [*EQUAL, pytest.param(FUSED[0], marks=pytest.mark.slow), *COVERED]
NAMES = {one.__name__: one for one in (*EQUAL, *REFUSED)}


def _logits(output):
    return output[0] if isinstance(output, tuple) else output


def _trained(build, folder):
    """A model with weights of its own, its file, and what it makes of noise."""
    model = randomise(build())
    torch.save(model.state_dict(), folder / "own.pth")
    channels = next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 3)
    x = torch.randn(2, channels, *tutorials.SIZE, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        return model, x, _logits(model(x))


def _near(found, wanted):
    return (found - wanted).abs().max() <= 2e-5 * wanted.abs().max()


@pytest.mark.parametrize("build", BUILT, ids=lambda build: build.__name__)
def test_a_tutorials_vit_gives_its_own_logits(build, tmp_path):
    table = tmp_path / "own.toml"
    found = vitconvert.draft_table(module=build(), output=table)
    assert found.computed.startswith("equal to the module on noise (")
    assert (found.guesses, found.left, found.unfilled, found.problem) == ((), {}, (), None)
    model, x, wanted = _trained(build, tmp_path)
    vit = vitconvert.load_model(tmp_path / "own.pth", table=table)
    with torch.inference_mode():
        assert _near(vit(x), wanted)
    source = vitconvert.load_checkpoint(tmp_path / "own.pth", table=table)
    report = vitconvert.compare(model, against=source, table=table)
    assert report.ok, report.summary()


@pytest.mark.parametrize("build", BUILT, ids=lambda build: build.__name__)
def test_what_is_written_loads_in_the_tutorials_class(build, tmp_path):
    """Back by the same rows, but where surplus positions were cut."""
    table = tmp_path / "own.toml"
    vitconvert.draft_table(module=build(), output=table)
    _, x, wanted = _trained(build, tmp_path)
    source = vitconvert.load_checkpoint(tmp_path / "own.pth", table=table)
    if build in SURPLUS:
        with pytest.raises(NotRepresentable, match="keeps more rows than a model uses"):
            vitconvert.plan_conversion(source, to="own", table=table)
        return
    ours = dict(source.tensors)
    back = vitconvert.convert(source, to="own", table=table, output=tmp_path / "out")
    other = build().eval()
    other.load_state_dict(load_file(back.output / "model.safetensors"))
    with torch.inference_mode():
        assert _near(_logits(other(x)), wanted)
    again = vitconvert.load_checkpoint(back.output, table=table).tensors
    assert all(torch.equal(again[name], tensor) for name, tensor in ours.items())


WHY = {
    "PostNorm": "depart at",
    "SequentialOfSequentials": "depart at blocks.0.attn",
    "TwiceActivated": "depart at",
    "HeadsOfSlices": "each head reads a slice of the tokens",
}


@pytest.mark.parametrize("build", sampled(REFUSED, 2, "slow"), ids=lambda build: build.__name__)
def test_what_computes_something_else_is_refused_with_the_reason(build, tmp_path):
    table = tmp_path / "own.toml"
    found = vitconvert.draft_table(module=build(), output=table)
    assert found.problem is not None
    assert WHY[build.__name__] in " ".join([found.computed, *found.left.values()])
    torch.save(randomise(build()).state_dict(), tmp_path / "own.pth")
    with pytest.raises(VitConvertError):
        vitconvert.load_model(tmp_path / "own.pth", table=table)


def test_the_users_module_is_left_as_it_is():
    model = tutorials.OneNorm()
    before = copy.deepcopy(model.state_dict())
    model.train()
    vitconvert.draft_table(module=model)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_file_of_the_modules_names_needs_no_reference(tmp_path):
    _trained(tutorials.HeadsAsModules, tmp_path)
    found = vitconvert.draft_table(tmp_path / "own.pth", module=tutorials.HeadsAsModules())
    assert found.computed.startswith("equal")
    assert found.source.endswith("own.pth")


def test_what_the_module_does_not_show_is_stated():
    class Hidden(StoredSinusoid):
        def __init__(self):
            super().__init__()
            del self.img_size

    with pytest.raises(MissingFact, match="image_size"):
        vitconvert.draft_table(module=Hidden())
    found = vitconvert.draft_table(module=Hidden(), overrides={"image_size": tutorials.SIZE})
    assert found.computed.startswith("equal")


def test_a_computed_sinusoid_is_stated_or_stored(tmp_path):
    """Nothing in the file shows it: by its table it is asked for; timm gets it as a table."""
    table = tmp_path / "own.toml"
    vitconvert.draft_table(module=tutorials.ComputedSinusoid(), output=table)
    _, x, wanted = _trained(tutorials.ComputedSinusoid, tmp_path)
    source = vitconvert.load_checkpoint(tmp_path / "own.pth", table=table)
    assert (source.config.position_embedding, source.config.no_embed_class) == ("sincos1d", False)
    with torch.inference_mode():
        for target in ("timm", "hf"):
            found = vitconvert.convert(source, to=target, output=tmp_path / target)
            assert _near(vitconvert.load_model(found.output)(x), wanted)
    silent = table.with_name("silent.toml")
    before_only = table.read_text().partition("[only]")[0].replace("sincos1d", "none")
    silent.write_text(before_only.replace("no_embed_class = false", ""))
    with pytest.raises(MissingFact, match="position_embedding"):
        vitconvert.load_model(tmp_path / "own.pth", table=silent)
    stated = {"position_embedding": "sincos1d"}
    with pytest.raises(MissingFact, match="no_embed_class"):
        vitconvert.load_model(tmp_path / "own.pth", table=silent, overrides=stated)
    stated["no_embed_class"] = False
    with torch.inference_mode():
        vit = vitconvert.load_model(tmp_path / "own.pth", table=silent, overrides=stated)
        assert _near(vit(x), wanted)


def test_a_stated_number_of_heads_gives_their_size():
    class Heads(tutorials.OneNorm):
        class Block(tutorials.OneNorm.Block):
            def __init__(self):
                super().__init__()
                del self.heads

            def forward(self, x):
                self.h = tutorials.HEADS
                y = self.norm(x)
                q, k, v = self.to_q(y), self.to_k(y), self.to_v(y)
                x = x + self.to_out(tutorials._attend(q, k, v, self.h))
                return x + self.net(self.norm(x))

    with pytest.raises(MissingFact, match="num_heads"):
        vitconvert.draft_table(module=Heads())
    found = vitconvert.draft_table(module=Heads(), overrides={"num_heads": tutorials.HEADS})
    assert found.computed.startswith("equal")


def test_error_neither_a_reference_nor_a_module(tmp_path):
    _trained(StoredSinusoid, tmp_path)
    with pytest.raises(UsageError, match="A ViT of the same sizes is needed"):
        vitconvert.draft_table(tmp_path / "own.pth")
    with pytest.raises(UsageError, match="no tensor names to draft a table for"):
        vitconvert.draft_table()
    with pytest.raises(UsageError, match="no tensors that repeat"):
        vitconvert.draft_table(module=nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)))


def test_a_draft_says_what_its_class_has(tmp_path):
    """A model that lacks one of its tensors is not written: the class could not load it."""
    table = tmp_path / "own.toml"
    vitconvert.draft_table(module=tutorials.PaperReplicating(), output=table)
    only = table.read_text().partition("[only]")[2]
    for line in (
        "qkv_bias = true",
        "class_token = true",
        "num_registers = 0",
        'activation = "gelu"',
    ):
        assert f"\n{line}\n" in only
    for lacking in (
        {"qkv_bias": False},
        {"class_token": False, "global_pool": "avg", "fc_norm": False},
    ):
        sizes = {"img_size": 40, "patch_size": 8, "embed_dim": 36, "depth": 3, "num_heads": 3}
        model = timm.create_model(
            "vit_tiny_patch16_224", **sizes, mlp_ratio=50 / 36, num_classes=7, **lacking
        )
        facts = {"num_heads": 3, "norm_eps": 1e-5, "image_size": 40, **_of(lacking)}
        torch.save(model.state_dict(), tmp_path / "timm.pth")
        with pytest.raises(NotRepresentable, match="has no such models") as error:
            vitconvert.plan_conversion(
                tmp_path / "timm.pth", to="own", table=table, overrides=facts
            )
        assert next(iter(lacking)) in str(error.value)


def _of(lacking):
    return {"pooling": "avg"} if "class_token" in lacking else {"pooling": "token"}


class NoHeads(tutorials.PaperReplicating):
    """How many heads there are is told by nothing, and other facts are guesses before a run."""

    def __init__(self):
        super().__init__()
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                del module.num_heads


def test_error_what_only_a_run_shows_is_not_said_to_be_found():
    with pytest.raises(MissingFact) as error:
        vitconvert.draft_table(module=NoHeads())
    found = error.value.evidence["sizes found"]
    assert "embed_dim=36" in found
    for guess in ("activation", "pooling", "norm_eps"):
        assert guess not in found


def test_a_draft_names_what_the_module_has_no_place_for(tmp_path):
    _trained(tutorials.PaperReplicating, tmp_path)
    smaller = tutorials.PaperReplicating()
    smaller.classifier[0] = nn.Identity()
    found = vitconvert.draft_table(tmp_path / "own.pth", module=smaller)
    assert found.computed == (
        "not run: the module has no place for tensors of the file: "
        "classifier.0.bias, classifier.0.weight"
    )


class FailingViT(tutorials.FusedPair):
    def forward(self, images):
        raise ValueError("needs a mask")


class AveragedViT(tutorials.FusedPair):
    def forward(self, images):
        return super().forward(images) + super().forward(images.flip(-1))


@pytest.mark.parametrize(
    "build", [FailingViT, pytest.param(AveragedViT, marks=pytest.mark.coverage)]
)
def test_what_only_a_run_shows_is_a_guess_without_one(build, tmp_path):
    table = tmp_path / "own.toml"
    found = vitconvert.draft_table(module=build(), output=table)
    text = table.read_text()
    for field in ("activation", "norm_eps", "pooling"):
        assert f"\n# {field} = " in text
        assert f"\n{field} = " not in text
        assert field not in found.config
    assert found.problem is not None
