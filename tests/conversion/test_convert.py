"""What is written is loaded by the programs it is for, and computes the same function."""

import errno
import json
import os
import shutil
import tomllib
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

import vitconvert
from tests.hub_server import HubServer, use_hub
from tests.packages import timm, transformers
from tests.small_models import SMALL_TIMM as SMALL
from vitconvert import whole
from vitconvert.conversion import record
from vitconvert.conversion.target import holders
from vitconvert.errors import NotRepresentable, OutputExists, ParityFailed, UsageError
from vitconvert.facts.surgery import cast
from vitconvert.file_formats import written_formats
from vitconvert.formats import hash_file
from vitconvert.programs import DescribedModel
from vitconvert.programs import timm as timm_program
from vitconvert.sources import references
from vitconvert.tables.dialects import builtin_tables


def _images(config, batch=2):
    shape = (batch, config.in_channels, *config.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vit_tiny_patch16_224", {}),
        ("vit_tiny_patch16_224", {**SMALL, "img_size": (48, 32), "in_chans": 4}),
        ("vit_base_patch16_clip_224", SMALL),
        ("vit_base_patch16_siglip_224", SMALL),
        ("vit_medium_patch16_reg4_gap_256", {**SMALL, "img_size": 64}),
        ("vit_tiny_patch16_224", {**SMALL, "act_layer": "quick_gelu", "qk_norm": True}),
        ("deit_tiny_distilled_patch16_224", {**SMALL, "img_size": 64}),
        ("vit_tiny_r_s16_p8_224", {**SMALL, "img_size": 64}),
    ],
    ids=["tiny", "rectangular", "clip", "siglip", "registers", "quick", "distilled", "root stem"],
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


