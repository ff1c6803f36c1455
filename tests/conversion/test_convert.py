"""What is written is loaded by the programs it is for, and computes the same function."""

import errno
import itertools
import json
import os
import shutil
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

import vitconvert
from tests.hub_server import HubServer, use_hub
from tests.packages import timm, transformers
from tests.sampling import sampled
from tests.small_models import SMALL_TIMM as SMALL
from vitconvert.conversion import record
from vitconvert.conversion.target import holders
from vitconvert.errors import NotRepresentable, OutputExists, ParityFailed, UsageError
from vitconvert.facts.surgery import cast
from vitconvert.file_formats import written_formats
from vitconvert.formats import hash_file
from vitconvert.programs import opening
from vitconvert.programs.program import DescribedModel
from vitconvert.sources import references
from vitconvert.tables.dialects import builtin_tables


def _images(config, batch=2):
    shape = (batch, config.in_channels, *config.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "arguments"),
    sampled(
        [
            ("vit_tiny_patch16_224", {**SMALL, "img_size": (48, 32), "in_chans": 4}),
            ("vit_tiny_patch16_224", {}),
            ("vit_base_patch16_clip_224", SMALL),
            ("vit_base_patch16_siglip_224", SMALL),
            ("vit_medium_patch16_reg4_gap_256", {**SMALL, "img_size": 64}),
            ("vit_tiny_patch16_224", {**SMALL, "act_layer": "quick_gelu", "qk_norm": True}),
            ("deit_tiny_distilled_patch16_224", {**SMALL, "img_size": 64}),
            ("vit_tiny_r_s16_p8_224", {**SMALL, "img_size": 64}),
        ],
        2,
        "slow",
    ),
    ids=["rectangular", "tiny", "clip", "siglip", "registers", "quick", "distilled", "root stem"],
)
def test_a_timm_model_comes_out_loadable_by_all_three(name, arguments, timm_directory, tmp_path):
    output = tmp_path / "out"
    conversion = vitconvert.convert(timm_directory(name, **arguments), output=output)

    assert conversion.parity.ok
    assert {opened.consumer for opened in conversion.opened} == {"timm", "transformers"}
    ours = vitconvert.load_model(output)
    x = _images(ours.config)
    theirs = timm.create_model(f"local-dir:{output}", pretrained=True).eval()
    wrapped = transformers.AutoModelForImageClassification.from_pretrained(output).eval()
    with torch.inference_mode():
        assert torch.equal(theirs(x), ours(x))
        assert torch.equal(wrapped(x).logits, ours(x))


def test_eps_that_timm_has_makes_a_directory_for_both(huggingface_directory, tmp_path):
    source = huggingface_directory(layer_norm_eps=1e-5, hidden_act="quick_gelu")
    conversion = vitconvert.convert(source, output=tmp_path / "out")
    assert conversion.target_dialect == "timm"
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["model_args"]["act_layer"] == "quick_gelu"
    assert "num_classes" not in written["model_args"]
    assert all(opened.relative <= 2e-5 for opened in conversion.opened)


