"""ONNX, written by torch's exporter and run by ONNX Runtime.

Weights of more than 2 GiB do not fit into a protocol buffer: torch then writes them beside the file
(https://onnx.ai/onnx/repo-docs/ExternalData.html), under the file's name with `.data` after it.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import NotRepresentable, UsageError, what_was_raised
from vitconvert.machine import busy
from vitconvert.runtimes.check_onnx import lint, read_model
from vitconvert.runtimes.graph import output_names
from vitconvert.runtimes.runtime import Metadata, Run, Runtime

if TYPE_CHECKING:
    from onnx_ir import Graph, Model, Node, Value
    from torch import Tensor
    from torch.export import ExportedProgram as Program

_LARGEST = 1_900_000_000  # bytes of weights within the file: 2 GiB, and room for the rest
_OLDEST_OPSET = 18  # of torch's exporter (2.15)
_PRODUCTS = ["MatMul", "Gemm"]  # operators that are quantised


class OnnxRuntime(Runtime):
    """ONNX and ONNX Runtime's CPU provider."""

    name, suffix = "ONNX Runtime", ".onnx"
    packages = ("onnxruntime", "onnx", "onnxscript")
    calibrated_by = ()

    def check_opset(self, opset: int) -> None:
        """As `Runtime.check_opset`."""
        import onnx

        newest = onnx.defs.onnx_opset_version()
        if not _OLDEST_OPSET <= opset <= newest:
            raise UsageError(
                f"There is no opset {opset} to export to.",
                evidence={"opsets": f"{_OLDEST_OPSET} to {newest}"},
            )

    def write(
        self, program: "Program", path: Path, metadata: Metadata, opset: int | None = None
    ) -> None:
        """As `Runtime.write`.

        Raises:
            NotRepresentable: torch's exporter has no operator of ONNX for one of the model's.
        """
        import torch

        try:
            exported = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                opset_version=opset,
                input_names=["images"],
                output_names=output_names(len(program.graph_signature.user_outputs)),
            )
        except Exception as error:  # exporters raise anything
            raise NotRepresentable(
                "torch cannot write this model as ONNX.",
                evidence={"raised": what_was_raised(error)},
            ) from error
        assert exported is not None
        _name_sizes(exported.model.graph)
        _settle_shapes(exported.model)
        for node in exported.model.graph:  # how torch came to each, a third of a small file
            node.metadata_props.clear()
        exported.model.metadata_props.update(metadata)
        exported.model.producer_name = "vitconvert"
        size = sum(x.numel() * x.element_size() for x in program.state_dict.values())
        exported.save(path, external_data=size > _LARGEST)

    def calibrate(
        self, path: Path, output: Path, images: "Iterable[Tensor]", *, head: bool
    ) -> None:
        """As `Runtime.calibrate`, by ONNX Runtime's own static quantisation."""
        from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

        class CalibrationImages(CalibrationDataReader):  # type: ignore[misc]
            rest = iter(images)

            def get_next(self) -> Mapping[str, object] | None:
                return next(({"images": x.numpy()} for x in self.rest), None)

        quantize_static(
            path,
            output,
            CalibrationImages(),
            op_types_to_quantize=_PRODUCTS,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=_with_weights(path)[: -1 if head else None],
            extra_options={"OpTypesToExcludeOutputQuantization": _PRODUCTS},
        )

    def open(self, path: Path, *, threads: int, streams: int = 1, dtype: str = "float32") -> Run:
        """As `Runtime.open`; sessions may be called by several threads."""
        import onnxruntime
        import torch

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, threads // streams)
        options.log_severity_level = 3
        if busy():  # threads that spin while they wait take the processor from those they wait for
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        name = session.get_inputs()[0].name

        def run(images: "Tensor") -> "Tensor":
            (output,) = session.run(["output"], {name: images.numpy()})
            return torch.from_numpy(output)

        return run

    def companions(self, path: Path) -> tuple[Path, ...]:
        """Where large weights are."""
        return (path.with_name(f"{path.name}.data"),)

    def metadata(self, path: Path) -> Metadata:
        """The properties of the model."""
        return read_model(path).metadata

    def remaining(self, path: Path) -> tuple[str, ...]:
        """What `check_onnx.lint` finds."""
        return tuple(lint(read_model(path)))


