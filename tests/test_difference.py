"""What two checkpoints differ in, compared across projects."""

import json
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

import vitconvert
from tests.packages import timm, transformers
from tests.spelling import google_arrays
from vitconvert.errors import SourceError, UsageError
from vitconvert.formats import write_safetensors
from vitconvert.formats.container import Container, TensorInfo

SIZE = {"depth": 11, "embed_dim": 36, "num_heads": 3, "num_classes": 5, "img_size": 32}
SIZE |= {"patch_size": 8, "mlp_ratio": 73 / 36}


@pytest.fixture(scope="module")
def google(tmp_path_factory):
    """Google's file."""
    path = tmp_path_factory.mktemp("google") / "vit.npz"
    np.savez(path, **google_arrays(depth=11, heads=3, width=36, size=32))
    return path


@pytest.fixture(scope="module")
def read_by_timm(google):
    """The same weights, as timm reads them."""
    model = timm.create_model("vit_tiny_patch16_224", **SIZE)
    model.load_pretrained(str(google))
    return model


@pytest.fixture
def saved(tmp_path):
    """A model as timm saves it for the Hub."""

    def save(model, name="timm", **more):
        timm.models.save_for_hf(
            model, tmp_path / name, model_args=SIZE | more, safe_serialization=True
        )
        return tmp_path / name

    return save


def test_google_and_timm_have_one_spelling_and_two_functions(google, read_by_timm, saved):
    found = vitconvert.diff(google, saved(read_by_timm))
    assert (found.a.dialect, found.b.dialect, found.naming) == ("google_jax", "timm", "canonical")
    assert len(found.bit_equal) == len(read_by_timm.state_dict())
    assert not (found.values or found.only_a or found.only_b or found.headers)
    assert list(found.fields) == ["activation"]
    field = found.fields["activation"]
    assert (field.a, field.b) == ("gelu_tanh", "gelu")
    assert field.origin_a == "weights_map/google_jax.toml"
    assert field.origin_b == "architecture vit_tiny_patch16_224"
    assert not found.equal
    assert found.parts[0] == "configuration"


def test_nothing_differs_from_itself(google):
    found = vitconvert.diff(google, google)
    assert found.equal
    assert found.parts == ()


def test_one_number_is_found(google, read_by_timm, saved):
    state = {name: tensor.clone() for name, tensor in read_by_timm.state_dict().items()}
    state["blocks.3.attn.qkv.weight"][40, 7] += 0.25
    read_by_timm_too = timm.create_model("vit_tiny_patch16_224", **SIZE)
    read_by_timm_too.load_state_dict(state)
    found = vitconvert.diff(google, saved(read_by_timm_too))
    assert list(found.values) == ["blocks.3.attn.qkv.weight"]
    value = found.values["blocks.3.attn.qkv.weight"]
    assert (value.elements, value.differing, value.first) == (108 * 36, 1, (40, 7))
    assert value.largest == pytest.approx(0.25)
    assert found.to_dict()["values"]["blocks.3.attn.qkv.weight"]["differing"] == 1