def test_a_distillation_token_without_its_head_is_a_register_to_timm(
    huggingface_directory, tmp_path
):
    """timm's VisionTransformerDistilled averages two heads; this class has one."""
    deit = {"num_hidden_layers": 11, "layer_norm_eps": 1e-6}
    source = huggingface_directory("DeiTForImageClassification", **deit)
    done = vitconvert.convert(source, output=tmp_path / "timm", to="timm")
    assert "became a register" in str(done.ledger.changed)
    assert done.opened[0].consumer == "timm" and done.opened[0].bit_equal
    back = vitconvert.convert(tmp_path / "timm", output=tmp_path / "back", to="hf_deit")
    assert back.opened[0].consumer == "transformers" and back.opened[0].bit_equal
    before, after = (load_file(d / "model.safetensors") for d in (source, tmp_path / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())


def test_a_function_that_neither_can_hold_is_written_whole_in_our_own_names(
    timm_directory, tmp_path
):
    source = timm_directory(**SMALL)
    first = vitconvert.load_checkpoint(source)
    config = first.config.replace(attention_scale=0.5, norm_eps=3e-4)
    refused = {name for name, why in holders(DescribedModel(config=config)).items() if why is None}
    assert refused == {"vit"}


def test_targets_that_compute_another_function_are_refused_by_name(timm_directory, tmp_path):
    with pytest.raises(NotRepresentable) as caught:
        vitconvert.convert(timm_directory(), to="jax", output=tmp_path / "out", verify=False)
    assert str(caught.value) == (
        "error: not-representable\n"
        "  No dialect of 'jax' computes the function of these weights; the nearest is google_jax: "
        "activation: the weights need gelu, and there it is gelu_tanh.\n"
        "  others  1; -v lists them (in Python, details)\n"
        "  Targets that hold it as it is: equimo, hf, hf_flax, hf_tf, jeonsworld, keras_hub, "
        "lukemelas, mae, mmpretrain, mmseg, openclip, timm, torchvision, vit, vit_keras.\n"
        "  hint: --set activation=gelu_tanh takes the weights as trained with it, which changes "
        "the outputs by 1e-4 or 2e-4 of the largest; timm loads Google's weights so."
    )
    reason = "activation: the weights need gelu, and there it is gelu_tanh"
    names = ("google_jax", "google_jax_linen")
    assert caught.value.details == tuple(f"{name}: {reason}" for name in names)
    assert f"\n  google_jax_linen: {reason}\n" in caught.value.text(verbose=True)
    assert caught.value.exit_code == 5
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["hf", "jeonsworld", "torchvision", "hf_vit_memory"])
def test_other_targets_return_the_same_bytes(to, timm_directory, tmp_path):
    source = timm_directory()
    vitconvert.convert(source, to=to, output=tmp_path / "there", verify=False)
    back = vitconvert.load_checkpoint(
        tmp_path / "there", dialect=None if to.startswith("hf") else to
    )
    for name, tensor in vitconvert.load_checkpoint(source).tensors.items():
        assert torch.equal(back.tensors[name], tensor), name


