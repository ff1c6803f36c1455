"""What a comparison cannot see is said, each only where it applies; an ordinary report is calm."""

import json
from functools import partial

import pytest
import torch

from tests.originals.spelling import HEADS, dinov3
from tests.packages import timm, transformers
from tests.parity.team import TABLE, TeamViT
from vitconvert.api import compare, convert, load_checkpoint, verify
from vitconvert.parity.untested import dropout, ignored_tensors, unseen_of_models

once = partial(verify, dtypes=("float32",))
PREPROCESSING = "preprocessing of images (--images compares it)"
NAMES = ["cat", "dog", "tabby_cat", "owl", "eel"]


@pytest.fixture
def hf(huggingface_checkpoint):
    def save(**arguments):
        kinds = transformers.ViTConfig, transformers.ViTForImageClassification
        return huggingface_checkpoint(*kinds, num_labels=5, image_size=24, **arguments)

    return save


def named(folder, names):
    """The same checkpoint with other names of its classes."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["id2label"] = {str(i): name for i, name in enumerate(names)}
    path.write_text(json.dumps(config))
    return folder


def copy_of(folder, name):
    other = folder.parent / name
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    return other


def test_whole_configurations_leave_the_preprocessing_alone(hf, timm_checkpoint):
    for checkpoint in (hf(), timm_checkpoint()):
        assert once(checkpoint).not_tested == (PREPROCESSING,)


def test_a_wrong_number_of_heads_is_equal_and_said_to_be_untested(plain):
    report = once(plain, overrides={"num_heads": 5})
    assert report.ok  # for timm's class was built with five heads too
    assert report.not_tested == (
        "num_heads 5 (stated by you), which the reference uses too",
        "image_size 24x24, no_embed_class False (assumed: 9 patches form a square grid), which the "
        "reference uses too",
        "activation gelu, norm_eps 1e-06, pooling token (weights_map/timm.toml), which the "
        "reference uses too",
        PREPROCESSING,
    )
    assert f"\n  not tested: {report.not_tested[0]}\n" in report.summary()
    ran = f"Executed: {report.reference} and vitconvert's ViT"
    assert report.executed == f"{ran}; no code stored in the checkpoint."
    assert report.summary().endswith(report.executed)


def test_what_torchvision_knows_by_itself_is_tested(torchvision_file):
    report = once(torchvision_file, overrides={"num_heads": 3})
    said = "\n".join(report.not_tested)
    assert "num_heads 3 (stated by you)" in said
    assert "norm_eps 1e-06 (weights_map/torchvision.toml)" in said
    assert "activation" not in said


@pytest.mark.slow
def test_an_architecture_is_the_users_word_or_the_checkpoints_own(randomise, tmp_path):
    tiny = randomise(timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=5))
    torch.save(tiny.state_dict(), tmp_path / "tiny.pth")
    own = {"img_size": 32}
    timm.models.save_for_hf(tiny, tmp_path / "tiny", model_args=own)
    asked = {"dtypes": ("float32",), "batch": 1}
    report = verify(
        tmp_path / "tiny.pth",
        architecture="vit_tiny_patch16_224",
        overrides={"image_size": 32},
        **asked,
    )
    assert "num_heads 3" in next(f for f in report.not_tested if "(architecture vit_tiny" in f)
    assert verify(tmp_path / "tiny", **asked).not_tested == (PREPROCESSING,)


def test_what_the_other_checkpoint_knows_from_elsewhere_is_tested(
    plain, randomise, tmp_path, timm_checkpoint
):
    stated = {"num_heads": 3, "image_size": (32, 24)}
    whole = timm_checkpoint(embed_dim=30, num_heads=3)
    torch.save(timm.create_model(f"local-dir:{whole}", pretrained=True).state_dict(), plain)
    mine = load_checkpoint(plain, overrides=stated)
    neither = "the order of classes: neither side names them"
    report = once(mine, against=whole)
    assert report.ok
    assert report.not_tested == (neither, PREPROCESSING)
    report = once(whole, against=mine)
    assert report.not_tested == (neither, PREPROCESSING)
    report = once(mine, against=load_checkpoint(plain, overrides=stated))
    assert report.not_tested[0].startswith("image_size 32x24, num_heads 3 (stated by you)")


@pytest.fixture
def team_file(randomise, tmp_path):
    """A team's weights beside the training of two heads, and a table that ignores these."""
    (tmp_path / "team.toml").write_text(TABLE + '\n[ignore]\n"aux.{p}" = "a head for training"\n')
    weights = randomise(TeamViT(depth=2)).state_dict()
    more = {"aux.weight": torch.ones(3, 30), "aux.bias": torch.zeros(3)}
    torch.save(weights | more, tmp_path / "team.pth")
    return weights


def test_tensors_that_a_users_table_ignores_are_named(team_file, tmp_path):
    stated = {"num_heads": 3, "image_size": (32, 24), "patch_size": (8, 8)}
    mine = load_checkpoint(tmp_path / "team.pth", table=tmp_path / "team.toml", overrides=stated)
    model = TeamViT(depth=2)
    model.load_state_dict(team_file)
    (tmp_path / "alone.toml").write_text(TABLE)
    report = compare(model.eval(), mine, table=tmp_path / "alone.toml")
    assert report.ok
    assert report.not_tested == (  # what the user said of heads is tested: the model has its own
        "2 tensors ignored by your table: aux.weight, aux.bias",
        "the order of classes: neither side names them",
        PREPROCESSING,
    )


