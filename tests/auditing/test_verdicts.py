"""Loads that are whole under other names, and loads of which one thing is wrong."""

import re

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import vitconvert
from tests.packages import transformers

DEPTH, WIDTH = 11, 24


def blocks(*names, shape=(WIDTH,)):
    """Random tensors of names in each block."""
    return {f"blocks.{i}.{name}": torch.randn(shape) for i in range(DEPTH) for name in names}


def holding(tensors):
    """A model with parameters of these names."""
    model = nn.Module()
    for name, tensor in tensors.items():
        *way, last = name.split(".")
        part = model
        for word in way:
            if not hasattr(part, word):
                part.add_module(word, nn.Module())
            part = getattr(part, word)
        part.register_parameter(last, nn.Parameter(tensor.clone()))
    return model


def audited(tensors, file):
    return vitconvert.audit_load(lambda: holding(tensors), file)


def renamed(tensors, names):
    words = re.compile("|".join(map(re.escape, names)))
    return {words.sub(lambda found: names[found[0]], n): t for n, t in tensors.items()}


SIBLINGS = [
    {"layer_norm_1": "layernorm_before", "layer_norm_2": "layernorm_after"},
    {"norm1": "input_norm", "norm2": "mlp_norm"},
    {"fc1": "up", "fc2": "down"},
    {"ls1.gamma": "scale.attention", "ls2.gamma": "scale.mlp"},
    {"mlp.0": "mlp.into", "mlp.2": "mlp.out_of"},
    {"w1": "gate", "w2": "down", "w3": "up"},
    {"conv1": "first.conv", "conv2": "second.conv", "conv10": "tenth.conv"},
]


@pytest.mark.parametrize("names", SIBLINGS)
@pytest.mark.parametrize("reverse", [False, True])
def test_siblings_whose_numbers_become_words(names, reverse):
    torch.manual_seed(0)
    file = blocks(*names)
    model = renamed(file, names)
    if reverse:
        file, model = model, file
    assert audited(model, file).complete
    first, second = [n for n in model if n.startswith("blocks.3.")][:2]
    model[first], model[second] = model[second], model[first]
    audit = audited(model, file)
    assert set(audit.misplaced) == {first, second}
    assert "hold the file's numbers for others" in str(audit)


@pytest.mark.parametrize("reverse", [False, True])
def test_siblings_that_are_exchanged_in_all_blocks(reverse):
    file = blocks("norm1", "norm2")
    model = renamed(file, {"norm1": "norm_after", "norm2": "norm_before"})
    if reverse:
        file, model = model, file
    assert set(audited(model, file).misplaced) == set(model)


def test_the_tensor_of_another_block_under_other_names():
    file = blocks("norm1")
    model = renamed(file, {"blocks": "layers", "norm1": "ln"})
    model["layers.4.ln"] = model["layers.9.ln"]
    audit = audited(model, file)
    assert set(audit.misplaced) == {"layers.4.ln"}
    shared = {f"heads.{i}.weight": file["blocks.0.norm1"] for i in range(4)}
    assert audited(renamed(shared, {"heads": "decoder"}), shared).complete


def swapped(tensor):
    order = torch.arange(len(tensor))
    order[1], order[4] = 4, 1
    return tensor[order]


TAMPERED = {
    "zeros": lambda t: t * 0,
    "half": lambda t: t * (torch.arange(len(t)) % 2).reshape(-1, *[1] * (t.ndim - 1)),
    "a row of zeros": lambda t: t * (torch.arange(len(t)) != 5).reshape(-1, *[1] * (t.ndim - 1)),
    "swapped": swapped,
    "scaled": lambda t: t * 1.01,
    "sign": lambda t: -t,
    "the sign of a row": lambda t: torch.cat([-t[:1], t[1:]]),
}