def test_a_source_that_cannot_be_hashed_is_an_error(timm_directory, tmp_path, monkeypatch):
    def fail(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    source = timm_directory(**SMALL)
    monkeypatch.setattr(record, "hash_file", fail)
    with pytest.raises(OSError, match="Input/output error"):
        vitconvert.convert(source, output=tmp_path / "out", verify=False)
    assert not (tmp_path / "out").exists()


def test_provenance_says_where_everything_came_from(timm_directory, tmp_path):
    source = timm_directory()
    vitconvert.convert(source, output=tmp_path / "out")
    record = json.loads((tmp_path / "out" / "vitconvert.json").read_text())
    assert record["source"]["dialect"] == "timm"
    assert set(record["source"]["sha256"]) == {"config.json", "model.safetensors"}
    assert record["parity"]["ok"]
    assert record["ledger"]["read"] == record["ledger"]["used"] == 152
    assert record["origins"]["num_heads"] == "architecture vit_tiny_patch16_224"
    assert vitconvert.load_model(tmp_path / "out").config.origins["num_heads"] == (
        "architecture vit_tiny_patch16_224, recorded in vitconvert.json"
    )


@pytest.mark.parametrize(
    ("typed", "published"),
    [
        ("/home/jane doe/vit.pth", "vit.pth"),
        ("~/models/vit/", "vit"),
        ("../jane/vit.pth", "vit.pth"),
        ("local-dir:/home/jane/vit", "local-dir:vit"),
        ("local-dir:runs/vit", "local-dir:vit"),
        ("local-dir:vit", "local-dir:vit"),
        ("file:///home/jane/vit.pth", "vit.pth"),
        (r"C:\Users\jane\vit.pth", "vit.pth"),
        (r"\\server\jane\vit.pth", "vit.pth"),
        ("runs/may/vit", "vit"),
        ("./runs/vit.pth", "vit.pth"),
        ("here/vit", "vit"),
        ("org/vit", "org/vit"),
        ("org/vit@refs/pr/1", "org/vit@refs/pr/1"),
        ("hf-hub:org/vit@main", "hf-hub:org/vit@main"),
        ("hf://org/vit/runs/vit.pth", "hf://org/vit/runs/vit.pth"),
        ("timm:vit, random weights", "timm:vit, random weights"),
        ("vit.pth", "vit.pth"),
        ("https://example.org/a/vit.pth?token=abc", "https://example.org/a/vit.pth"),
    ],
)
def test_references_are_published_without_places_of_this_machine(
    typed, published, tmp_path, monkeypatch
):
    (tmp_path / "here" / "vit").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert references.published(typed) == published


def test_an_output_tells_no_place_of_this_machine(timm_directory, tmp_path):
    source = timm_directory(**SMALL)
    vitconvert.convert(source, output=tmp_path / "out")
    for file in ("vitconvert.json", "README.md", "config.json"):
        assert str(tmp_path) not in (tmp_path / "out" / file).read_text()
    record = json.loads((tmp_path / "out" / "vitconvert.json").read_text())
    assert record["source"]["reference"] == record["parity"]["source"] == "timm-model"


def test_an_output_names_a_table_of_ones_own_without_its_place(timm_directory, tmp_path):
    table = tmp_path / "mine.toml"
    table.write_text(
        '[dialect]\nextends = "timm"\n[config]\nnorm_eps = 0.25\n'
        '[preprocessing]\nresize = "squash"\ninterpolation = "bicubic"\n'
        'mean = 0.5\nstd = 0.5\nbackend = "torchvision"\n'
    )
    alone = shutil.copy(timm_directory(**SMALL) / "model.safetensors", tmp_path)
    stated = {"table": table, "overrides": {"num_heads": 3}}
    vitconvert.convert(alone, output=tmp_path / "out", verify=False, **stated)
    for file in ("vitconvert.json", "README.md", "config.json"):
        assert str(tmp_path) not in (tmp_path / "out" / file).read_text()
    record = json.loads((tmp_path / "out" / "vitconvert.json").read_text())
    assert record["origins"]["norm_eps"] == record["preprocessing"]["origin"] == "mine.toml"
    assert record["ledger"]["assumed"]["norm_eps"] == "0.25 (mine.toml)"
    assert "norm_eps 0.25 (mine.toml)\n" in (tmp_path / "out" / "README.md").read_text()


def _contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_an_output_lists_its_files_and_is_replaced_only_when_told_to(timm_directory, tmp_path):
    source, output = timm_directory(**SMALL), tmp_path / "out"
    sharded = {"to": "hf", "max_shard_size": 50000}
    vitconvert.convert(source, output=output, verify=False, **sharded)
    names = sorted(path.name for path in output.iterdir())
    record = json.loads((output / "vitconvert.json").read_text())
    assert record["files"] == names
    assert {"README.md", "model.safetensors.index.json", "vitconvert.json"} < set(names)
    before = _contents(output)
    with pytest.raises(OutputExists) as caught:
        vitconvert.convert(source, output=output, verify=False)
    assert str(caught.value) == (
        "error: output-exists\n"
        f"  {output} already exists, and is not empty.\n"
        "  hint: --force (in Python, overwrite=True) replaces it; -o names another directory."
    )
    assert _contents(output) == before
    # An edited file is its editor's, and a missing one is no reason to refuse.
    card = (output / "README.md").read_text()
    (output / "README.md").write_text("edited")
    with pytest.raises(OutputExists) as caught:
        vitconvert.convert(source, output=output, verify=False, overwrite=True)
    assert caught.value.details == ("README.md",)
    (output / "README.md").write_text(card)
    (output / "config.json").unlink()
    vitconvert.convert(source, output=output, verify=False, overwrite=True)
    assert (
        sorted(_contents(output)) == json.loads((output / "vitconvert.json").read_text())["files"]
    )
    assert "model.safetensors" in _contents(output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "timm-model"]


def test_sources_that_somebody_else_wrote_are_refused_by_name(timm_directory, tmp_path):
    source = timm_directory(**SMALL)
    before = _contents(source)
    for output, given in ((source, source), (source.parent, source / "model.safetensors")):
        with pytest.raises(OutputExists, match="contains what vitconvert did not write"):
            vitconvert.convert(given, output=output, overwrite=True)
    assert _contents(source) == before


def test_a_table_is_not_replaced_by_an_output(timm_directory, tmp_path):
    source, output = timm_directory(**SMALL), tmp_path / "out"
    vitconvert.convert(source, output=output, verify=False)
    table = tmp_path / "mine.toml"
    (output / "README.md").write_text('[dialect]\nextends = "timm"\n')
    record = json.loads((output / "vitconvert.json").read_text())
    record["sha256"]["README.md"] = hash_file(output / "README.md")
    (output / "vitconvert.json").write_text(json.dumps(record))
    table.symlink_to(output / "README.md")
    with pytest.raises(UsageError, match="replace its own source") as caught:
        vitconvert.convert(source, output=output, table=table, overwrite=True)
    assert caught.value.evidence["source"] == str(table)


def test_an_output_beside_its_source_or_inside_it(timm_directory):
    source = timm_directory(**SMALL)
    before = _contents(source)
    for _ in range(2):
        vitconvert.convert(source, output=source / "out", verify=False, overwrite=True)
    after = {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()}
    assert after == before


def test_an_output_that_a_consumer_reads_otherwise_is_not_written(
    timm_directory, tmp_path, monkeypatch
):
    source, output = timm_directory(**SMALL), tmp_path / "out"
    output.mkdir()
    # As if timm read the rows of the head in another order than they were kept in.
    usual = opening._open
    monkeypatch.setattr(opening, "_open", lambda *given: lambda x: usual(*given)(x).flip(-1))
    with pytest.raises(ParityFailed, match="timm loads the output and computes something else"):
        vitconvert.convert(source, output=output, overwrite=True, classes=[5, 2])
    assert list(output.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "timm-model"]


def test_sizes_that_change_nothing_are_no_change(timm_directory, tmp_path):
    same = {"image_size": 48, "patch_size": "16", "verify": False}
    source = timm_directory(**SMALL, img_size=48)
    assert vitconvert.convert(source, output=tmp_path / "out", **same).ledger.changed == ()


def test_counts_are_not_cast():
    tensors = {"running_mean": torch.ones(3), "num_batches_tracked": torch.tensor(2**20 + 1)}
    changed, words = cast(tensors, torch.bfloat16)
    assert words == "cast from float32 to bfloat16"
    assert changed["running_mean"].dtype == torch.bfloat16
    assert changed["num_batches_tracked"] is tensors["num_batches_tracked"]


def test_state_dicts_are_respelled_in_memory():
    model = timm.create_model("vit_tiny_patch16_224", **SMALL)
    theirs = vitconvert.convert_state_dict(
        model.state_dict(), to="hf", overrides={"num_heads": 3, "norm_eps": 1e-12}
    )
    assert theirs["vit.encoder.layer.1.attention.attention.key.weight"].shape == (30, 30)
    back = vitconvert.convert_state_dict(
        theirs, to="vit", overrides={"num_heads": 3, "norm_eps": 1e-12}
    )
    assert back.keys() == model.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())


