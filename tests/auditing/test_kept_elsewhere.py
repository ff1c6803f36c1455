"""Models whose tensors are tied, quantised, offloaded or shared, and such as are trained."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vitconvert
from tests.packages import bitsandbytes, torchao, transformers
from tests.pages import write_team
from tests.small_models import randomise
from vitconvert.auditing.content import equal, prints_of_rows

ROOT = Path(__file__).parents[2]


def layers(width=40, depth=11):
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(depth)])


@pytest.fixture
def state():
    torch.manual_seed(0)
    return randomise(layers()).state_dict()


def test_tied_weights_that_the_file_has_once(state):
    model = layers()
    model[7].weight = model[2].weight
    model.load_state_dict({**state, "7.weight": state["2.weight"]})
    file = {name: tensor for name, tensor in state.items() if name != "7.weight"}
    audit = vitconvert.audit_load(lambda: model, file)
    assert audit.complete and audit.landed["2.weight"] == "2.weight, 7.weight"
    audit = vitconvert.audit_load(lambda: model, state)  # a file where they are two
    assert not audit.complete and set(audit.misplaced) == {"7.weight"}


def test_a_live_model_needs_no_block(state):
    model = layers()
    model.load_state_dict(state)
    assert vitconvert.audit_load(model, state).complete
    assert str(vitconvert.audit_load(layers(), state)).splitlines()[1].endswith("NOT COMPLETE")
    audit = vitconvert.audit_load(model, state)
    with audit, pytest.raises(AttributeError, match="behind its block"):
        _ = audit.landed


def trained(model):
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(20):
        model(torch.randn(5, 40)).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
    return model


def test_what_was_loaded_and_trained_is_changed_and_what_was_lost_and_trained_is_lost(state):
    model = layers()
    model.load_state_dict({n: t for n, t in state.items() if not n.startswith("4.")}, strict=False)
    audit = vitconvert.audit_load(trained(model), state)
    assert set(audit.untouched) == {"4.weight", "4.bias"}
    assert set(audit.changed) == set(state) - {"4.weight", "4.bias"}
    assert audit.changed["3.weight"].startswith("trained, or changed: 0.9")
    assert not vitconvert.audit_load(lambda: model, state).complete  # of code that only loads


def test_norms_that_were_lost_and_trained_are_lost():
    """They begin as ones, which are nearly those of the file."""
    torch.manual_seed(0)
    file = {"weight": 1 + torch.randn(80) / 10, "bias": torch.randn(80) / 10}
    model = nn.LayerNorm(80)
    with torch.no_grad():
        model.weight += torch.randn(80) / 100
    assert set(vitconvert.audit_load(model, file).untouched) == {"weight", "bias"}


def test_numbers_of_a_bias_that_stand_somewhere_are_no_bias_of_the_file():
    """Of few values in bfloat16, each stands in some other tensor."""
    torch.manual_seed(0)
    file = {f"{i}.bias": torch.rand(4000).bfloat16() for i in range(40)}
    model = nn.Module()
    model.renamed = nn.Parameter(torch.rand(40).bfloat16())
    assert vitconvert.audit_load(lambda: model, file).untouched == ("renamed",)


def test_another_layer_of_the_same_size_stored_transposed(state):
    file = {name: t.T.contiguous() if t.ndim == 2 else t for name, t in state.items()}
    model = layers()
    model.load_state_dict({**state, "3.weight": state["5.weight"]})
    audit = vitconvert.audit_load(lambda: model, file)
    assert set(audit.misplaced) == {"3.weight"}


def test_numbers_that_are_nearly_those_of_the_file(state):
    """As averaged weights after a few steps; and large whole numbers, which float32 rounds."""
    model = layers()
    model.load_state_dict({**state, "3.weight": state["3.weight"] * (1 + 1e-5)})
    assert not vitconvert.audit_load(lambda: model, state).complete
    packed = torch.randint(2**28, 2**29, (6, 8), dtype=torch.int32)
    holder = nn.Module()
    holder.register_buffer("weight", packed + 1)
    assert not vitconvert.audit_load(lambda: holder, {"weight": packed}).complete


def test_tensors_with_nan_are_themselves(state):
    file = {**state, "3.weight": state["3.weight"].clone()}
    file["3.weight"][2, 5] = torch.nan
    model = layers()
    model.load_state_dict(file)
    assert vitconvert.audit_load(lambda: model, file).complete


def test_vocabularies_that_were_enlarged_or_cut(state):
    file = {"words.weight": torch.randn(99, 12)}
    more = nn.ModuleDict({"words": nn.Embedding(128, 12)})
    fewer = nn.ModuleDict({"words": nn.Embedding(90, 12)})
    with torch.no_grad():
        more["words"].weight[:99] = file["words.weight"]
        fewer["words"].weight[:] = file["words.weight"][:90]
    audit = vitconvert.audit_load(lambda: more, file)
    assert audit.complete and audit.changed == {"words.weight": "29 rows put behind its 99"}
    audit = vitconvert.audit_load(lambda: fewer, file)
    assert audit.complete and audit.changed == {"words.weight": "rows 0 to 89 of 99"}
    with torch.no_grad():
        more["words"].weight[98] += 1
    assert not vitconvert.audit_load(lambda: more, file).complete


@pytest.mark.parametrize("shape", [(7, 300_000), (3, 5, 90_000), (2, 3, 700, 500), (2_000_001,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_looked_at_in_parts_is_the_whole(shape, dtype):
    tensor = torch.randn(shape).to(dtype)
    for place in (0, -1, tensor.numel() // 2):
        other = tensor.clone()
        other.view(-1)[place] += 1
        assert not equal(tensor, other) and equal(tensor, tensor.clone())
        for one, changed in zip(
            prints_of_rows(tensor, dtype), prints_of_rows(other, dtype), strict=True
        ):
            assert not len(one) or (one != changed).sum() == 1


def test_a_fixture_without_a_block_compares_at_the_end(pytester_like):
    assert "1 error" in pytester_like("NOT COMPLETE")


@pytest.fixture
def pytester_like(tmp_path):
    """A test in a process of its own that calls the fixture with a model that lost its weights."""
    torch.save(layers().state_dict(), tmp_path / "file.pth")
    (tmp_path / "test_load.py").write_text(
        textwrap.dedent(
            """
            from torch import nn

            def test_it(assert_loaded):
                layers = nn.Sequential(*[nn.Linear(40, 40) for _ in range(11)])
                assert_loaded(layers, "file.pth")
            """
        )
    )

    def run(expected):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_load.py"]
        if "vitconvert" not in _plugins():
            command[4:4] = ["-p", "vitconvert.testing.plugin"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert expected in done.stdout, done.stdout + done.stderr
        return done.stdout

    return run


def _plugins():
    from importlib.metadata import entry_points

    return {entry.name for entry in entry_points(group="pytest11")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["nf4", "int8"])
def test_weights_that_bitsandbytes_quantised(how):
    torch.manual_seed(0)
    file = {"0.weight": torch.randn(64, 128), "0.bias": torch.randn(64)}

    def quantised(weight):
        if how == "nf4":
            layer = bitsandbytes.nn.Linear4bit(128, 64, quant_type="nf4")
            layer.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type="nf4")
        else:
            layer = bitsandbytes.nn.Linear8bitLt(128, 64, has_fp16_weights=False)
            layer.weight = bitsandbytes.nn.Int8Params(weight.half(), requires_grad=False)
        layer.bias = nn.Parameter(file["0.bias"])
        return nn.Sequential(layer.to("cpu"))

    audit = vitconvert.audit_load(lambda: quantised(file["0.weight"].clone()), file)
    assert audit.complete and audit.changed["0.weight"].startswith("quantised: cosine "), audit
    other = torch.cat([file["0.weight"][:-1], torch.randn(1, 128)])  # one row is another one
    audit = vitconvert.audit_load(lambda: quantised(other), file)
    assert not audit.complete


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_that_torchao_quantised(state):
    def quantised(seed):
        model = layers()
        model.load_state_dict(state)
        if seed:
            torch.nn.init.normal_(model[3].weight)
        torchao.quantization.quantize_(model, torchao.quantization.Int8WeightOnlyConfig())
        return model

    audit = vitconvert.audit_load(lambda: quantised(0), state)
    assert audit.complete and audit.changed["3.weight"].startswith("quantised: cosine "), audit
    assert not vitconvert.audit_load(lambda: quantised(1), state).complete


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_accelerate_keeps_in_other_places(tmp_path):
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
    config = transformers.ViTConfig(num_hidden_layers=3, image_size=32, patch_size=8, **sizes)
    saved = randomise(transformers.ViTModel(config))
    saved.save_pretrained(tmp_path / "saved")
    names = {name.split(".layer.")[0] for name, _ in saved.named_children()}
    places = dict(zip(sorted(names), ["cpu", "disk", "cpu", "disk"], strict=False))
    model = transformers.ViTModel.from_pretrained(
        tmp_path / "saved", device_map=places, offload_folder=tmp_path / "disk"
    )
    assert any(tensor.is_meta for tensor in model.state_dict().values())
    audit = vitconvert.audit_load(lambda: model, tmp_path / "saved")
    assert audit.complete and not audit.unused, audit


@pytest.mark.slow
def test_a_model_that_two_processes_share(tmp_path, state):
    save_file(state, tmp_path / "file.safetensors", metadata={"format": "pt"})
    (tmp_path / "shared.py").write_text(
        textwrap.dedent(
            """
            import sys
            import torch
            import torch.distributed as dist
            from safetensors.torch import load_file
            from torch import nn
            from torch.distributed.fsdp import fully_shard
            import vitconvert

            rank = int(sys.argv[1])
            meet = "file://" + sys.argv[2]
            dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
            mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
            for lost in (False, True):
                model = nn.Sequential(*[nn.Linear(40, 40) for _ in range(11)])
                state = load_file("file.safetensors")
                if lost:
                    del state["3.weight"]
                model.load_state_dict(state, strict=False)
                fully_shard(model, mesh=mesh)
                audit = vitconvert.audit_load(model, "file.safetensors")
                print(rank, audit.complete, audit.untouched)
            dist.destroy_process_group()
            """
        )
    )
    commands = [
        [sys.executable, "-W", "ignore", "shared.py", str(rank), str(tmp_path / "meet")]
        for rank in range(2)
    ]
    both = [
        subprocess.Popen(
            command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for command in commands
    ]
    for rank, process in enumerate(both):
        said, failed = process.communicate(timeout=300)
        assert process.returncode == 0, failed
        assert said.splitlines() == [f"{rank} True ()", f"{rank} False ('3.weight',)"]


@pytest.mark.slow
def test_the_recipe_of_a_workflow_runs(tmp_path):
    import yaml

    pages = ROOT / "docs" / "pages" / "tutorials"
    text = (pages / "audit-in-training.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    (job,) = yaml.safe_load(recipe)["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands[0] == "pip install -r requirements.txt"
    write_team(tmp_path)
    for title, code in re.findall(
        r'```python title="(test_load.py)"\n(.*?)```',
        (pages / "audit-a-load.md").read_text(encoding="utf-8"),
        flags=re.DOTALL,
    ):
        (tmp_path / title).write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), "."])}
    if "vitconvert" not in _plugins():
        environment["PYTEST_PLUGINS"] = "vitconvert.testing.plugin"
    command = commands[1].replace("python ", f"{sys.executable} ", 1).split()
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    torch.save({}, tmp_path / "team.pth")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
