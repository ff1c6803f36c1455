"""OpenVINO's intermediate representation: an .xml of operations, and a .bin of weights beside it.

Source: https://docs.openvino.ai/2025/documentation/openvino-ir-format.html
"""

import io
import threading
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.errors import NotRepresentable, VitConvertError, what_was_raised
from vitconvert.programs.isolation import silent
from vitconvert.runtimes.runtime import Metadata, Run, Runtime

if TYPE_CHECKING:
    from openvino import Model
    from torch import Tensor
    from torch.export import ExportedProgram as Program

_SECTION = "vitconvert"  # of the model's rt_info


class OpenVino(Runtime):
    """OpenVINO on the CPU."""

    name, suffix = "OpenVINO", ".xml"
    packages = ("openvino",)
    calibrated_by = ("nncf",)
    dtypes = ("float32", "bfloat16")
    stops_at_shapes = False  # 2026.4 gives the outputs of the images before, from the second run on

    def write(
        self, program: "Program", path: Path, metadata: Metadata, opset: int | None = None
    ) -> None:
        """As `Runtime.write`.

        Raises:
            NotRepresentable: OpenVINO does not know one of the model's operators.
        """
        import openvino

        try:
            model = openvino.convert_model(program)
        except Exception as error:  # its converter raises anything
            raise NotRepresentable(
                "OpenVINO cannot convert this model.",
                evidence={"raised": what_was_raised(error)},
            ) from error
        # The converter forgets all sizes of the input; -1 stands for the batch size, a symbol.
        (images,) = program.graph_signature.user_inputs
        (node,) = (node for node in program.graph.nodes if node.name == images)
        model.reshape([side if isinstance(side, int) else -1 for side in node.meta["val"].shape])
        for port, name in ((model.inputs[0], "images"), (model.outputs[0], "output")):
            port.get_tensor().set_names({name})
        name_by_place(model)
        for key, value in metadata.items():
            model.set_rt_info(value, [_SECTION, key])
        _save(model, path)

    def calibrate(
        self, path: Path, output: Path, images: "Iterable[Tensor]", *, head: bool
    ) -> None:
        """As `Runtime.calibrate`, by NNCF.

        Ranges go from the smallest to the largest number that was seen: NNCF's own are means over
        images, beyond which half of them are.
        """
        import nncf
        import openvino
        from nncf.quantization.range_estimator import RangeEstimatorParametersSet

        arrays = [x.numpy() for x in images]
        model = openvino.Core().read_model(str(path))
        products = [op for op in model.get_ordered_ops() if op.get_type_name() == "MatMul"]
        spared = [op.get_friendly_name() for op in products[-1:] if head]
        ranges = RangeEstimatorParametersSet.MINMAX
        with silent("nncf"), redirect_stdout(io.StringIO()):  # bars of progress
            model = nncf.quantize(
                model,
                nncf.Dataset(arrays),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(arrays),
                ignored_scope=nncf.IgnoredScope(names=spared, types=["Convolution"]),
                advanced_parameters=nncf.AdvancedQuantizationParameters(
                    activations_range_estimator_params=ranges
                ),
            )
        name_by_place(model)
        _save(model, output)

    def open(self, path: Path, *, threads: int, streams: int = 1, dtype: str = "float32") -> Run:
        """As `Runtime.open`; each thread gets a request of its own, which is no other's."""
        import openvino
        import torch

        hints = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": streams,
            # Without the hint it computes in bfloat16 wherever the processor can.
            "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype],
        }
        compiled = openvino.Core().compile_model(str(path), "CPU", hints)
        local, first = threading.local(), threading.Lock()

        def infer(images: "Tensor") -> "Tensor":
            result = local.request.infer({0: images.numpy()}, share_inputs=True)
            return torch.from_numpy(result[0])

        def run(images: "Tensor") -> "Tensor":
            if hasattr(local, "request"):
                return infer(images)
            # Two threads whose first calls meet wait for one another for ever (OpenVINO 2026.4).
            with first:
                local.request = compiled.create_infer_request()
                return infer(images)

        return run

    def companions(self, path: Path) -> tuple[Path, ...]:
        """Where the weights are."""
        return (path.with_suffix(".bin"),)

    def metadata(self, path: Path) -> Metadata:
        """The section of the model's rt_info that is ours."""
        import openvino

        model = openvino.Core().read_model(str(path))
        if not model.has_rt_info([_SECTION]):
            return {}
        keys = model.get_rt_info([_SECTION]).value.keys()
        return {key: model.get_rt_info([_SECTION, key]).value for key in keys}


def name_by_place(model: "Model") -> None:
    """Call by its place what OpenVINO numbered by how much this process had made before."""
    model.set_friendly_name("vitconvert")
    for place, node in enumerate(model.get_ordered_ops()):
        if node.get_friendly_name().startswith(f"{node.get_type_name()}_"):
            node.set_friendly_name(f"{node.get_type_name()}_{place}")


def _save(model: "Model", path: Path) -> None:
    """Write both files.

    Raises:
        VitConvertError: They cannot be written.
    """
    import openvino

    try:
        openvino.save_model(model, path, compress_to_fp16=False)
    except Exception as error:  # it tells a full disk by RuntimeError
        raise VitConvertError(
            "OpenVINO cannot write its files.",
            evidence={"output": path.parent.parent / path.name, "raised": what_was_raised(error)},
            hint="is the disk full, or the folder not writable? No partial file was left.",
        ) from error