def test_every_table_says_what_it_is_written_in():
    assert {t.container for t in builtin_tables().values()} <= set(written_formats())
    for path in (Path(__file__).parents[2] / "weights_map").glob("*.toml"):
        tomllib.loads(path.read_text())


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"image_size": 48}, "ignore_mismatched_sizes"),
        ({"layer_norm_eps": "1e-5"}, "layer_norm_eps"),
    ],
)
def test_a_configuration_that_its_own_project_refuses(lie, said, huggingface_directory, tmp_path):
    source = huggingface_directory(layer_norm_eps=1e-5)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | lie))
    conversion = vitconvert.convert(source, to="hf", output=tmp_path / "out")
    fact = "its own class does not take what config.json says: "
    assert fact in conversion.parity.skipped and said in conversion.parity.skipped
    assert [opened.summary() for opened in conversion.opened] == ["transformers: bit-equal"]
    assert vitconvert.load_model(tmp_path / "out").config.image_size == (24, 24)


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("ViTForImageClassification", "hf_vit"),
        ("ViTModel", "hf_vit_pooler"),
        ("DeiTForImageClassification", "hf_deit"),
        ("DeiTForImageClassificationWithTeacher", "hf_deit_teacher"),
        ("IJepaForImageClassification", "hf_ijepa"),
    ],
)
def test_eps_that_timm_cannot_state_keeps_the_layout_of_transformers(
    name, dialect, huggingface_directory, tmp_path
):
    conversion = vitconvert.convert(huggingface_directory(name), output=tmp_path / "out")
    assert conversion.target_dialect == dialect
    assert conversion.config.norm_eps == 1e-12
    assert [(o.consumer, o.bit_equal) for o in conversion.opened] == [("transformers", True)]
    reason = "timm has no architecture with these fixed parts; norm_eps 1e-12"
    if name == "ViTModel":
        reason = "timm VisionTransformer (plain, distilled, hybrid) has no place for 2 tensors"
    assert conversion.passed_over["timm"].startswith(reason)


