"""ONNX, written by torch's exporter and run by ONNX Runtime.

Weights of more than 2 GiB do not fit into a protocol buffer: torch then writes them beside the file
(https://onnx.ai/onnx/repo-docs/ExternalData.html), under the file's name with `.data` after it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import NotRepresentable, UsageError, what_was_raised
from vitconvert.machine import busy
from vitconvert.runtimes.runtime import Metadata, Run, Runtime

if TYPE_CHECKING:
    from onnx_ir import Graph
    from torch import Tensor
    from torch.export import ExportedProgram as Program

_LARGEST = 1_900_000_000  # bytes of weights within the file: 2 GiB, and room for the rest
_OLDEST_OPSET = 18  # of torch's exporter (2.15)


class OnnxRuntime(Runtime):
    """ONNX and ONNX Runtime's CPU provider."""

    name, suffix, has_opset = "ONNX Runtime", ".onnx", True
    packages = ("onnxruntime", "onnx", "onnxscript")

    def write(
        self, program: "Program", path: Path, metadata: Metadata, opset: int | None = None
    ) -> None:
        """As `Runtime.write`.

        Raises:
            UsageError: There is no such opset.
            NotRepresentable: torch's exporter has no operator of ONNX for one of the model's.
        """
        import torch

        if opset is not None:
            import onnx

            newest = onnx.defs.onnx_opset_version()
            if not _OLDEST_OPSET <= opset <= newest:
                raise UsageError(
                    f"There is no opset {opset} to export to.",
                    evidence={"opsets": f"{_OLDEST_OPSET} to {newest}"},
                )
        try:
            exported = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                opset_version=opset,
                input_names=["images"],
                output_names=["output"],
            )
        except Exception as error:  # exporters raise anything
            raise NotRepresentable(
                "torch cannot write this model as ONNX.",
                evidence={"raised": what_was_raised(error)},
            ) from error
        assert exported is not None
        _name_the_batch(exported.model.graph)
        for node in exported.model.graph:  # how torch came to each, a third of a small file
            node.metadata_props.clear()
        exported.model.metadata_props.update(metadata)
        exported.model.producer_name = "vitconvert"
        size = sum(x.numel() * x.element_size() for x in program.state_dict.values())
        exported.save(path, external_data=size > _LARGEST)

    def open(self, path: Path, *, threads: int, streams: int = 1) -> Run:
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
            (output,) = session.run(None, {name: images.numpy()})
            return torch.from_numpy(output)

        return run

    def companions(self, path: Path) -> tuple[Path, ...]:
        """Where large weights are."""
        return (path.with_name(f"{path.name}.data"),)

    def metadata(self, path: Path) -> Metadata:
        """The properties of the model."""
        import onnx

        model = onnx.load(str(path), load_external_data=False)
        return {entry.key: entry.value for entry in model.metadata_props}


def quantise(path: Path, output: Path, nodes: Sequence[str] = ()) -> None:
    """Round the weights of matrix products to 8 bits, each output channel by a scale of its own.

    Activations are rounded while the model runs ("dynamic"), so no images are needed.

    Args:
        path: A model in float32.
        output: Where the other is written, with the same metadata.
        nodes: Products that stay as they are.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        path,
        output,
        op_types_to_quantize=["MatMul", "Gemm"],
        per_channel=True,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=list(nodes),
        extra_options={"MatMulConstBOnly": True},
    )


def _name_the_batch(graph: "Graph") -> None:
    """Call the one size that is open "batch", and not by torch's own symbol for it."""
    values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
    for shape in (value.shape for value in values if value.shape is not None):
        for axis, size in enumerate(shape):
            if not isinstance(size, int) and size.value is not None and size.value.isidentifier():
                shape[axis] = "batch"
