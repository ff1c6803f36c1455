"""MMPretrain 1.2: the pipeline of a configuration, which its checkpoints carry as text."""

import ast
from collections.abc import Mapping

from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable
from vitconvert.preprocessing.steps import Size, numbers, short, whole_numbers

_LONGEST = 2**20  # letters of a configuration; the largest that it publishes has 30,000
# What changes no pixels; MMPretrain's own inferencer leaves out the first.
_WITHOUT_EFFECT = ("LoadImageFromFile", "PackInputs")
_HINT = "state it: --preprocessor FILE, or --mean, --std and --crop."


def configuration(text: str) -> JsonDict:
    """What a configuration in Python assigns, as data: nothing of it is run.

    Values that are no literals, such as `dict(a=b)` with another name, are None.

    Raises:
        NotRepresentable: It is no Python, or it inherits from other files.
    """
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"it has more than {_LONGEST} letters")
        statements = ast.parse(text).body
        found = {
            target.id: _literal(node.value)
            for node in statements
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotRepresentable(
            "The configuration of MMPretrain cannot be read as data.",
            evidence={"problem": str(error) or type(error).__name__},
            hint=_HINT,
        ) from None
    if "_base_" in found:
        raise NotRepresentable(
            "The configuration of MMPretrain inherits from other files.",
            evidence={"_base_": short(found["_base_"])},
            hint="write all of it into one: mmengine.Config.fromfile(FILE).dump(OUT).",
        )
    return found


def _literal(node: ast.expr) -> object:
    """The value of a literal, of a `dict(...)`, or None."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {str(k.value): _literal(v) for k, v in pairs if isinstance(k, ast.Constant)}
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=stated):
            return {each.arg: _literal(each.value) for each in stated if each.arg}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    return None


def from_configuration(config: JsonObject, *, image_size: Size) -> JsonDict:
    """Fields of `Steps`, as `ImageClassificationInferencer` reads the configuration.

    Raises:
        MissingFact: It states no pipeline.
        ConflictingFact: A value is malformed.
        NotRepresentable: It prepares images in another way.
    """
    steps: JsonDict = {
        "image_size": image_size,
        "interpolation": "bilinear",
        "resize": "none",
        "resize_size": None,
        "crop": False,
        "backend": "mmpretrain",
        "rescale_factor": None,
        **_normalising(config),
    }
    for transform in _pipeline(config):
        if not isinstance(transform, Mapping):
            raise ConflictingFact(f"A step of the pipeline is {short(transform)}.")
        kind = str(transform.get("type")).rpartition(".")[2]
        if kind in ("ResizeEdge", "Resize") and not steps["crop"]:
            steps |= _resizing(kind, transform)
        elif kind == "CenterCrop" and not transform.get("auto_pad"):
            width, height = whole_numbers(transform.get("crop_size"), "crop_size", 2)
            steps |= {"crop": True, "image_size": (height, width)}
        elif kind not in _WITHOUT_EFFECT:
            raise NotRepresentable(
                f"{kind} in MMPretrain's pipeline is not supported.",
                evidence={"step": short(dict(transform))},
                hint=_HINT,
            )
    resized = steps["resize_size"]
    if steps["crop"] and resized:
        pairs = zip(resized, steps["image_size"], strict=True)
        if any(before < after for before, after in pairs):
            raise NotRepresentable("MMPretrain crops nothing of images that are smaller.")
    elif resized and steps["resize"] == "squash":
        steps["image_size"] = resized
    return steps


def _pipeline(config: JsonObject) -> list[object]:
    """Of the test's data, as the inferencer takes it."""
    loader = config.get("test_dataloader")
    data = loader.get("dataset") if isinstance(loader, Mapping) else None
    own = data.get("pipeline") if isinstance(data, Mapping) else None
    found = own or config.get("test_pipeline")
    if not isinstance(found, list):
        raise MissingFact("The configuration of MMPretrain states no test_pipeline.")
    return found


def _normalising(config: JsonObject) -> JsonDict:
    """`ClsDataPreprocessor` of the model, or else of the file."""
    model = config.get("model")
    own = model.get("data_preprocessor") if isinstance(model, Mapping) else None
    stated = own or config.get("data_preprocessor") or {}
    if not isinstance(stated, Mapping):
        raise ConflictingFact(f"data_preprocessor = {short(stated)} should be a dict.")
    if not stated.get("to_rgb"):
        raise NotRepresentable("The model reads blue, green and red, in this order.", hint=_HINT)
    if (stated.get("pad_size_divisor") or 1) != 1:
        raise NotRepresentable("pad_size_divisor of MMPretrain is not supported.", hint=_HINT)
    if stated.get("mean") is None:
        return {"mean": (0.0,) * 3, "std": (1.0,) * 3, "normalize": False}
    mean, std = (numbers(stated.get(name), name, 3) for name in ("mean", "std"))
    return {"mean": mean, "std": std, "normalize": True}


def _resizing(kind: str, stated: JsonObject) -> JsonDict:
    """mmcv's `Resize`, or MMPretrain's `ResizeEdge`, with Pillow."""
    options = {"edge": "short", "keep_ratio": False, "scale_factor": None}
    other = [key for key, usual in options.items() if stated.get(key, usual) != usual]
    if stated.get("backend", "cv2") != "pillow":
        other.append("backend")  # OpenCV's filters, without antialias, in fixed point
    if other:
        value = stated.get(other[0], "cv2")
        raise NotRepresentable(
            f"{kind} of MMPretrain with {other[0]} = {value!r} is not supported.", hint=_HINT
        )
    if kind == "ResizeEdge":
        (edge,) = whole_numbers(stated.get("scale"), "scale", 1)
        resized, resize = (edge, edge), "shortest"
    else:
        width, height = whole_numbers(stated.get("scale"), "scale", 2)
        resized, resize = (height, width), "squash"
    interpolation = stated.get("interpolation", "bilinear")
    return {"resize": resize, "resize_size": resized, "interpolation": interpolation}