STEMS = {
    "vit_small_resnet26d_224": {"img_size": (64, 96)},
    "vit_base_mci_224": {"img_size": (35, 48), "in_chans": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "to", "stated"),
    [
        *sampled(itertools.product(STEMS, ("vit", "timm"), ({},)), 3),
        ("vit_small_resnet26d_224", "vit", {"norm_eps": 3e-4}),  # in our own names
    ],
    ids=str,
)
def test_batch_norms_keep_every_byte(name, to, stated, timm_directory, tmp_path):
    source = timm_directory(name, depth=2, num_classes=7, **STEMS[name])
    conversion = vitconvert.convert(
        source, to=to, output=tmp_path / "out", overrides=stated, verify=to == "timm"
    )
    assert (conversion.target_dialect == "vit") == bool(stated)
    if to == "timm":
        assert conversion.parity.ok and conversion.opened[0].bit_equal
    before = vitconvert.load_checkpoint(source, overrides=stated).tensors
    after = vitconvert.load_checkpoint(tmp_path / "out").tensors
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert after[key].dtype == tensor.dtype and torch.equal(after[key], tensor), key
    assert {int(t) for key, t in after.items() if key.endswith("num_batches_tracked")} == {9}
    x = _images(conversion.config)
    models = (vitconvert.load_model(s, overrides=stated) for s in (source, tmp_path / "out"))
    with torch.inference_mode():
        assert torch.equal(*(model(x) for model in models))


def test_weights_say_where_they_are_from_but_for_places_of_this_machine(
    timm_directory, tmp_path, monkeypatch
):
    directory, options = timm_directory(**SMALL), {"to": "hf", "verify": False}
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    vitconvert.convert(directory, output=tmp_path / "local", **options)
    with HubServer({"org/vit": files}) as server:
        use_hub(monkeypatch, server, tmp_path)
        vitconvert.convert("hf:org/vit", output=tmp_path / "hub", max_shard_size=9999, **options)
    known = {
        "format": "pt",
        "vitconvert.version": vitconvert.__version__,
        "vitconvert.source_dialect": "timm",
        "vitconvert.target_dialect": "hf_vit",
    }
    published = {
        "vitconvert.source_repo": "org/vit",
        "vitconvert.source_revision": server.branches["org/vit"]["main"],
        "vitconvert.source_sha256": sha256(files["model.safetensors"]).hexdigest(),
    }
    for folder, wanted in (("local", known), ("hub", known | published)):
        for shard in (tmp_path / folder).glob("*.safetensors"):
            with safe_open(shard, "pt") as file:
                assert file.metadata() == wanted


def test_the_same_source_gives_the_same_bytes_wherever_it_lies(timm_directory, tmp_path):
    source = timm_directory(**SMALL)
    for name in ("one", "two"):
        vitconvert.convert(source, output=tmp_path / name, verify=False)
    assert _contents(tmp_path / "one") == _contents(tmp_path / "two")
    shutil.move(source, tmp_path / "elsewhere")
    vitconvert.convert(tmp_path / "elsewhere", output=tmp_path / "three", verify=False)
    one, three = (tmp_path / name / "model.safetensors" for name in ("one", "three"))
    assert one.read_bytes() == three.read_bytes()


def _linked(output, place, link, names="*"):
    """A copy of an output of which some files are links to it."""
    shutil.copytree(output, place)
    for file in output.glob(names):
        (place / file.name).unlink()
        link(place / file.name, file)
    return place


SAME_SOURCES = {
    "itself": lambda output, _: output,
    "one file": lambda output, _: output / "model.safetensors.index.json",
    "a link to it": lambda output, place: place.symlink_to(output) or place,
    "links into it": lambda output, place: _linked(output, place, Path.symlink_to),
    "an index of shards in it": lambda output, place: (
        _linked(output, place, Path.symlink_to, "*.safetensors") / "model.safetensors.index.json"
    ),
    "hard links": lambda output, place: _linked(output, place, Path.hardlink_to),
    "only its configuration": lambda output, place: _linked(
        output, place, Path.symlink_to, "config.json"
    ),
}


