"""Does an engine compute what an ONNX file of vitconvert says that it computes?

    python check.py model.onnx --engine onnxruntime|openvino|tensorrt|tensorrt_rtx

This one file needs Python 3.10, numpy and the engine, and nothing of vitconvert: copy it anywhere.
The answers of vitconvert's own model are in the metadata of the file (`golden`), and images are
made of integers: every machine and language has the same bits. It says equal (exit code 0), or that
the engine departs (1), and at which block if the file has `--probes`. What cannot be checked is 2.
"""

import argparse
import base64
import ctypes
import importlib
import json
import mmap
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

GOLDEN = "golden"  # the entry of the metadata
IMAGES = 2  # noise, and stripes of another slope and period in each channel
MOST = 2048  # numbers that are kept of one image's output
Arrays = dict[str, np.ndarray]
Compute = Callable[[np.ndarray], Arrays]


def hashed(numbers: np.ndarray) -> np.ndarray:
    """Integers to well mixed uint32, https://github.com/skeeto/hash-prospector (lowbias32)."""
    x = numbers.astype(np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def images(channels: int, height: int, width: int, *, pixels: bool) -> np.ndarray:
    """The golden images, (2, C, H, W) float32, or (2, H, W, C) uint8 if the graph takes `pixels`.

    Levels are integers from 0 to 255; float32 has (level - 127.5) / 64, which is exact.
    """
    c, y, x = np.indices((channels, height, width))
    noise = hashed((c * height + y) * width + x) >> np.uint32(24)
    stripes = ((c + 1) * y * 512 // height + (c + 2) * x * 256 // width) % 256
    levels = np.stack([noise, stripes]).astype(np.uint8)
    if pixels:
        return np.ascontiguousarray(levels.transpose(0, 2, 3, 1))
    return ((levels.astype(np.float32) - np.float32(127.5)) / np.float32(64)).astype(np.float32)


def sampled(array: np.ndarray) -> np.ndarray:
    """(B, ...) to the numbers that are kept of each, (B, at most MOST): all, or hashed places."""
    flat, count = array.reshape(len(array), -1), array[0].size
    return flat if count <= MOST else flat[:, hashed(np.arange(MOST)) % np.uint32(count)]


# Protocol buffers, as far as they are needed: https://protobuf.dev/programming-guides/encoding
def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and bytes of each field; those of an integer are a varint."""
    at = 0
    while at < len(data):
        key, start = _varint(data, at)
        if key & 7 == 0:
            _, at = _varint(data, start)
        elif key & 7 == 2:
            size, start = _varint(data, start)
            at = start + size
        else:
            at = start + {1: 8, 5: 4}[key & 7]
        if at > len(data):
            raise ValueError("a field ends behind the file")
        yield key >> 3, data[start:at]


def within(data: memoryview, *path: int) -> Iterator[memoryview]:
    """Every value at a path of field numbers."""
    if not path:
        yield data
    for number, value in fields(data) if path else ():
        if number == path[0]:
            yield from within(value, *path[1:])


def _text(data: memoryview, *path: int) -> str:
    return "".join(bytes(value).decode() for value in within(data, *path))


class Value(NamedTuple):
    """An input or output: sizes are numbers, or names of what is open."""

    name: str
    dtype: int  # onnx.TensorProto.DataType
    shape: tuple[int | str, ...]


class Node(NamedTuple):
    """An operator, with the names of what it reads and makes."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Model(NamedTuple):
    """What an ONNX file says, without its weights. Numbers are those of onnx.proto3."""

    metadata: Mapping[str, str]
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def read_model(path: Path) -> Model:
    """Read an ONNX file; its weights stay on the disk.

    Raises:
        OSError, ValueError: It cannot be read, or is none.
    """
    with path.open("rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        return Model(
            metadata={_text(entry, 1): _text(entry, 2) for entry in within(whole, 14)},
            nodes=(*_nodes(whole, 7, 1), *_nodes(whole, 25, 7)),  # of the graph, of functions
            inputs=tuple(_value(value) for value in within(whole, 7, 11)),
            outputs=tuple(_value(value) for value in within(whole, 7, 12)),
        )
    except (ValueError, IndexError, KeyError):  # of bytes that mean something else, or end too soon
        raise ValueError("its bytes are not those of a graph, or not all of them") from None


def _nodes(data: memoryview, *path: int) -> Iterator[Node]:
    """Operators, and those of graphs that are their attributes: branches and bodies."""
    for node in within(data, *path):
        reads, makes = (tuple(map(_text, within(node, k))) for k in (1, 2))
        yield Node(_text(node, 4), reads, makes)
        for graphs in (6, 11):
            yield from _nodes(node, 5, graphs, 1)


def _value(data: memoryview) -> Value:
    (dtype,) = within(data, 2, 1, 1)
    sizes: list[int | str] = []
    for dimension in within(data, 2, 1, 2, 1):
        known = list(within(dimension, 1))
        sizes.append(_varint(known[0], 0)[0] if known else _text(dimension, 2) or "?")
    return Value(_text(data, 1), _varint(dtype, 0)[0], tuple(sizes))


# Operators that are right in some engines and wrong in others, or cost time for each batch.
_PASSING = ("Cast", "Concat", "Gather", "Slice", "Squeeze", "Unsqueeze", "Mul", "Div", "Add", "Sub")
_REASONS = {
    **dict.fromkeys(
        ("If", "Loop", "Scan"), "control flow, which TensorRT has computed wrongly without an error"
    ),
    **dict.fromkeys(("Sin", "Cos"), "tables of positions that are computed for each batch"),
    **dict.fromkeys(("Range", "NonZero", "ConstantOfShape"), "sizes decided while it runs"),
    "Resize": "a table that is resized for each batch",
}


def lint(model: Model) -> list[str]:
    """What could be constant and is not: faults, and notes of what an open batch explains."""
    used = Counter(node.operator for node in model.nodes)
    told = [f"fault: {used[name]} {name}: {why}" for name, why in _REASONS.items() if used[name]]
    if "image_size" in json.loads(model.metadata.get(GOLDEN, "{}")):
        return [_of_open_sizes(used), *(line for line in told if "control flow" in line)]
    (taken, *_) = model.inputs
    for value in (taken, *model.outputs):
        if names := [str(size) for size in value.shape[1:] if isinstance(size, str)]:
            told.append(f"fault: {value.name} has open sizes: {', '.join(names)}")
    for name in filter(used.__getitem__, ("Shape", "Size")):
        ends = _ends(model, name)
        found = f"{used[name]} {name}, for {', '.join(ends) or 'nothing'}"
        if ends == ["Expand"] and isinstance(taken.shape[0], str):
            told.append(f"note: {found}: tokens are repeated for any number of images")
        else:
            told.append(f"fault: {found}: sizes that could be constant")
    return told


def _of_open_sizes(used: Mapping[str, int]) -> str:
    """What computes positions of the size of the images, in each run."""
    found = (f"{used[name]} {name}" for name in ("Shape", "Range", "Sin", "Cos") if used[name])
    return f"note: height and width are open: positions are computed by {', '.join(found)}, ..."


def _ends(model: Model, operator: str) -> list[str]:
    """The operators to which the results of one lead, through arithmetic with sizes."""
    reached = {name for node in model.nodes if node.operator == operator for name in node.outputs}
    ends = set()
    for node in model.nodes:  # which are in the order of computing
        if reached.intersection(node.inputs):
            if node.operator in _PASSING:
                reached.update(node.outputs)
            else:
                ends.add(node.operator)
    return sorted(ends)


def onnxruntime_engine(path: Path, model: Model, device: str | None) -> Compute:
    """ONNX Runtime; a device is an execution provider."""
    import onnxruntime

    provider = device or "CPUExecutionProvider"
    session = onnxruntime.InferenceSession(str(path), providers=[provider])
    names = [value.name for value in model.outputs]

    def compute(batch: np.ndarray) -> Arrays:
        found = session.run(names, {model.inputs[0].name: batch})
        return dict(zip(names, found, strict=True))

    return compute


def openvino_engine(path: Path, model: Model, device: str | None) -> Compute:
    """OpenVINO, in float32 as the file says; a device is CPU, GPU, ..."""
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(str(path), device or "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def compute(batch: np.ndarray) -> Arrays:
        found = compiled({model.inputs[0].name: batch})
        return {value.name: np.array(found[value.name]) for value in model.outputs}

    return compute


def tensorrt_engine(
    path: Path, model: Model, device: str | None, package: str = "tensorrt"
) -> Compute:
    """TensorRT 10 and later, without TF32, built here and now; memory is CUDA's driver's."""
    trt = importlib.import_module(package)
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    # Of every operator, the dtype that the file states. TensorRT 10 has both ways, others this one.
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if typed is None else 1 << int(typed))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        raise RuntimeError("; ".join(str(parser.get_error(k)) for k in range(parser.num_errors)))
    settings, taken = builder.create_builder_config(), model.inputs[0]
    settings.clear_flag(trt.BuilderFlag.TF32)
    if any(isinstance(size, str) for size in taken.shape):
        profile = builder.create_optimization_profile()
        channels, *size = _sizes(model)
        sides = (*size, channels) if taken.dtype == 2 else (channels, *size)
        count = taken.shape[0]
        counts = (1, IMAGES) if isinstance(count, str) else (count, count)
        one, both = ((n, *sides) for n in counts)
        profile.set_shape(taken.name, one, one, both)
        settings.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, settings)
    engine = None if plan is None else trt.Runtime(logger).deserialize_cuda_engine(plan)
    if engine is None:
        raise RuntimeError("TensorRT has no engine of it here; its messages are above")
    context, cuda = engine.create_execution_context(), Cuda(int(device or 0))

    def compute(batch: np.ndarray) -> Arrays:
        context.set_input_shape(taken.name, batch.shape)
        found = {}
        for name in (value.name for value in model.outputs):
            dtype = trt.nptype(engine.get_tensor_dtype(name))
            found[name] = np.empty(tuple(context.get_tensor_shape(name)), dtype)
        arrays = {taken.name: np.ascontiguousarray(batch), **found}
        places = {name: cuda.allocated(array) for name, array in arrays.items()}
        for name, place in places.items():
            context.set_tensor_address(name, place)
        if not context.execute_async_v3(0):
            raise RuntimeError("TensorRT did not run the engine; its messages are above")
        for name, array in found.items():
            cuda.fetch(array, places[name])
        for place in places.values():
            cuda.free(place)
        return found

    return compute


class Cuda:
    """Memory of a GPU by the driver's own library, which is wherever TensorRT runs."""

    def __init__(self, device: int) -> None:
        name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
        self.driver = ctypes.CDLL(name)
        context, number = ctypes.c_void_p(), ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(number), device)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self.driver, name)(*arguments):
            raise RuntimeError(f"{name}: error {code} of CUDA")

    def allocated(self, array: np.ndarray) -> int:
        """The place of a copy."""
        place = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(array.nbytes))
        source = ctypes.c_void_p(array.ctypes.data)
        self._call("cuMemcpyHtoD_v2", place, source, ctypes.c_size_t(array.nbytes))
        return place.value

    def fetch(self, array: np.ndarray, place: int) -> None:
        """Wait for what is computed, and copy it back."""
        self._call("cuCtxSynchronize")
        target = ctypes.c_void_p(array.ctypes.data)
        self._call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(place), ctypes.c_size_t(array.nbytes))

    def free(self, place: int) -> None:
        """Give it back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(place))


ENGINES: dict[str, Callable[[Path, Model, str | None], Compute]] = {
    "onnxruntime": onnxruntime_engine,
    "openvino": openvino_engine,
    "tensorrt": tensorrt_engine,
    "tensorrt_rtx": partial(tensorrt_engine, package="tensorrt_rtx"),
}


def differences(model: Model, compute: Compute) -> dict[str, float]:
    """For each output, the largest difference from the golden numbers over the largest of them.

    Where any number of images is taken, they are computed together and each alone.
    """
    stated, taken = json.loads(model.metadata[GOLDEN])["outputs"], model.inputs[0]
    pixels = taken.dtype == 2  # uint8
    channels, height, width = _sizes(model)
    both = images(channels, height, width, pixels=pixels)
    count = taken.shape[0]
    rows = [[0, 1], [0], [1]]
    if isinstance(count, int):
        rows = [[(first + k) % IMAGES for k in range(count)] for first in range(IMAGES)]
    found = dict.fromkeys(stated, 0.0)
    for chosen in rows:
        outputs = compute(both[chosen])
        for name, one in stated.items():
            kept = np.frombuffer(base64.b64decode(one["float32"]), "<f4").reshape(IMAGES, -1)
            relative = _relative(outputs[name], kept[chosen], one["shape"])
            found[name] = max(found[name], relative)
    return found


def _sizes(model: Model) -> tuple[int, int, int]:
    """Channels, height and width of the golden images, also where height and width are open."""
    golden, taken = json.loads(model.metadata[GOLDEN]), model.inputs[0]
    sides = taken.shape[1:]
    height, width, channels = sides if taken.dtype == 2 else (*sides[1:], sides[0])
    height, width = golden.get("image_size", (height, width))
    return int(channels), int(height), int(width)


def _relative(ours: np.ndarray, theirs: np.ndarray, shape: list[int]) -> float:
    if ours.shape != (len(theirs), *shape):
        return float("inf")
    difference = np.abs(sampled(ours).astype(np.float64) - theirs).max()
    return float(difference / np.abs(theirs).max()) if np.isfinite(difference) else float("inf")


def report(path: Path, engine: str, device: str | None, tolerance: float | None) -> int:
    """Check a file, print what was found, and give the exit code."""
    try:
        model = read_model(path)
    except (OSError, ValueError) as error:
        print(f"{path} is not an ONNX file that can be read: {error}")
        return 2
    if GOLDEN not in model.metadata:
        print(f"{path.name} has no golden numbers: vitconvert export --to onnx writes them")
        return 2
    stated = json.loads(model.metadata[GOLDEN])
    remaining = lint(model)
    print(*(f"{line}\n" for line in remaining), sep="", end="")
    if any("open sizes" in line for line in remaining):
        print("not checked: only the number of images may be open")
        return 1
    try:
        found = differences(model, ENGINES[engine](path, model, device))
    except Exception as error:  # engines raise anything
        print(f"not checked: {engine} cannot run it: {type(error).__name__}: {error}")
        return 2
    allowed = tolerance or stated["tolerance"]
    wrong = [name for name, relative in found.items() if not relative <= allowed]
    for name, relative in found.items():
        word = "departs" if name in wrong else "equal"
        print(f"{word:8} {name:12} {relative:.1e}".replace("0.0e+00", "0"))
    print(f"{engine} {_verdict(wrong, allowed, probed=len(found) > 1)}")
    return int(bool(wrong) or any(line.startswith("fault") for line in remaining))


def _verdict(wrong: list[str], allowed: float, *, probed: bool) -> str:
    if not wrong:
        return f"computes the same, to {allowed:.0e} of the largest number"
    if not probed:
        return "departs; a file of vitconvert export --probes shows at which block"
    return f"departs first {'after the blocks' if wrong[0] == 'output' else f'at {wrong[0]}'}"


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path, help="an ONNX file of `vitconvert export`")
    parser.add_argument("--engine", choices=list(ENGINES), default="onnxruntime")
    parser.add_argument("--device", help="a provider of ONNX Runtime, a device of OpenVINO, a GPU")
    parser.add_argument("--tolerance", type=float, help="instead of what the file states")
    given = parser.parse_args(arguments)
    return report(given.model, given.engine, given.device, given.tolerance)


if __name__ == "__main__":
    sys.exit(main())