def test_transformers_beside_timm(read_by_timm, saved, tmp_path):
    output = tmp_path / "hf"
    timms = saved(read_by_timm)
    config = transformers.ViTConfig(
        hidden_size=36, num_hidden_layers=11, num_attention_heads=3, intermediate_size=73,
        image_size=32, patch_size=8, num_labels=5, layer_norm_eps=1e-6,
        id2label=dict(enumerate("abcde")),
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    spelled = vitconvert.convert_state_dict(
        read_by_timm.state_dict(), to="hf_vit_memory", overrides={"num_heads": 3}
    )
    model.load_state_dict(spelled, strict=True)
    model.half().save_pretrained(output)
    found = vitconvert.diff(timms, output)
    assert found.fields == {}
    assert len(found.headers) == len(spelled) - 22 * 2  # q, k and v are one for us
    info, other = found.headers["blocks.10.attn.qkv.weight"]
    assert info == TensorInfo(dtype="float32", shape=(108, 36))
    assert other == TensorInfo(dtype="float16", shape=(108, 36))
    assert {value.equal_in for value in found.values.values()} == {"float16"}
    assert found.bit_equal == ()
    assert "only b says what the classes are called" in found.unstated


def test_labels_and_preprocessing(google, tmp_path):
    for name, labels, mean in (("a", "abcde", 0.5), ("b", "abxde", 0.25)):
        vitconvert.convert(google, output=tmp_path / name, verify=False)
        companion = tmp_path / name / "config.json"
        config = json.loads(companion.read_text())
        config["pretrained_cfg"]["mean"] = [mean] * 3
        companion.write_text(json.dumps(config | {"label_names": list(labels)}))
    found = vitconvert.diff(tmp_path / "a", tmp_path / "b")
    assert found.labels == ("class 2 is 'c' in a and 'x' in b",)
    assert found.preprocessing == ("mean is (0.5, 0.5, 0.5) here and (0.25, 0.25, 0.25) there",)
    assert found.parts == ("preprocessing", "labels")


def test_shapes_and_missing_tensors(google, saved):
    other = timm.create_model("vit_tiny_patch16_224", **SIZE | {"img_size": 24, "num_classes": 0})
    found = vitconvert.diff(google, saved(other, img_size=24, num_classes=0))
    assert list(found.only_a) == ["head.weight", "head.bias"]
    assert found.only_b == {}
    shapes = {name: (a.shape, b.shape) for name, (a, b) in found.headers.items()}
    assert shapes == {"pos_embed": ((1, 17, 36), (1, 10, 36))}
    assert "pos_embed" not in found.values
    assert set(found.fields) >= {"image_size", "num_classes"}


def test_files_of_no_known_kind_are_compared_by_their_own_names(tmp_path):
    for name, number in (("a", 1.0), ("b", 2.0)):
        tensors = {"same": torch.ones(3), "x": torch.full((2, 2), number), name: torch.ones(1)}
        write_safetensors(tmp_path / name, tensors)
    found = vitconvert.diff(tmp_path / "a", tmp_path / "b")
    assert found.naming == "raw"
    assert (list(found.only_a), list(found.only_b)) == (["a"], ["b"])
    assert found.bit_equal == ("same",)
    assert found.values["x"].largest == 1.0
    assert found.a.problem.code == "unknown-dialect"


def test_a_fact_that_is_missing_on_one_side(google, read_by_timm, saved, tmp_path):
    bare = tmp_path / "bare.pt"
    torch.save(read_by_timm.state_dict(), bare)
    found = vitconvert.diff(saved(read_by_timm), bare)
    assert found.naming == "raw"
    assert found.b.problem.code == "missing-fact"
    assert found.equal
    told = vitconvert.diff(
        google, bare, reading_b={"overrides": {"num_heads": 3, "activation": "gelu_tanh"}}
    )
    assert told.naming == "canonical"
    assert told.equal


def test_what_plays_no_part_is_listed(google, read_by_timm, tmp_path):
    theirs = dict(np.load(google)) | {"opt/step": np.ones(3, np.float32)}
    np.savez(tmp_path / "with_step.npz", **theirs)
    table = tmp_path / "mine.toml"
    table.write_text('[dialect]\nextends = "google_jax"\n[ignore]\n"opt/*" = "of the training"\n')
    found = vitconvert.diff(google, tmp_path / "with_step.npz", reading_b={"table": table})
    assert found.b.ignored == {"opt/step": "of the training"}
    assert found.equal


def test_a_header_reads_no_weights(google, read_by_timm, saved, monkeypatch):
    def read(*_):
        raise AssertionError("weights were read")

    monkeypatch.setattr(Container, "read", read)
    found = vitconvert.diff(google, saved(read_by_timm), header=True)
    assert found.values is None and found.bit_equal is None
    assert list(found.fields) == ["activation"]
    assert vitconvert.diff(google, google, header=True).equal


def test_headers_are_compared_without_torch(google):
    code = (
        "import sys, vitconvert\n"
        f"vitconvert.diff({str(google)!r}, {str(google)!r}, header=True)\n"
        "print(sorted({'torch', 'timm', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_tensor_is_read_once_and_let_go(google, read_by_timm, saved, monkeypatch):
    alive, most, names, read = weakref.WeakSet(), [], [], Container.read

    def counted(self, name):
        tensor = read(self, name)
        alive.add(tensor)
        most.append(len(alive))
        names.append((self.path, name))
        return tensor

    monkeypatch.setattr(Container, "read", counted)
    vitconvert.diff(google, saved(read_by_timm))
    assert len(names) == len(set(names)) == 184 + 140
    assert max(most) <= 4  # q, k and v of one side, and what they make up on the other


def test_errors_of_the_user_are_no_differences(google, tmp_path):
    with pytest.raises(SourceError):
        vitconvert.diff(google, tmp_path / "nowhere")
    with pytest.raises(UsageError):
        vitconvert.diff(google, google, reading_b={"dialect": "nonsense"})
    with pytest.raises(UsageError):
        vitconvert.diff(google, google, reading_a={"overrides": {"num_head": 3}})