@pytest.mark.parametrize("source_of", SAME_SOURCES.values(), ids=SAME_SOURCES)
@pytest.mark.parametrize("linked", sampled([False, True], 2, "slow"), ids=["output", "link to it"])
def test_a_source_is_not_replaced_by_its_output(
    source_of, linked, timm_directory, tmp_path, monkeypatch
):
    output = tmp_path / "out"
    sharded = {"to": "hf", "max_shard_size": 50000}
    vitconvert.convert(timm_directory(**SMALL), output=output, verify=False, **sharded)
    before = _contents(output)
    source = source_of(output, tmp_path / "source")
    if linked:
        (tmp_path / "link").symlink_to("out")
        output = tmp_path / "link"
    monkeypatch.setattr("vitconvert.conversion.convert.source_hashes", None)  # no work was begun
    with pytest.raises(UsageError) as caught:
        vitconvert.convert(source, output=output, overwrite=True)
    lines = str(caught.value).splitlines()
    assert lines[:2] == ["error: usage", "  The output would replace its own source."]
    assert lines[2].startswith("  source  ")
    assert lines[3:] == [f"  output  {output}", "  hint: -o names another directory."]
    assert _contents(tmp_path / "out") == before


PATCHES = "patches resized from 16x16 to {} pixels"
POSITIONS = "positions resampled from 14x14 to {} patches (bicubic_antialias)"
TINY, ROPE = "vit_tiny_patch16_224", "vit_small_patch16_rope_224"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "image", "patch", "changes"),
    [
        (TINY, (160, 192), None, [POSITIONS.format("10x12")]),
        (TINY, None, (8, 14), [PATCHES.format("8x14"), POSITIONS.format("28x16")]),
        (TINY, (448, 448), (32, 32), [PATCHES.format("32x32")]),
        (ROPE, (48, 36), (12, 12), [PATCHES.format("12x12")]),
    ],
    ids=["image", "patch", "patch and image", "rotation"],
)
def test_sizes_change_as_timm_changes_them(name, image, patch, changes, timm_directory, tmp_path):
    source, output = timm_directory(name, **SMALL | {"embed_dim": 48}), tmp_path / "out"
    sizes = {"image_size": image, "patch_size": patch}
    conversion = vitconvert.convert(source, to="timm", output=output, **sizes)
    assert conversion.ledger.changed == tuple(changes)
    assert "timm" in {opened.consumer for opened in conversion.opened}
    theirs = timm.create_model(f"local-dir:{source}", pretrained=True).eval()
    theirs.set_input_size(image or (224, 224), patch)
    x = _images(vitconvert.load_checkpoint(output).config)
    written = timm.create_model(f"local-dir:{output}", pretrained=True).eval()
    with torch.inference_mode():
        assert torch.equal(written(x), theirs(x))
        assert torch.equal(vitconvert.load_model(source, **sizes)(x), theirs(x))
    made = vitconvert.load_checkpoint(output).preprocessing
    assert made(Image.new("RGB", (300, 200))).shape == (3, *(image or (224, 224)))


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        (
            "vit_tiny_r_s16_p8_224",
            {"patch_size": 4},
            "The patches of this model cannot be resized: they are cut from a stem's feature "
            "map.\n  patches are  8x8\n  asked        4x4",
        ),
        *(
            (
                TINY,
                sizes,
                f"An image of {image}x{image} does not divide into patches.\n"
                f"  a patch is  {patch}x{patch} pixels\n"
                "  hint: choose an image size that is a multiple of the patch size.",
            )
            for sizes, image, patch in (({"patch_size": 10}, 64, 10), ({"image_size": 72}, 72, 16))
        ),
    ],
    ids=["stem", "patch", "image"],
)
def test_sizes_that_cannot_be(name, sizes, message, timm_directory):
    source = timm_directory(name, **SMALL, img_size=64)
    with pytest.raises(UsageError) as caught:
        vitconvert.load_model(source, **sizes)
    assert str(caught.value) == f"error: usage\n  {message}"