def test_the_image_processor_of_the_output_is_the_checkpoints_own(timm_directory, tmp_path):
    output = tmp_path / "out"
    vitconvert.convert(timm_directory(), output=output, verify=False)
    pixels = np.random.default_rng(0).integers(0, 256, (300, 260, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)

    processor = transformers.AutoImageProcessor.from_pretrained(output, backend="pil")
    theirs = processor(image, return_tensors="pt").pixel_values[0]
    model = timm.create_model(f"local-dir:{output}", pretrained=False)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    ours = vitconvert.load_checkpoint(output).preprocessing
    assert torch.equal(ours(image), transform(image))
    assert theirs.shape == ours(image).shape


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
    assert [o.consumer for o in conversion.opened] == ["transformers"]
    assert conversion.opened[0].bit_equal
    reason = "timm has no architecture with these fixed parts; norm_eps 1e-12"
    if name == "ViTModel":
        reason = "timm VisionTransformer (plain, distilled, hybrid) has no place for 2 tensors"
    assert conversion.passed_over["timm"].startswith(reason)


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
        "  Targets that hold it as it is: hf, hf_flax, hf_tf, jeonsworld, keras_hub, "
        "lukemelas, mae, mmpretrain, mmseg, openclip, timm, torchvision, vit, vit_keras."
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


@pytest.mark.parametrize("to", ["vit", "timm"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vit_small_resnet26d_224", {"img_size": (64, 96)}),
        ("vit_base_mci_224", {"img_size": (35, 48), "in_chans": 4}),
    ],
)
def test_batch_norms_keep_every_byte(name, arguments, to, timm_directory, tmp_path):
    source = timm_directory(name, depth=2, num_classes=7, **arguments)
    conversion = vitconvert.convert(source, to=to, output=tmp_path / "out", verify=to == "timm")
    if to == "timm":
        assert conversion.parity.ok and conversion.opened[0].bit_equal
    before, after = (load_file(f / "model.safetensors") for f in (source, tmp_path / "out"))
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert after[key].dtype == tensor.dtype and torch.equal(after[key], tensor), key
    assert {int(t) for key, t in after.items() if key.endswith("num_batches_tracked")} == {9}


def test_batch_norms_in_our_own_names(timm_directory, tmp_path):
    source = timm_directory("vit_small_resnet26d_224", depth=2, num_classes=7, img_size=64)
    unheard_of = {"norm_eps": 3e-4}
    vitconvert.convert(source, output=tmp_path / "out", overrides=unheard_of, verify=False)
    before = vitconvert.load_model(source, overrides=unheard_of)
    after = vitconvert.load_model(tmp_path / "out")
    state = load_file(tmp_path / "out" / "model.safetensors")
    assert state.keys() == after.state_dict().keys() == before.state_dict().keys()
    x = _images(before.config)
    with torch.inference_mode():
        assert torch.equal(after(x), before(x))


def test_a_source_that_cannot_be_hashed_is_an_error(timm_directory, tmp_path, monkeypatch):
    def fail(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    source = timm_directory(**SMALL)
    monkeypatch.setattr(record, "hash_file", fail)
    with pytest.raises(OSError, match="Input/output error"):
        vitconvert.convert(source, output=tmp_path / "out", verify=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verify", [True, False])
def test_what_is_read_at_once_stays_in_the_page_cache(
    verify, timm_directory, tmp_path, monkeypatch
):
    told = []
    monkeypatch.setattr(whole, "_set_direct", lambda _, wanted: told.append(wanted) or False)
    vitconvert.convert(timm_directory(**SMALL), output=tmp_path / "out", verify=verify)
    assert told == ([] if verify else [True])


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
        "architecture vit_tiny_patch16_224, by vitconvert.json"
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


def test_weights_say_where_they_are_from_but_for_places_of_this_machine(timm_directory, tmp_path):
    vitconvert.convert(timm_directory(**SMALL), to="hf", output=tmp_path / "out", verify=False)
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata() == {
            "format": "pt",
            "vitconvert.version": vitconvert.__version__,
            "vitconvert.source_dialect": "timm",
            "vitconvert.target_dialect": "hf_vit",
        }


def test_weights_say_which_repository_they_are_from(timm_directory, tmp_path, monkeypatch):
    directory = timm_directory(**SMALL)
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    with HubServer({"org/vit": files}) as server:
        use_hub(monkeypatch, server, tmp_path)
        options = {"to": "hf", "max_shard_size": 9999, "verify": False}
        vitconvert.convert("hf:org/vit", output=tmp_path / "out", **options)
    for shard in (tmp_path / "out").glob("*.safetensors"):
        with safe_open(shard, "pt") as file:
            assert file.metadata() == {
                "format": "pt",
                "vitconvert.version": vitconvert.__version__,
                "vitconvert.source_dialect": "timm",
                "vitconvert.target_dialect": "hf_vit",
                "vitconvert.source_repo": "org/vit",
                "vitconvert.source_revision": server.branches["org/vit"]["main"],
                "vitconvert.source_sha256": sha256(files["model.safetensors"]).hexdigest(),
            }


def test_the_same_source_gives_the_same_bytes(timm_directory, tmp_path):
    source = timm_directory(**SMALL)
    for name in ("one", "two"):
        vitconvert.convert(source, output=tmp_path / name, verify=False)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_renamed_source_gives_the_same_weights(timm_directory, tmp_path):
    source = timm_directory(**SMALL)
    vitconvert.convert(source, output=tmp_path / "one", verify=False)
    shutil.move(source, tmp_path / "elsewhere")
    vitconvert.convert(tmp_path / "elsewhere", output=tmp_path / "two", verify=False)
    one, two = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


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


def test_an_output_of_an_earlier_version_is_not_replaced(timm_directory, tmp_path):
    """It states the hashes of weights alone, and so nothing tells whose the other files are."""
    source, output = timm_directory(**SMALL), tmp_path / "out"
    vitconvert.convert(source, output=output, verify=False)
    record = json.loads((output / "vitconvert.json").read_text())
    record["sha256"] = {"model.safetensors": record["sha256"]["model.safetensors"]}
    (output / "vitconvert.json").write_text(json.dumps(record))
    with pytest.raises(OutputExists) as caught:
        vitconvert.convert(source, to="jeonsworld", output=output, verify=False, overwrite=True)
    assert caught.value.details == ("README.md", "config.json")


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("earlier", [True, False], ids=["in an output", "in a directory of hers"])
def test_files_of_somebody_are_never_replaced(overwrite, earlier, timm_directory, tmp_path):
    source, output = timm_directory(**SMALL), tmp_path / "out"
    if earlier:
        vitconvert.convert(source, output=output, verify=False)
    else:
        output.mkdir()
        shutil.copy(source / "config.json", output)
    (output / "runs").mkdir()
    (output / "mine.txt").write_text("precious")
    before = sorted(path.name for path in output.iterdir())
    with pytest.raises(OutputExists) as caught:
        vitconvert.convert(source, output=output, verify=False, overwrite=overwrite)
    assert str(caught.value) == (
        "error: output-exists\n"
        f"  {output} contains what vitconvert did not write, or not so; it is not replaced.\n"
        f"{'' if earlier else '  config.json' + chr(10)}"
        "  mine.txt\n"
        "  runs\n"
        "  hint: move it elsewhere, or name another directory with -o."
    )
    assert sorted(path.name for path in output.iterdir()) == before
    assert (output / "mine.txt").read_text() == "precious"


def _itself(output, place):
    return output


def _one_file(output, place):
    return output / "model.safetensors.index.json"


def _a_link_to_it(output, place):
    place.symlink_to(output)
    return place


def _links_into_it(output, place):
    place.mkdir()
    for file in output.iterdir():
        (place / file.name).symlink_to(Path("..", output.name, file.name))
    return place


def _an_index_of_shards_in_it(output, place):
    shutil.copytree(output, place)
    for file in output.glob("*.safetensors"):
        (place / file.name).unlink()
        (place / file.name).symlink_to(file)
    return place / "model.safetensors.index.json"


def _hard_links(output, place):
    place.mkdir()
    for file in output.iterdir():
        (place / file.name).hardlink_to(file)
    return place


def _only_its_configuration(output, place):
    shutil.copytree(output, place)
    (place / "config.json").unlink()
    (place / "config.json").symlink_to(output / "config.json")
    return place


@pytest.mark.parametrize(
    "source_of",
    [
        _itself,
        _one_file,
        _a_link_to_it,
        _links_into_it,
        _an_index_of_shards_in_it,
        _hard_links,
        _only_its_configuration,
    ],
)
@pytest.mark.parametrize("linked", [False, True], ids=["output", "link to it"])
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
    assert lines[:2] == [
        "error: usage",
        "  The output would replace its own source.",
    ]
    assert lines[2].startswith("  source  ")
    assert lines[3:] == [f"  output  {output}", "  hint: -o names another directory."]
    assert _contents(tmp_path / "out") == before


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
    wrong = {"timm": lambda directory: lambda images: torch.zeros(len(images), 7)}
    monkeypatch.setattr(timm_program.Timm, "openers", lambda program, config: wrong)
    with pytest.raises(ParityFailed, match="timm loads the output and computes something else"):
        vitconvert.convert(source, output=output, overwrite=True)
    assert list(output.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "timm-model"]


def test_image_size_resamples_as_timm_does(timm_directory, tmp_path):
    source = timm_directory()
    conversion = vitconvert.convert(source, output=tmp_path / "out", image_size=(160, 192))
    assert conversion.ledger.changed == (
        "positions resampled from 14x14 to 10x12 patches (bicubic_antialias)",
    )
    theirs = timm.create_model(f"local-dir:{source}", pretrained=True, img_size=(160, 192)).eval()
    ours = vitconvert.load_model(tmp_path / "out")
    x = _images(ours.config)
    with torch.inference_mode():
        assert torch.equal(ours(x), theirs(x))
    made = vitconvert.load_checkpoint(tmp_path / "out").preprocessing
    assert made(Image.new("RGB", (300, 200))).shape == (3, 160, 192)


@pytest.mark.parametrize(
    ("name", "sizes", "changes"),
    [
        (
            "vit_tiny_patch16_224",
            {"patch_size": (8, 14)},
            (
                "patches resized from 16x16 to 8x14 pixels",
                "positions resampled from 14x14 to 28x16 patches (bicubic_antialias)",
            ),
        ),
        (
            "vit_tiny_patch16_224",
            {"patch_size": (32, 32), "image_size": (448, 448)},
            ("patches resized from 16x16 to 32x32 pixels",),
        ),
        (
            "vit_small_patch16_rope_224",
            {"patch_size": (12, 12), "image_size": (48, 36)},
            ("patches resized from 16x16 to 12x12 pixels",),
        ),
    ],
    ids=["patch", "patch and image", "rotation"],
)
def test_patch_size_resizes_as_timm_does(name, sizes, changes, timm_directory, tmp_path):
    source = timm_directory(name, **SMALL | {"embed_dim": 48})
    conversion = vitconvert.convert(source, to="timm", output=tmp_path / "out", **sizes)
    assert conversion.ledger.changed == changes
    assert "timm" in {opened.consumer for opened in conversion.opened}
    theirs = timm.create_model(f"local-dir:{source}", pretrained=True).eval()
    theirs.set_input_size(sizes.get("image_size", (224, 224)), sizes["patch_size"])
    x = _images(vitconvert.load_checkpoint(tmp_path / "out").config)
    written = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    with torch.inference_mode():
        assert torch.equal(written(x), theirs(x))
        assert torch.equal(vitconvert.load_model(source, **sizes)(x), theirs(x))


def test_sizes_that_change_nothing_are_no_change(timm_directory, tmp_path):
    same = {"image_size": 48, "patch_size": "16", "verify": False}
    source = timm_directory(**SMALL, img_size=48)
    assert vitconvert.convert(source, output=tmp_path / "out", **same).ledger.changed == ()


def test_a_stem_has_no_patches_of_pixels_to_resize(timm_directory):
    source = timm_directory("vit_tiny_r_s16_p8_224", **SMALL, img_size=64)
    with pytest.raises(UsageError) as caught:
        vitconvert.load_model(source, patch_size=4)
    assert str(caught.value) == (
        "error: usage\n"
        "  The patches of this model cannot be resized: they are cut from a stem's feature map.\n"
        "  patches are  8x8\n"
        "  asked        4x4"
    )


@pytest.mark.parametrize("sizes", [{"patch_size": 10}, {"image_size": 72}], ids=str)
def test_images_are_whole_numbers_of_patches(sizes, timm_directory):
    source = timm_directory(**SMALL, img_size=48)
    with pytest.raises(UsageError) as caught:
        vitconvert.load_model(source, **sizes)
    image, patch = sizes.get("image_size", 48), sizes.get("patch_size", 16)
    assert str(caught.value) == (
        "error: usage\n"
        f"  An image of {image}x{image} is no whole number of patches.\n"
        f"  a patch is  {patch}x{patch} pixels\n"
        "  hint: choose an image size of whole patches."
    )


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