def test_tensors_that_the_user_ignores_and_a_head_that_has_another_name(plain, tmp_path):
    tensors = torch.load(plain)
    tensors = {name.replace("head.", "fc."): tensor for name, tensor in tensors.items()}
    torch.save(tensors | {"aux.weight": torch.ones(3, 30)}, tmp_path / "own.pth")
    stated = {"overrides": {"num_heads": 3}, "ignore": ["aux.*"]}
    said = once(tmp_path / "own.pth", **stated).not_tested
    assert "1 tensor that you ignored: aux.weight" in said
    assert "fc reads what the reference's head does (pooling token): by its name only" in said
    said = once(plain, overrides={"num_heads": 3}).not_tested
    assert not any("ignored" in fact or "reads what" in fact for fact in said)


def test_tensors_that_a_dialect_ignores_are_named_unless_their_values_prove_it(
    huggingface_checkpoint,
):
    kinds = transformers.ViTMAEConfig, transformers.ViTMAEForPreTraining
    decoder = {"decoder_hidden_size": 24, "decoder_num_hidden_layers": 1}
    decoder |= {"decoder_num_attention_heads": 3, "decoder_intermediate_size": 20}
    sizes = {"image_size": 24, "hidden_size": 36}
    checkpoint = load_checkpoint(huggingface_checkpoint(*kinds, **sizes, **decoder))
    binding = checkpoint.weights.recognised.binding
    said = once(checkpoint).not_tested
    count = len(binding.ignored.keys() - binding.guarded.keys())
    assert count > 3
    assert said[0].startswith(f"{count} tensors ignored by weights_map/hf_")
    assert said[0].endswith(f" and {count - 3} more")


def test_constants_are_proved(tmp_path):
    torch.save(dinov3(), tmp_path / "dinov3.pth")
    stated = {"num_heads": HEADS, "image_size": 24}
    checkpoint = load_checkpoint(tmp_path / "dinov3.pth", overrides=stated)
    assert checkpoint.weights.recognised.binding.guarded
    (said,) = ignored_tensors(checkpoint)
    assert said == "1 tensor ignored by weights_map/dinov3.toml: mask_token"


def test_dropout_is_told_where_there_is_any(hf):
    report = once(hf(attention_probs_dropout_prob=0.25))
    assert report.not_tested == (
        f"dropout of {report.reference} (rates up to 0.25): it acts in training only",
        PREPROCESSING,
    )


def test_a_module_of_ones_own_has_its_dropout_and_its_mode(randomise):
    model = randomise(TeamViT(depth=1))
    assert unseen_of_models(("mine", model)) == ()
    model.regular = torch.nn.Dropout(0.1)
    model.none = torch.nn.Dropout(0.0)
    assert unseen_of_models(("mine", model.eval())) == (
        "dropout of mine (rates up to 0.1): it acts in training only",
    )
    model.regular.p = 0.0
    assert unseen_of_models(("mine", model.train())) == (
        "training mode: mine is in it, and a copy in eval mode was compared",
    )


def test_stochastic_depth_is_dropout():
    from timm.layers import DropPath

    assert list(dropout([("it", DropPath(0.3))])) == [
        "dropout of it (rates up to 0.3): it acts in training only"
    ]


@pytest.mark.parametrize(
    ("theirs", "note"),
    [
        (NAMES[::-1], "classes are in another order: 0 is 'cat' here and 'eel' there, and 3 more"),
        (
            ["Cat", "DOG", "tabby cat", "owl", "a\u001b[31mnt"],  # spellings are no difference
            "classes differ: 4 is 'eel' here and 'a\\\\x1b[31mnt' there",
        ),
    ],
)
def test_other_names_of_classes_are_told(theirs, note, hf):
    mine = named(hf(), NAMES)
    report = verify(mine, against=named(copy_of(mine, "theirs"), theirs), dtypes=("float32",))
    assert report.ok  # not a number differs
    assert report.notes[0] == note
    assert report.not_tested == (PREPROCESSING,)


def test_names_of_one_side_alone_cannot_be_compared(hf):
    mine = named(hf(), NAMES)
    theirs = named(copy_of(mine, "theirs"), [f"LABEL_{i}" for i in range(5)])
    report = once(mine, against=theirs)
    assert f"the order of classes: only {mine} names them" in report.not_tested


def test_a_projection_has_no_classes(huggingface_checkpoint):
    kinds = transformers.CLIPVisionConfig, transformers.CLIPVisionModelWithProjection
    clip = huggingface_checkpoint(*kinds, image_size=24, projection_dim=20)
    report = once(clip, against=clip)
    assert report.ok
    assert not any("classes" in fact for fact in report.not_tested)


def test_the_card_and_the_record_say_it_too(plain, tmp_path):
    output = tmp_path / "out"
    convert(plain, to="timm", output=output, overrides={"num_heads": 3})
    card = (output / "README.md").read_text()
    parity = json.loads((output / "vitconvert.json").read_text())["parity"]
    assert "not tested: num_heads 3 (stated by you)" in card
    assert "no code stored in the checkpoint." in card
    told = "num_heads 3 (stated by you), which the reference uses too"
    assert parity["not_tested"][0] == told
    assert parity["executed"] in card
    assert str(tmp_path) not in card + json.dumps(parity)


def test_weights_in_a_spelling_of_ones_own_do_not_show_the_code(team_file, tmp_path):
    (tmp_path / "alone.toml").write_text(TABLE)
    stated = {"num_heads": 3, "image_size": (32, 24), "patch_size": (8, 8)}
    mine = load_checkpoint(tmp_path / "team.pth", table=tmp_path / "team.toml", overrides=stated)
    convert(mine, output=tmp_path / "converted", verify=False)
    report = verify(mine, against=tmp_path / "converted")
    assert report.ok
    assert report.not_tested[0].startswith("your own code: --module runs it")
