"""Loads that went wrong as others reported them, rebuilt small, and what the audit says."""

import json
import time
import tracemalloc

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vitconvert
from tests.packages import bitsandbytes, timm, transformers
from tests.quantised.writers import FOUR_BIT, four_bit, save_base, save_quantised
from vitconvert.errors import UsageError

DEPTH = 12  # 10 is sorted before 2


def vit(**arguments):
    """A small ViT of timm whose numbers are all different."""
    sizes = {"embed_dim": 24, "num_heads": 3, "depth": DEPTH, "img_size": 32, "patch_size": 8}
    model = timm.models.VisionTransformer(**{**sizes, "num_classes": 7, **arguments})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.fixture
def state():
    torch.manual_seed(0)
    return vit().state_dict()


def audited(model, file, tensors=None):
    """The audit of loading other tensors than the file has, as faulty code does."""
    with vitconvert.audit_load(model, file) as audit:
        model.load_state_dict(file if tensors is None else tensors, strict=False)
    return audit


def renamed(state, rename):
    return {rename(name): tensor for name, tensor in state.items()}


def test_a_whole_load(state, tmp_path):
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "file.pth")
    model = vit()
    with vitconvert.audit_load(model, tmp_path / "file.pth") as audit:
        model.load_state_dict(state)
    assert audit.complete
    assert audit.landed == {name: name for name in state}
    assert not (audit.untouched or audit.changed or audit.misplaced or audit.undecidable)
    assert not audit.unused
    assert str(audit).splitlines() == [
        "file.pth -> VisionTransformer",
        f"{len(state)} of {len(state)} parameters hold the file's numbers",
        "in the file, in no parameter: nothing",
    ]
    assert audit.answers == ("load_state_dict: all keys matched",)


@pytest.mark.parametrize("end", ["_x", "_orig"])
def test_a_renamed_tensor_below_a_numbered_wrapper(state, end):
    """As sentence-transformers holds a model: `0.auto_model.` stands before its names."""
    name = "blocks.1.mlp.fc1.weight"
    file = {f"{n}{end}" if n == name else n: t for n, t in state.items()}
    model = torch.nn.Sequential(torch.nn.ModuleDict({"auto_model": vit()}))
    with vitconvert.audit_load(model, file) as audit:
        model[0]["auto_model"].load_state_dict(file, strict=False)
    (loss,) = audit.losses
    assert loss.kind == "renamed"
    assert [*loss.parameters] == [f"0.auto_model.{name}"] and loss.tensors == (f"{name}{end}",)


@pytest.mark.parametrize("prefix", ["module.", "model.backbone."])
def test_names_of_the_file_begin_otherwise(state, prefix):
    file = renamed(state, lambda name: prefix + name)
    audit = audited(vit(), file)
    assert not audit.complete and not audit.landed
    assert set(audit.untouched) == set(state) and set(audit.unused) == set(file)
    assert f"{len(state)} names match without {prefix!r}" in audit.answers
    assert f"likely cause: names in the file begin with {prefix!r}" in str(audit)


def test_prefixes_that_end_alike(state):
    whole = nn.ModuleDict({"model": nn.ModuleDict({"backbone": vit()})})
    told = str(audited(whole, renamed(state, "module.".__add__)))
    assert "likely cause: names in the file begin with 'module.'" in told
    assert "and names in the model begin with 'model.backbone.'" in told
    whole = nn.ModuleDict({"text": nn.ModuleDict({"module": vit()})})
    told = str(audited(whole, renamed(state, "image_module.".__add__)))
    assert "names in the file begin with 'image_module.', and" in told
    assert "names in the model begin with 'text.module.'" in told


def test_a_prefix_that_the_file_lacks(state):
    whole = nn.ModuleDict({"backbone": vit()})
    audit = audited(whole, state)
    assert not audit.complete and len(audit.untouched) == len(state)
    assert f"{len(state)} names match with 'backbone.' before them" in audit.answers


def test_two_tensors_of_many_land(state):
    """NVIDIA-TAO/tao-pytorch 87: the code logs success."""
    few = {name: state[name] for name in ("cls_token", "pos_embed")}
    others = {f"encoder.{n}": t for n, t in state.items() if n not in few}
    audit = audited(vit(), few | others)
    assert not audit.complete
    assert audit.landed == {name: name for name in few}
    assert len(audit.untouched) == len(audit.unused) == len(state) - 2


