"""`export --dynamic-size`: what computing positions for the size of the images costs in each run.

    python -m benchmarks.free_sizes [--architecture vit_base_patch14_reg4_dinov2] [--rounds 5]

ONNX Runtime profiles one file for images of any size, on one image of the model's own size. What is
"of sizes" are operators that no pixel reaches: they read sizes, and weights. The share is of the
time of all operators, on random weights; the files compute the same whatever the weights are.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measuring import as_figures, origin, parser_of, spread, table
from benchmarks.peers import Setting, write_weights
from vitconvert.api import export_model

PACKAGES = ("torch", "onnxruntime")


def of_sizes(graph: Any) -> set[str]:
    """Names of the nodes of an ONNX graph that no pixel reaches."""
    pixels, found = {graph.input[0].name}, set()
    for node in graph.node:  # which are in the order of computing
        if node.op_type != "Shape" and pixels.intersection(node.input):
            pixels.update(node.output)
        else:
            found.add(node.name)
    return found


def shares(file: Path, rounds: int) -> Iterator[tuple[float, float]]:
    """Seconds of all operators, and the share of those of sizes, of each run."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(file.with_name("profile"))
    options.optimized_model_filepath = str(file.with_name("optimised.onnx"))
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    config = json.loads(session.get_modelmeta().custom_metadata_map["vitconvert"])["config"]
    images = np.random.default_rng(0).standard_normal(
        (1, config["in_channels"], *config["image_size"]), dtype=np.float32
    )
    for _ in range(rounds + 1):
        session.run(None, {"images": images})
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    graph = onnx.load(str(file.with_name("optimised.onnx")), load_external_data=False).graph
    names, suffix = of_sizes(graph), "_kernel_time"
    runs: list[list[dict[str, Any]]] = [[]]
    for event in sorted(events, key=lambda one: one["ts"] + one["dur"]):
        if event["name"].endswith(suffix):
            runs[-1].append(event)
        elif event["name"] == "model_run":
            runs.append([])
    for run in runs[1 : rounds + 1]:  # the first one allocates
        whole = sum(event["dur"] for event in run)
        ours = sum(event["dur"] for event in run if event["name"].removesuffix(suffix) in names)
        yield whole / 1e6, ours / whole


def main() -> None:
    """The command line."""
    parser = parser_of("free_sizes", __doc__, 5)
    parser.add_argument("--architecture", default="vit_base_patch14_reg4_dinov2", help="of timm")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_weights(
            Setting(
                folder=folder,
                architecture=given.architecture,
                device="cpu",
                dtype="float32",
                threads=1,
            )
        )
        file = folder / "model.onnx"
        export_model(folder / "timm", file, to="onnx", dynamic_size=True, verify=False)
        found = list(shares(file, given.rounds))
    seconds, parts = ([one[k] for one in found] for k in (0, 1))
    if given.json:
        print(as_figures("free_sizes", PACKAGES, seconds=seconds, shares=parts))
        return
    row = (given.architecture, spread(seconds), f"{median(parts):.2%}", f"{max(parts):.2%}")
    print(table(("model", "seconds of operators", "share of sizes", "at most"), [row]))
    print("", *origin("free_sizes", PACKAGES), sep="\n")


if __name__ == "__main__":
    main()