@pytest.mark.parametrize("how", TAMPERED)
@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("prefix", ["", "wrapped."])
@pytest.mark.parametrize(
    "name", ["vit.layers.1.attention.q_proj.weight", "vit.layers.1.layernorm_before.bias"]
)
def test_one_tensor_of_a_vit(tmp_path_factory, how, live, prefix, name):
    folder, state = saved_vit(tmp_path_factory)
    model = transformers.ViTForImageClassification.from_pretrained(folder)
    tensor = dict(model.named_parameters())[name]
    with torch.no_grad():
        tensor.copy_(TAMPERED[how](tensor.detach()))
    file = {prefix + n: t for n, t in state.items()}
    audit = vitconvert.audit_load(model if live else lambda: model, file)
    lost = {*audit.untouched, *audit.misplaced, *audit.unexplained}
    assert not audit.complete and lost == {name}, audit
    assert name in str(audit)


_SAVED = []


def saved_vit(tmp_path_factory):
    if not _SAVED:
        sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3}
        config = transformers.ViTConfig(
            **sizes, intermediate_size=40, image_size=32, patch_size=8, num_labels=7
        )
        model = transformers.ViTForImageClassification(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        folder = tmp_path_factory.mktemp("vit")
        model.save_pretrained(folder)
        _SAVED.extend((folder, load_file(folder / "model.safetensors")))
    return _SAVED


def test_a_square_matrix_that_is_transposed():
    square, wide = blocks("q.weight", shape=(24, 24)), blocks("up.weight", shape=(24, 40))
    model = {**square, **wide}
    everything = {name: tensor.T for name, tensor in model.items()}
    assert audited(everything, model).complete  # as kernels of JAX are
    wrong = {**model, "blocks.2.q.weight": model["blocks.2.q.weight"].T}
    assert set(audited(wrong, model).misplaced) == {"blocks.2.q.weight"}


def parts(name, *words, shape=(12, 16)):
    return {f"{name}.{word}.weight": torch.randn(shape) for word in words}


def test_zeros_where_the_file_has_a_part():
    file = {f"attn.{part}.bias": torch.randn(40) for part in ("query", "key", "value")}
    q, k, v = file.values()
    assert audited({"attn.qkv.bias": torch.cat([q, k, v])}, file).complete
    wrong = {"attn.qkv.bias": torch.cat([q, torch.zeros(40), v])}
    assert not audited(wrong, file).complete
    assert audited(wrong, {n: t for n, t in file.items() if "key" not in n}).complete
    wrong = {"attn.qkv.bias": torch.cat([q, k, v[:30], torch.zeros(10)])}
    assert audited(wrong, file).unexplained == ("attn.qkv.bias",)


@pytest.mark.parametrize("shape", [(40,), (40, WIDTH)])
@pytest.mark.parametrize("parts", ["kkv", "qqv", "qkk", "qkq", "qvv"])
def test_a_part_that_is_joined_twice(parts, shape):
    names = {"q": "query", "k": "key", "v": "value"}
    file = {f"attn.{name}.x": torch.randn(shape) for name in names.values()}

    def joined(letters):
        return {"attn.qkv.x": torch.cat([file[f"attn.{names[one]}.x"] for one in letters])}

    assert audited(joined("qkv"), file).complete
    (said,) = audited(joined(parts), file).misplaced.values()
    assert "more than once" in said and "is in none" in said


THEIRS = {"attention.query": "self.q", "attention.key": "self.k", "attention.value": "self.v"}
THEIRS |= {"norm_before": "norm1", "norm_after": "norm2", "dense": "fc1"}


@pytest.mark.parametrize(
    ("wrong", "held"),
    [("self.q", "self.k"), ("self.v", "self.k"), ("self.k", "self.q"), ("norm1", "norm2")],
)
def test_siblings_that_hold_the_same(wrong, held):
    """A class that renames, where one parameter was overwritten by the one beside it."""
    file = blocks(*THEIRS, shape=(WIDTH, WIDTH))
    model = renamed(file, THEIRS)
    assert audited(model, file).complete
    name = f"blocks.3.{wrong}"
    assert set(audited({**model, name: model[f"blocks.3.{held}"]}, file).misplaced) == {name}
    every = {n: model[n.replace(wrong, held)] for n in model if n.endswith(wrong)}
    found = set(audited({**model, **every}, file).misplaced)
    # Of norms, no name says which is the other one where all blocks are so.
    assert found >= set(every) and (wrong == "norm1" or found == set(every))


def test_the_block_that_holds_anothers_tensor():
    file = blocks(*THEIRS, shape=(WIDTH, WIDTH))
    model = renamed(file, THEIRS)
    name = "blocks.2.fc1"
    assert set(audited({**model, name: model["blocks.0.fc1"]}, file).misplaced) == {name}


def expert_files():
    return {
        f"experts.{i}.{part}.weight": torch.randn(shape)
        for i in range(12)
        for part, shape in (("gate", (10, 16)), ("up", (10, 16)), ("down", (16, 10)))
    }


@pytest.mark.parametrize("layout", ["(E, 2I, H)", "(E, H, 2I)", "interleaved"])
def test_stacked_experts(layout):
    file = expert_files()

    def stacked(order, file=file, exchanged=()):
        made = []
        for i in order:
            words = ("up", "gate") if i in exchanged else ("gate", "up")
            gate, up = (file[f"experts.{i}.{part}.weight"] for part in words)
            both = torch.stack([gate, up], 1).flatten(0, 1) if layout == "interleaved" else None
            both = torch.cat([gate, up]) if both is None else both
            made.append(both if layout == "(E, 2I, H)" else both.T)
        down = torch.stack([file[f"experts.{i}.down.weight"] for i in order])
        return {"experts.gate_up": torch.stack(made), "experts.down": down}

    assert audited(stacked(range(12)), file).complete
    assert set(audited(stacked(sorted(range(12), key=str)), file).misplaced) == set(stacked([0]))
    lost = {n: t * 0 if ".5.up" in n else t for n, t in file.items()}
    assert audited(stacked(range(12), lost), file).unexplained == ("experts.gate_up",)
    moved = {n: swapped(t) if ".5.gate" in n else t for n, t in file.items()}
    assert set(audited(stacked(range(12), moved), file).misplaced) == {"experts.gate_up"}
    for exchanged in (range(12), [5]):
        audit = audited(stacked(range(12), exchanged=exchanged), file)
        assert set(audit.misplaced) == {"experts.gate_up"}


@pytest.mark.parametrize("order", [("gate", "up"), ("up", "gate")])
def test_gates_that_are_joined_or_taken_apart(order):
    apart = blocks("mlp.gate_proj.weight", "mlp.up_proj.weight", shape=(40, WIDTH))
    joined = {
        f"blocks.{i}.mlp.gate_up_proj.weight": torch.cat(
            [apart[f"blocks.{i}.mlp.{word}_proj.weight"] for word in order]
        )
        for i in range(DEPTH)
    }
    right = order == ("gate", "up")
    assert set(audited(joined, apart).misplaced) == (set() if right else set(joined))
    assert set(audited(apart, joined).misplaced) == (set() if right else set(apart))
    # No name says here which comes first.
    assert audited(renamed(joined, {"gate_up_proj": "fc1"}), apart).complete


def test_tensors_taken_apart_in_another_order():
    file = {f"blocks.{i}.in_proj": torch.randn(36, 12) for i in range(DEPTH)}
    model = {
        f"layers.{i}.{part}_proj": rows
        for i in range(DEPTH)
        for part, rows in zip("qkv", file[f"blocks.{i}.in_proj"].chunk(3), strict=True)
    }
    assert audited(model, file).complete
    q, k = "layers.3.q_proj", "layers.3.k_proj"
    assert set(audited({**model, q: model[k], k: model[q]}, file).misplaced) == {q, k}
    other = "layers.5.q_proj"
    assert set(audited({**model, q: model[other], other: model[q]}, file).misplaced) == {q, other}


def test_rotary_rows_by_heads_are_a_layout():
    """Meta's rows of queries are those of two halves in transformers."""
    file = {f"layers.{i}.attention.wq.weight": torch.randn(24, 16) for i in range(2)}
    rows = torch.arange(24).reshape(3, 4, 2).transpose(1, 2).flatten()
    names = {n: n.replace("attention.wq", "self_attn.q_proj") for n in file}
    model = {names[n]: tensor[rows] for n, tensor in file.items()}
    assert audited(model, file).complete
    wrong = names["layers.1.attention.wq.weight"]
    model[wrong] = swapped(model[wrong])
    assert set(audited(model, file).misplaced) == {wrong}


def loaded_vit(tmp_path_factory):
    folder, state = saved_vit(tmp_path_factory)
    return transformers.ViTForImageClassification.from_pretrained(folder), state


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("change", [torch.Tensor.normal_, torch.Tensor.zero_])
@pytest.mark.parametrize(
    "name, theirs",
    [
        ("mlp.fc1.weight", "intermediate.dense.weight"),
        ("attention.q_proj.weight", "attention.attention.query.weight"),
        ("attention.k_proj.bias", "attention.attention.key.bias"),
    ],
)
def test_overwritten_where_the_class_renames(tmp_path_factory, live, change, name, theirs):
    model, state = loaded_vit(tmp_path_factory)
    assert f"vit.encoder.layer.1.{theirs}" in state
    with torch.no_grad():
        change(model.get_parameter(f"vit.layers.1.{name}"))
    audit = vitconvert.audit_load(model if live else lambda: model, state)
    (loss,) = audit.losses
    whole = f"vit.encoder.layer.1.{theirs}"
    assert loss.kind == "present" and loss.tensors == (whole,)
    assert dict(loss.parameters) == {f"vit.layers.1.{name}": f"the file has it as {whole}"}
    assert audit.renamed == {f"vit.layers.1.{name}": whole}
    assert "initialised them again" in str(audit) and "release" not in str(audit)


def test_all_of_a_kind_are_lost_where_the_class_renames(tmp_path_factory):
    model, state = loaded_vit(tmp_path_factory)
    with torch.no_grad():
        for layer in model.vit.layers:
            layer.mlp.fc1.weight.normal_()
    (loss,) = vitconvert.audit_load(model, state).losses
    assert loss.kind == "renamed"
    names = [f"vit.encoder.layer.{i}.intermediate.dense.weight" for i in range(3)]
    assert list(loss.tensors) == names
    assert list(loss.parameters.values()) == [f"the file has {name}" for name in names]


@pytest.mark.parametrize("split", [True, False])
def test_one_block_is_overwritten_whose_tensors_are_joined_or_taken_apart(split):
    apart = blocks("q.weight", "k.weight", "v.weight", shape=(6, 16))
    joined = {
        f"layers.{i}.qkv.weight": torch.cat([apart[f"blocks.{i}.{n}.weight"] for n in "qkv"])
        for i in range(DEPTH)
    }
    model, file = (apart, joined) if split else (joined, apart)
    lost = "blocks.4.k.weight" if split else "layers.4.qkv.weight"
    made = holding(model)
    with torch.no_grad():
        made.get_parameter(lost).normal_()
    (loss,) = vitconvert.audit_load(lambda: made, file).losses
    meant = ["layers.4.qkv.weight"] if split else [f"blocks.4.{n}.weight" for n in "qkv"]
    assert loss.kind == "present" and list(loss.tensors) == meant and {*loss.parameters} == {lost}


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.module.", "learner."])
def test_a_prefix_where_the_class_renames(tmp_path_factory, prefix):
    model, state = loaded_vit(tmp_path_factory)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    file = {prefix + name: tensor for name, tensor in state.items()}
    (loss,) = vitconvert.audit_load(lambda: model, file).losses
    assert loss.kind == "prefix" and len(loss.parameters) == len(state)
    assert loss.cause.startswith(f"names in the file begin with {prefix!r}")
    assert f"removeprefix({prefix!r})" in loss.remedy and "convert CHECKPOINT" in loss.remedy
    assert {*loss.tensors} == {*file}