def test_a_head_of_another_size(state):
    body = {n: t for n, t in state.items() if not n.startswith("head.")}
    audit = audited(vit(num_classes=5), state, body)
    assert audit.untouched == ("head.weight", "head.bias")
    assert audit.unused == ("head.weight", "head.bias")
    assert "  head.weight: (5, 24), and in the file (7, 24)" in str(audit).splitlines()


class Meta(nn.Module):
    """The names of facebookresearch/dinov3 for two layers."""

    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, 24))
        self.mask_token = nn.Parameter(torch.randn(1, 24))
        self.blocks = nn.ModuleList(nn.ModuleDict({"norm1": nn.LayerNorm(24)}) for _ in range(2))


def test_hugging_faces_names_into_metas_class():
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
    config = transformers.DINOv3ViTConfig(num_hidden_layers=2, image_size=32, **sizes)
    theirs = transformers.DINOv3ViTModel(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    audit = audited(Meta(), theirs.state_dict())
    assert not audit.complete and not audit.landed
    assert {"cls_token", "blocks.1.norm1.weight"} <= {*audit.untouched}


@pytest.mark.parametrize("loaded", ["model", "model_ema"])
def test_averaged_weights_beside_the_model(state, tmp_path, loaded):
    averaged = {name: tensor + torch.randn_like(tensor) for name, tensor in state.items()}
    both = {"model": state, "model_ema": averaged}
    torch.save(both, tmp_path / "file.pth")
    model = vit()
    with vitconvert.audit_load(model, tmp_path / "file.pth") as audit:
        model.load_state_dict(both[loaded])
    assert audit.complete
    assert audit.landed == {f"{loaded}.{name}": name for name in state}
    (other,) = {"model", "model_ema"} - {loaded}
    assert {name.split(".")[0] for name in audit.unused} == {other}


def test_averaged_and_plain_weights_mixed(state):
    averaged = {name: tensor + 1 for name, tensor in state.items()}
    file = renamed(state, "model.{}".format) | renamed(averaged, "model_ema.{}".format)
    mixed = {n: (averaged if "blocks.3" in n else state)[n] for n in state}
    audit = audited(vit(), file, mixed)
    assert not audit.complete and set(audit.misplaced) == {n for n in state if "blocks.3" in n}
    how = "holds model_ema.blocks.3.norm1.bias, while most hold model.*"
    assert audit.misplaced["blocks.3.norm1.bias"] == how
    frozen = {n: t for n, t in file.items() if "blocks.3" not in n}
    frozen |= {n: state[n.split(".", 1)[1]] for n in file if "blocks.3" in n}
    assert audited(
        vit(), frozen, {n: averaged[n] if "blocks.3" not in n else state[n] for n in state}
    ).complete


def reordered(state, change):
    names = [name for name in state if "qkv" in name]
    return state | {name: change(state[name]) for name in names}, names


def test_qkv_in_another_order(state):
    def change(tensor):
        q, k, v = tensor.chunk(3)
        return torch.cat([k, q, v])

    wrong, names = reordered(state, change)
    audit = audited(vit(), state, wrong)
    assert not audit.complete and set(audit.misplaced) == set(names)
    how = "rows in another order: 24 to 47, 0 to 23, 48 to 71"
    assert {audit.changed[name] for name in names} == {how}


def test_qkv_head_by_head(state):
    def change(tensor):
        return tensor.reshape(3, 3, 8, -1).transpose(0, 1).reshape(tensor.shape)

    wrong, names = reordered(state, change)
    audit = audited(vit(), state, wrong)
    assert set(audit.misplaced) == set(names)
    assert audit.changed[names[0]] == "rows in another order: 3 parts of 3 heads, head by head"


PARTS = ("query", "key", "value")


def split(state):
    """The same with queries, keys and values apart, under other names."""
    file = {}
    for name, tensor in state.items():
        if "qkv" in name:
            for part, rows in zip(PARTS, tensor.chunk(3), strict=True):
                file[name.replace("blocks", "layer").replace("qkv", part)] = rows.clone()
        else:
            file[name.replace("blocks", "layer")] = tensor
    return file


@pytest.mark.parametrize("order", ["qkv", "kqv"])
def test_parts_that_are_joined(state, order):
    wanted, names = reordered(
        state, lambda t: torch.cat([t.chunk(3)["qkv".index(part)] for part in order])
    )
    audit = audited(vit(), split(state), wanted)
    assert audit.complete == (order == "qkv") and len(audit.landed) == len(split(state))
    assert set(audit.misplaced) == (set() if order == "qkv" else set(names))
    first = [f"layer.0.attn.{PARTS['qkv'.index(part)]}.weight" for part in order]
    assert audit.changed["blocks.0.attn.qkv.weight"] == f"joined of {', '.join(first)}"


def test_keys_without_a_bias(state):
    """BEiT: zeros stand between the parts that the file has."""
    file = {n: t for n, t in split(state).items() if not n.endswith("key.bias")}
    loaded, _ = reordered(state, lambda t: t if t.ndim == 2 else t * (torch.arange(72) // 24 != 1))
    audit = audited(vit(), file, loaded)
    assert audit.complete
    joined = "joined of layer.0.attn.query.bias, zeros, layer.0.attn.value.bias"
    assert audit.changed["blocks.0.attn.qkv.bias"] == joined


def test_a_tensor_that_is_taken_apart(state):
    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.value = nn.Linear(24, 24), nn.Linear(24, 24)

    model = Apart()
    name = "blocks.10.attn.qkv.weight"
    q, _, v = state[name].chunk(3)
    with vitconvert.audit_load(model, {name: state[name]}) as audit, torch.no_grad():
        model.query.weight.copy_(q)
        model.value.weight.copy_(v)
    assert audit.landed == {name: "query.weight, value.weight"}
    assert audit.changed["value.weight"] == "rows 48 to 71 of 72"
    assert audit.untouched == ("query.bias", "value.bias")


@pytest.mark.parametrize("lost", [False, True])
def test_zeros_of_a_joined_bias_for_keys_alone(state, lost):
    """VideoMAE: the file joins the three, and the model has them apart."""

    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            self.k_proj, self.q_proj, self.v_proj = (nn.Linear(24, 24) for _ in range(3))
            nn.init.zeros_(self.k_proj.bias)

    weight, bias = state["blocks.10.attn.qkv.weight"], state["blocks.10.attn.qkv.bias"].clone()
    if not lost:
        bias[24:48] = 0
    model = Apart()
    with torch.no_grad():
        for part, of_weight, of_bias in zip("qkv", weight.chunk(3), bias.chunk(3), strict=True):
            layer = model.get_submodule(f"{part}_proj")
            layer.weight.copy_(of_weight)
            layer.bias.copy_(torch.zeros(24) if part == "k" else of_bias)
    audit = vitconvert.audit_load(lambda: model, {"qkv.weight": weight, "qkv.bias": bias})
    assert audit.complete == (not lost)
    assert audit.undecidable == (() if lost else ("k_proj.bias",))
    assert audit.untouched == (("k_proj.bias",) if lost else ())


def test_blocks_in_the_order_of_their_names(state):
    order = sorted(range(DEPTH), key=str)

    def moved(name):
        _, number, rest = name.split(".", 2)
        return f"blocks.{order.index(int(number))}.{rest}"

    file = renamed(state, lambda name: name.replace("blocks", "encoder.layer"))
    wrong = renamed(state, lambda name: moved(name) if name.startswith("blocks.") else name)
    audit = audited(vit(), file, wrong)
    astray = {number for number in range(DEPTH) if order[number] != number}
    assert {int(name.split(".")[1]) for name in audit.misplaced} == astray
    assert audit.misplaced["blocks.2.norm1.bias"].startswith("holds encoder.layer.10.norm1.bias")


def test_queries_and_keys_exchanged_under_other_names():
    class Ours(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj = nn.Linear(8, 8), nn.Linear(8, 8)

    theirs = {f"attention.{part}.weight": torch.randn(8, 8) for part in ("query", "key")}
    model = Ours()
    with vitconvert.audit_load(model, theirs) as audit, torch.no_grad():
        model.q_proj.weight.copy_(theirs["attention.key.weight"])
        model.k_proj.weight.copy_(theirs["attention.query.weight"])
    assert set(audit.misplaced) == {"q_proj.weight", "k_proj.weight"}


def test_two_norms_exchanged(state):
    wrong = renamed(state, lambda n: n.translate(str.maketrans("12", "21")) if ".norm" in n else n)
    audit = audited(vit(), state, wrong)
    assert audit.misplaced["blocks.0.norm1.weight"] == "holds blocks.0.norm2.weight"


def test_transposed_reshaped_and_cast(state):
    file = {
        name: tensor.permute(2, 3, 1, 0)
        if tensor.ndim == 4
        else tensor.T
        if tensor.ndim == 2
        else tensor
        for name, tensor in state.items()
    }
    file["cls_token"] = state["cls_token"].flatten()
    model = vit()
    with vitconvert.audit_load(model.to(torch.bfloat16), file) as audit:
        model.load_state_dict(state)
    assert audit.complete and set(audit.changed) == set(state)
    cast = "cast from float32 to bfloat16"
    assert audit.changed["blocks.0.mlp.fc1.weight"] == f"transposed: axes 1, 0, {cast}"
    assert audit.changed["patch_embed.proj.weight"] == f"transposed: axes 3, 2, 0, 1, {cast}"
    assert audit.changed["cls_token"] == f"reshaped from (24,) to (1, 1, 24), {cast}"
    assert audit.changed["norm.bias"] == cast


def test_jax_kernels_of_heads(state):
    """(width, heads, size of a head) and back, as Google's .npz has them."""
    q, k, v = state["blocks.0.attn.qkv.weight"].chunk(3)
    file = {
        "query/kernel": q.T.reshape(24, 3, 8),
        "key/kernel": k.T.reshape(24, 3, 8),
        "value/kernel": v.T.reshape(24, 3, 8),
        "out/kernel": state["blocks.0.attn.proj.weight"].T.reshape(3, 8, 24),
    }

    def build():
        model = nn.ModuleDict({"qkv": nn.Linear(24, 72, False), "proj": nn.Linear(24, 24, False)})
        model["qkv"].weight.data = state["blocks.0.attn.qkv.weight"]
        model["proj"].weight.data = state["blocks.0.attn.proj.weight"]
        return model

    audit = vitconvert.audit_load(build, file)
    assert audit.complete and set(audit.landed) == set(file)
    joined = "joined of query/kernel, key/kernel, value/kernel, transposed"
    assert audit.changed == {"qkv.weight": joined, "proj.weight": "transposed: axes 2, 0, 1"}


def test_jax_biases_of_heads(state):
    name = "blocks.0.attn.qkv.bias"
    parts = zip(("query", "key", "value"), state[name].chunk(3), strict=True)
    file = {f"{part}/bias": bias.reshape(3, 8) for part, bias in parts}

    def build(order="qkv"):
        model = nn.ModuleDict({"qkv": nn.Linear(24, 72)})
        del model["qkv"].weight
        by_letter = dict(zip("qkv", state[name].chunk(3), strict=True))
        model["qkv"].bias.data = torch.cat([by_letter[one] for one in order])
        return model

    audit = vitconvert.audit_load(build, file)
    assert audit.complete and set(audit.landed) == set(file)
    assert audit.changed == {"qkv.bias": "joined of query/bias, key/bias, value/bias"}
    assert not vitconvert.audit_load(lambda: build("kqv"), file).complete


def test_resampled_positions_and_one_channel(state):
    model = vit(img_size=48, in_chans=1)
    loaded = timm.models.vision_transformer.checkpoint_filter_fn(dict(state), model)
    kernel = state["patch_embed.proj.weight"]
    loaded["patch_embed.proj.weight"] = kernel.sum(1, keepdim=True)
    audit = audited(model, state, loaded)
    assert audit.complete
    assert audit.changed == {
        "pos_embed": "resampled from 4 x 4 to 6 x 6, bicubic, antialiased, of pos_embed",
        "patch_embed.proj.weight": "summed over channels, of patch_embed.proj.weight",
    }


def test_what_is_changed_in_no_known_way(state):
    wrong = {name: tensor.clone() for name, tensor in state.items()}
    wrong["norm.weight"] *= 2
    wrong["pos_embed"] += torch.randn_like(wrong["pos_embed"])
    wrong["head.weight"] = wrong["head.weight"].flip(0)
    audit = audited(vit(), state, wrong)
    assert set(audit.unexplained) == {"pos_embed", "norm.weight"} and not audit.complete
    assert audit.changed["pos_embed"].startswith("the cosine with pos_embed is 0.")
    assert audit.changed["norm.weight"] == "multiplied by 2, of norm.weight"
    assert set(audit.misplaced) == {"head.weight"}


def test_constants_are_undecidable(state):
    file = {name: tensor.clone() for name, tensor in state.items()}
    for name in ("norm.weight", "blocks.3.norm1.bias"):
        file[name].fill_(1.0)
    file["head.bias"].fill_(2.0)
    model = vit()
    with torch.no_grad():
        model.norm.weight.fill_(1.0)
        model.head.bias.fill_(3.0)
    without = {name: tensor for name, tensor in file.items() if name != "head.bias"}
    audit = audited(model, file, without)
    assert set(audit.undecidable) == {"norm.weight", "blocks.3.norm1.bias"}
    assert audit.untouched == ("head.bias",)


def test_functions_files_and_their_mistakes(state, tmp_path):
    torch.save(state, tmp_path / "model.pth")

    def load():
        model = vit()
        model.load_state_dict({n: t for n, t in state.items() if n != "cls_token"}, strict=False)
        return model

    audit = vitconvert.audit_load(load, tmp_path / "model.pth")
    assert audit.untouched == ("cls_token",) and audit.unused == ("cls_token",)
    told = json.loads(json.dumps(audit.to_dict()))
    assert told["complete"] is False and told["untouched"] == ["cls_token"]
    with pytest.raises(UsageError, match="The function returned no model"):
        vitconvert.audit_load(lambda: None, state)
    with pytest.raises(UsageError, match="a torch module, a function"):
        vitconvert.audit_load(3, state)
    with pytest.raises(vitconvert.VitConvertError):
        vitconvert.audit_load(vit(), tmp_path / "absent.pth")


def test_scalars_and_counts_are_no_matter():
    """As the scale of CLIP's logits and what a batch norm counts."""

    def build():
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        model.scale = nn.Parameter(torch.tensor(2.5))
        return model

    file = {n: torch.randn(t.shape) for n, t in build().state_dict().items() if t.ndim}
    file |= {"scale": torch.tensor(4.6), "1.num_batches_tracked": torch.tensor(7)}
    audit = audited(build(), file)
    assert audit.complete and audit.undecidable == ("scale",) and not audit.unused
    audit = audited(build(), file, {n: t for n, t in file.items() if n != "scale"})
    assert audit.untouched == ("scale",)


def test_a_part_that_is_loaded_by_itself_answers_once(state):
    whole = nn.ModuleDict({"backbone": vit(), "head": nn.Linear(24, 3)})
    file = renamed(state, "module.{}".format)
    with vitconvert.audit_load(whole, file) as audit:
        whole["backbone"].load_state_dict(file, strict=False)
    assert not audit.complete
    assert audit.answers.count(f"{len(state)} names match without 'module.'") == 1
    assert len(audit.answers) == 3


def test_whole_numbers_that_stand_for_weights():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.randint(-99, 99, (4, 6), dtype=torch.int8))
            self.register_buffer("index", torch.arange(24).view(4, 6))
            self.scale = nn.Parameter(torch.rand(4))

    file = {n: t for n, t in Packed().state_dict().items() if n != "index"}
    assert audited(Packed(), file).complete
    audit = audited(Packed(), file, {"scale": file["scale"]})
    assert audit.untouched == ("weight",) and audit.unused == ("weight",)


def test_weights_that_quantised_ones_stand_for():
    file = {"weight": torch.randint(-99, 99, (4, 6), dtype=torch.int8), "scale": torch.rand(4)}
    exact = file["weight"] * file["scale"][:, None]
    audit = audited(nn.Linear(6, 4, bias=False), file, {"weight": exact})
    assert audit.complete and audit.landed == {"weight": "weight"}
    assert audit.changed == {"weight": "each row multiplied by its own number, of weight"}
    audit = audited(nn.Linear(6, 4, bias=False), file, {"weight": exact + torch.randn(4, 1)})
    assert audit.unexplained == ("weight",)
    assert audit.changed == {"weight": "the file has weight as int8: quantised"}


@pytest.mark.parametrize("how", FOUR_BIT)
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_blocks_of_4_bits_that_other_code_dequantised(how, suffix, tmp_path):
    weights = {name: torch.randn(16, 256, dtype=torch.float16) for name in "qkv"}
    packed = {name: four_bit(weight, f"{name}.weight", how) for name, weight in weights.items()}
    file = {name: part for parts, _ in packed.values() for name, part in parts.items()}
    save_file(file, tmp_path / "file.safetensors")
    torch.save(file, tmp_path / "file.pth")
    theirs = [
        bitsandbytes.functional.dequantize_4bit(parts[f"{name}.weight"], state)
        for name, (parts, state) in packed.items()
    ]
    path = tmp_path / f"file{suffix}"
    audit = audited(nn.Linear(256, 48, bias=False), path, {"weight": torch.cat(theirs)})
    assert audit.complete and audit.landed == {f"{name}.weight": "weight" for name in "qkv"}
    assert audit.changed == {"weight": "joined of q.weight, k.weight, v.weight"}
    assert str(audit).startswith(f"file{suffix}, dequantised -> Linear\n")
    halved = torch.cat([theirs[0], theirs[1] / 2, theirs[2]])  # as by a block's wrong scale
    audit = audited(nn.Linear(256, 48, bias=False), path, {"weight": halved})
    assert audit.unexplained == ("weight",) and not audit.landed


def test_a_model_of_quantised_weights_has_them_as_they_are_stored():
    file, _ = four_bit(torch.randn(8, 64), "weight", "nf4")
    model = nn.Module()
    model.register_buffer("weight", torch.zeros_like(file["weight"]))
    audit = audited(model, file)
    assert audit.complete and audit.landed == {"weight": "weight"} and not audit.changed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of bitsandbytes
@pytest.mark.parametrize("how", ["nf4, nested", "8 bit"])
def test_what_transformers_dequantises_landed(how, tmp_path):
    model = save_quantised(save_base(tmp_path / "base"), tmp_path / "quantised", how)
    path = tmp_path / "quantised"
    audit = vitconvert.audit_load(lambda: model.dequantize(dtype=torch.float32), path)
    assert audit.complete and not audit.unused, audit


@pytest.mark.filterwarnings("ignore")  # torch lets go of its own quantised tensors
@pytest.mark.parametrize(
    "as_stored",
    [
        lambda tensor: torch.quantize_per_tensor(tensor, 0.01, 0, torch.qint8),
        lambda tensor: tensor.relu().to_sparse(),
        lambda tensor: tensor.to(torch.complex64) * (1 + 2j),
    ],
)
def test_tensors_that_are_stored_otherwise(as_stored):
    model, other = nn.Module(), nn.Module()
    for one in (model, other):
        one.register_buffer("weight", as_stored(torch.randn(4, 6)))
    file = {"weight": model.weight}
    assert vitconvert.audit_load(lambda: model, file).complete
    assert vitconvert.audit_load(lambda: other, file).untouched == ("weight",)


def test_the_audit_of_code_that_raises_says_what_it_raised(state):
    model = vit(num_classes=3)
    with pytest.raises(RuntimeError, match="size mismatch"), vitconvert.audit_load(model, state):
        model.load_state_dict(state)


def test_parameters_on_the_meta_device(state):
    with torch.device("meta"):
        model = vit()
    audit = audited(model, state, {})
    assert set(audit.untouched) == set(state)


def test_the_fixture_fails_below_all(assert_loaded, state):
    model = vit()
    with assert_loaded(model, state):
        model.load_state_dict(state)
    with pytest.raises(AssertionError, match="NOT COMPLETE"), assert_loaded(vit(), state):
        pass


def test_kernels_of_one_pixel_are_compared_by_rows(tmp_path):
    """A million of numbers, and a new head: neither seconds nor many times the memory."""
    torch.manual_seed(0)
    convolutions = nn.Sequential(*[nn.Conv2d(512, 512, 1, bias=False) for _ in range(4)])
    state = {f"body.{name}": tensor for name, tensor in convolutions.state_dict().items()}
    torch.save({**state, "head.weight": torch.randn(7, 512)}, tmp_path / "file.pth")

    model = nn.ModuleDict({"body": convolutions, "head": nn.Linear(512, 3)})
    turned = {name: tensor.flip(0) for name, tensor in state.items()}
    head = {"head.weight": torch.randn(3, 512), "head.bias": torch.zeros(3)}
    tracemalloc.start()
    begun = time.process_time()
    audit = audited(model, tmp_path / "file.pth", {**turned, **head})
    seconds, (_, peak) = time.process_time() - begun, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set(audit.misplaced) == set(state)
    assert "rows in another order" in audit.misplaced["body.0.weight"]
    assert "head.weight" in audit.changed and "head.weight" in audit.unused
    assert seconds < 5 and peak < 100e6


def test_names_steer_no_terminal(state, tmp_path):
    """Of the file, of its tensors, and of what load_state_dict answers."""
    file = tmp_path / "odd\x1b[31m.pth"
    torch.save(state | {"more\x1b[2J.weight": torch.randn(3, 5)}, file)
    model = vit()
    with vitconvert.audit_load(model, file) as audit:
        model.load_state_dict(torch.load(file), strict=False)
    assert r"\x1b[31m" in str(audit) and r"\x1b[2J" in str(audit) and "\x1b" not in str(audit)
