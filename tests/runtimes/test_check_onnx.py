"""An ONNX file says what it computes, and `check_onnx.py` alone says whether an engine does."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

import vitconvert
from tests.model.test_families_equal_to_timm import FAMILIES
from tests.runtimes.test_families import PARTS, config_of
from tests.small_models import randomise
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import UsageError
from vitconvert.model import FastViT, ViT
from vitconvert.runtimes import check_onnx
from vitconvert.runtimes.check import Expected, golden_of
from vitconvert.runtimes.check_onnx import lint, read_model
from vitconvert.runtimes.export import quiet
from vitconvert.runtimes.graph import Graph, Shape, traced
from vitconvert.runtimes.onnx import OnnxRuntime

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def write(config, path, **shape):
    """A file as `export` writes one, of random weights."""
    model, shape = randomise(ViT(config)), Shape(**shape)
    fast = FastViT(config, device="meta")
    fast.load_state_dict(model.state_dict(), assign=True)
    stated = golden_of(Expected(model, shape), dtype="float32", tolerance=2e-5)
    with quiet():
        OnnxRuntime().write(traced(Graph(fast, shape)), path, {"golden": stated})
    return path


@pytest.fixture(scope="module")
def rotated(tmp_path_factory):
    """A graph with rotated q and k, exact GELU and the outputs of its two blocks."""
    config = config_of("vit_small_patch16_dinov3").replace(depth=2)
    return write(config, tmp_path_factory.mktemp("rotated") / "vit.onnx", probes=True)


def checked(path, capsys, *arguments):
    code = check_onnx.main([str(path), *arguments])
    return code, capsys.readouterr().out


def changed(path, folder, change):
    model = onnx.load(path)
    change(model)
    onnx.save(model, folder / "changed.onnx")
    return folder / "changed.onnx"


def weights(model):
    return {tensor.name: tensor for tensor in model.graph.initializer}


def put(tensor, array):
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def a_weight(model):
    """One number of the second block's MLP."""
    tensor = weights(model)["model.blocks.1.mlp.fc2.bias"]
    array = onnx.numpy_helper.to_array(tensor).copy()
    array[3] += 1e-2
    put(tensor, array)


def the_other_way(model):
    """Sines with another sign."""
    tensor = weights(model)["model.rope.table_0"]
    sin, cos = np.split(onnx.numpy_helper.to_array(tensor), 2, axis=-1)
    put(tensor, np.concatenate((-sin, cos), axis=-1))


def the_tanh(model):
    """The second block's GELU, approximated."""
    node = [node for node in model.graph.node if node.op_type == "Gelu"][1]
    node.CopyFrom(onnx.helper.make_node("Gelu", node.input, node.output, approximate="tanh"))


def the_norms(model):
    """The two norms of the second block in each other's place."""
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            for one, other in (("norm1", "norm2"), ("norm2", "norm1")):
                if name.startswith(f"model.blocks.1.{one}."):
                    node.input[place] = name.replace(one, other)
                    break


@pytest.mark.coverage
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_what_was_exported_is_computed(engine, rotated, capsys):
    pytest.importorskip(engine)
    code, printed = checked(rotated, capsys, "--engine", engine)
    assert code == 0, printed
    assert f"{engine} computes the same, to 2e-05 of the largest number" in printed
    names = [line.split()[1] for line in printed.splitlines() if line.startswith("equal")]
    assert names == ["embedded", "blocks.0", "blocks.1", "output"]


@pytest.mark.coverage
@pytest.mark.parametrize(
    ("change", "where"),
    [
        (a_weight, "at blocks.1"),
        (the_other_way, "at blocks.0"),
        (the_tanh, "at blocks.1"),
        (the_norms, "at blocks.1"),
    ],
)
def test_a_planted_fault_is_found_where_it_is(change, where, rotated, tmp_path, capsys):
    code, printed = checked(changed(rotated, tmp_path, change), capsys)
    assert code == 1
    assert f"onnxruntime departs first {where}\n" in printed


def branch(model):
    """An If that does the same in both branches: engines may compute it, and it is told."""
    output, graph = model.graph.output[0], model.graph
    last = next(node for node in graph.node if "output" in node.output)
    last.output[0] = "before"
    value = onnx.helper.make_tensor_value_info("after", 1, None)
    same = onnx.helper.make_node("Identity", ["before"], ["after"])
    body = onnx.helper.make_graph([same], "body", [], [value])
    condition = onnx.helper.make_tensor("condition", onnx.TensorProto.BOOL, [], [True])
    graph.initializer.append(condition)
    node = onnx.helper.make_node("If", ["condition"], [output.name])
    for name in ("then_branch", "else_branch"):
        node.attribute.append(onnx.helper.make_attribute(name, body))
    graph.node.append(node)


def open_width(model):
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "width"


def shapes(model):
    """A reshape whose sizes are computed."""
    node = next(node for node in model.graph.node if node.op_type == "Reshape")
    index = list(model.graph.node).index(node)
    made = onnx.helper.make_node("Shape", [node.output[0]], ["measured"])
    again = onnx.helper.make_node("Reshape", [node.output[0], "measured"], ["again"])
    for later in model.graph.node:
        for place, name in enumerate(later.input):
            if name == node.output[0]:
                later.input[place] = "again"
    model.graph.node.insert(index + 1, made)
    model.graph.node.insert(index + 2, again)