def quantise(path: Path, output: Path) -> None:
    """Round the weights of matrix products to 8 bits, each output channel by a scale of its own.

    Activations are rounded while the model runs ("dynamic"), so no images are needed.

    Args:
        path: A model in float32.
        output: Where the other is written, with the same metadata.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        path,
        output,
        op_types_to_quantize=_PRODUCTS,
        per_channel=True,
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )


def restate(path: Path, name: str, value: str) -> None:
    """Write another value of an entry of a file's metadata; weights beside it stay there."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    (entry,) = (entry for entry in model.metadata_props if entry.key == name)
    entry.value = value
    onnx.save(model, path)


def _with_weights(path: Path) -> list[str]:
    """The products of activations with weights; those of attention are of activations alone."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    held = {tensor.name for tensor in graph.initializer}
    products = (node for node in graph.node if node.op_type in _PRODUCTS)
    return [node.name for node in products if node.input[1] in held]


def _name_sizes(graph: "Graph") -> None:
    """Call the sizes that are open by their names, and not by torch's own symbols for them.

    Those are the batch size and, of images of any size, rows and columns of patches or pixels.
    """
    stated = [str(size.value) for size in graph.inputs[0].shape or () if not isinstance(size, int)]
    symbols = [size.rpartition("*")[2] for size in stated]  # of "16*s5", which counts patches
    sides = ["height", "width"] if stated == symbols else ["rows", "columns"]
    names = ["batch"] if len(stated) == 1 else ["batch", *sides][3 - len(stated) :]
    known = dict(zip(symbols, names, strict=False))
    values = [*graph.inputs, *graph.outputs, *(out for node in graph for out in node.outputs)]
    for shape in (value.shape for value in values if value.shape is not None):
        for axis, size in enumerate(shape):
            if isinstance(size, int) or size.value is None:
                continue
            if size.value in known:
                shape[axis] = known[size.value]
            elif len(known) > 1:
                shape[axis] = re.sub(r"\bs\d+\b", lambda found: known[found[0]], size.value)


def _settle_shapes(model: "Model") -> None:
    """Leave out sizes that are computed where a constant does, whose one open size is -1."""
    import numpy as np
    import onnx_ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    for node in list(model.graph):
        if keys := _turned_keys(node):
            turned = onnx_ir.node("Transpose", [keys], {"perm": [0, 1, 3, 2]})
            model.graph.insert_before(node, turned)
            onnx_ir.convenience.replace_all_uses_with(node.outputs[0], turned.outputs[0])
            continue
        if node.op_type != "Reshape" or node.inputs[1].const_value is not None:
            continue
        measured = node.inputs[1].producer()  # of group normalisation, which goes back to a shape
        like = measured.inputs[0] if measured.op_type == "Shape" else node.outputs[0]
        sizes = [side if isinstance(side, int) else -1 for side in like.shape or ()]
        if sizes.count(-1) == 1:
            name = f"{node.outputs[0].name}_shape"
            value = onnx_ir.Value(name=name, const_value=onnx_ir.tensor(np.array(sizes), name=name))
            model.graph.register_initializer(value)
            node.replace_input_with(1, value)
    RemoveUnusedNodesPass()(model)


def _turned_keys(last: "Node") -> "Value | None":
    """What torch's exporter transposes for attention by way of three axes: its last two axes.

    (B, H, N, K) to (B*H, N, K) to (B*H, K, N) to (B, H, K, N), by sizes that are computed: of what
    torch itself reshapes, it says the sizes.
    """
    turn = last.inputs[0].producer() if last.op_type == "Reshape" and last.inputs[0] else None
    first = turn.inputs[0].producer() if turn and turn.op_type == "Transpose" else None
    if first is None or first.op_type != "Reshape":
        return None
    keys, stated = first.inputs[0], first.outputs[0].shape
    computed = any(user.op_type == "Shape" for user in keys.consumers())
    computed = computed and not any(isinstance(side, int) for side in stated or ())
    return keys if computed and len(keys.shape or ()) == 4 else None