@pytest.mark.coverage
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (branch, "fault: 1 If: control flow, which TensorRT has computed wrongly without an error"),
        (open_width, "fault: images has open sizes: width"),
        (shapes, "fault: 2 Shape, for Expand, Reshape: sizes that could be constant"),
    ],
)
def test_what_engines_get_wrong_is_a_fault_though_numbers_are_equal(
    change, told, rotated, tmp_path, capsys
):
    code, printed = checked(changed(rotated, tmp_path, change), capsys)
    assert code == 1 and told in printed.splitlines()
    assert "departs" not in printed


@pytest.mark.coverage
def test_the_script_needs_numpy_and_an_engine_alone(rotated, tmp_path):
    script = tmp_path / "check.py"
    shutil.copy(check_onnx.__file__, script)
    code = f"import sys, runpy; sys.argv = ['check.py', {str(rotated)!r}]\n"
    code += f"try: runpy.run_path({str(script)!r}, run_name='__main__')\n"
    code += "except SystemExit as end: assert end.code == 0\n"
    code += "print(sorted({'torch', 'onnx', 'vitconvert'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.endswith("\n[]\n"), done.stdout + done.stderr


@pytest.mark.coverage
@pytest.mark.parametrize("batch", [None, 3])
def test_an_export_has_golden_outputs_and_constants(batch, tmp_path, capsys):
    choices = {"batch_size": batch, "with_preprocessing": True, "probabilities": True}
    exported = vitconvert.export_model(DIGITS, tmp_path / "d.onnx", to="onnx", **choices)
    code, printed = checked(exported.output, capsys)
    assert code == 0, printed
    note = "note: 1 Shape, for Expand: tokens are repeated for any number of images"
    assert exported.remaining == (() if batch else (note,))
    assert exported.to_dict()["remaining"] == list(exported.remaining)
    assert len(read_model(exported.output).metadata["golden"]) < 400


@pytest.mark.coverage
@pytest.mark.parametrize("kind", [*FAMILIES, *PARTS])
@pytest.mark.parametrize("batch", [None, 1])
def test_no_kind_of_model_has_what_could_be_constant(kind, batch, tmp_path, capsys):
    path = write(config_of(kind), tmp_path / "vit.onnx", batch=batch)
    told = lint(read_model(path))
    assert len(told) <= (batch is None) and all(line.startswith("note: ") for line in told)
    code, printed = checked(path, capsys)
    assert code == 0, printed


@pytest.mark.coverage
def test_large_tables_of_rotations_are_constants(tmp_path):
    """Exporters fold small tables only."""
    config = config_of("vit_small_patch16_rope_mixed_224")
    large = config.replace(image_size=(96 * 16, 64 * 16))
    path = write(large, tmp_path / "vit.onnx", batch=1)
    assert lint(read_model(path)) == []


def test_files_are_read_as_the_onnx_package_reads_them(tmp_path, capsys):
    one = onnx.helper.make_tensor_value_info("images", 1, ["batch", 3, 4, 4])
    other = onnx.helper.make_tensor_value_info("output", 1, ["batch", 3, 4, 4])
    node = onnx.helper.make_node("Relu", ["images"], ["output"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [one], [other]))
    onnx.helper.set_model_props(model, {"ключ": "x" * 300})
    onnx.save(model, tmp_path / "m.onnx")
    read = read_model(tmp_path / "m.onnx")
    assert read.metadata == {"ключ": "x" * 300}
    assert read.nodes == (("Relu", ("images",), ("output",)),)
    assert read.inputs == (("images", 1, ("batch", 3, 4, 4)),)
    code, printed = checked(tmp_path / "m.onnx", capsys)
    assert code == 2 and "m.onnx has no golden numbers" in printed
    (tmp_path / "x.onnx").write_bytes(b"no such file\xff\xff")
    for name in ("x.onnx", "absent.onnx"):
        code, printed = checked(tmp_path / name, capsys)
        assert code == 2 and f"{name} is not an ONNX file that can be read" in printed


def lowbias(x):
    """Of integers without an end, as another language would write it."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x = ((x ^ (x >> shift)) * factor) % 2**32
    return x


def test_golden_images_have_the_same_bits_everywhere():
    one = check_onnx.images(3, 5, 4, pixels=False)
    assert one.shape == (2, 3, 5, 4) and one.dtype == np.float32
    levels = (one * 64 + 127.5).astype(int)
    assert levels[0].ravel().tolist() == [lowbias(place) >> 24 for place in range(60)]
    assert levels[1, 2, 4].tolist() == [204, 204, 204, 204]
    pixels = check_onnx.images(3, 5, 4, pixels=True)
    assert pixels.dtype == np.uint8 and (pixels.transpose(0, 3, 1, 2) == levels).all()
    many = check_onnx.sampled(np.arange(2 * 5000).reshape(2, 50, 100))
    assert many.shape == (2, check_onnx.MOST) and len(set(many[0])) > 1600


def test_error_probes_are_of_onnx_alone(tmp_path):
    with pytest.raises(UsageError, match="Only ONNX has probes"):
        vitconvert.export_model(DIGITS, tmp_path / "x.pt2", to="pt2", probes=True)
