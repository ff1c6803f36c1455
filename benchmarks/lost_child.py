"""What one release saves of tiny models, and what it loads of those that another release saved.

    python -m benchmarks.lost_child PACKAGE FOLDER ANSWERS TASK ...

`benchmarks.lost` runs it in the environment of each release. A TASK is `save:RELEASE:NAME` or
`load:RELEASE:NAME`. FOLDER/RELEASE holds, for each NAME, `model`, as that release saves it, and
`expected.safetensors`, what it computes. ANSWERS gets a line of JSON for each task: `error`, or,
where it loads, what the audit found, how far the outputs are from those expected, and whether the
loader said what it lost.
"""

import importlib
import inspect
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchmarks.lost_models import IMAGE, OPEN_CLIP, TIMM, TRANSFORMERS, WORDS
from vitconvert import audit_load

ABSENT = "absent"
_FAR = 1e9  # the difference of what is no number
Answer = dict[str, Any]


class Library(Protocol):
    """How a package makes, saves, loads and computes the model of a name, in its own folder."""

    def has(self, name: str) -> bool: ...
    def make(self, name: str, folder: Path) -> nn.Module: ...
    def save(self, name: str, model: nn.Module, folder: Path) -> None: ...
    def load(self, name: str, folder: Path) -> nn.Module: ...
    def compute(self, name: str, model: nn.Module) -> Any: ...


class OfTransformers:
    """Classes of transformers: `save_pretrained` and `from_pretrained`."""

    def __init__(self, package: ModuleType) -> None:
        self.package = package

    def has(self, name: str) -> bool:
        return hasattr(self.package, TRANSFORMERS[name][0])

    def make(self, name: str, _: Path) -> nn.Module:
        kind, config, _ = TRANSFORMERS[name]
        cls = getattr(self.package, kind)
        return cls(cls.config_class(**json.loads(json.dumps(config))))  # a copy: it may be changed

    def save(self, _: str, model: nn.Module, folder: Path) -> None:
        model.save_pretrained(folder)

    def load(self, name: str, folder: Path) -> nn.Module:
        return getattr(self.package, TRANSFORMERS[name][0]).from_pretrained(folder)

    def compute(self, name: str, model: nn.Module) -> Any:
        inputs = TRANSFORMERS[name][2]()
        if name == "SAM 2 video":  # whose `forward` wants a session of frames
            features = model.vision_encoder(inputs.pop("pixel_values")).last_hidden_state
            return {"features": features, "prompts": model.get_prompt_embeddings(**inputs)}
        given = inspect.signature(model.forward).parameters
        more = {"use_cache": False} if "use_cache" in given else {}
        return model(**{key: value for key, value in inputs.items() if key in given}, **more)


class OfTimm:
    """Models of timm: `save_for_hf`, and `create_model` of the directory."""

    def __init__(self, package: ModuleType) -> None:
        self.package = package

    def has(self, name: str) -> bool:
        return TIMM[name][0] in self.package.list_models()

    def make(self, name: str, _: Path) -> nn.Module:
        architecture, sizes = TIMM[name]
        return self.package.create_model(architecture, **sizes)

    def save(self, name: str, model: nn.Module, folder: Path) -> None:
        sizes = TIMM[name][1]
        self.package.models.save_for_hf(model, folder, model_args=sizes, safe_serialization=True)

    def load(self, _: str, folder: Path) -> nn.Module:
        return self.package.create_model(f"local-dir:{folder}", pretrained=True)

    def compute(self, _: str, model: nn.Module) -> Any:
        images = IMAGE()["pixel_values"]
        return {"logits": model(images), "features": model.forward_features(images)}


class OfOpenClip:
    """Models of OpenCLIP: a configuration and a file of weights, and `create_model` of both."""

    def __init__(self, package: ModuleType) -> None:
        self.package = package

    def has(self, _: str) -> bool:
        return True

    def make(self, name: str, folder: Path) -> nn.Module:
        return self.package.create_model(self._named(name, folder))

    def save(self, _: str, model: nn.Module, folder: Path) -> None:
        folder.mkdir()
        save_file(model.state_dict(), folder / "model.safetensors")

    def load(self, name: str, folder: Path) -> nn.Module:
        file = str(folder / "model.safetensors")
        return self.package.create_model(self._named(name, folder), pretrained=file)

    def compute(self, _: str, model: nn.Module) -> Any:
        images, words = IMAGE()["pixel_values"], nn.functional.pad(WORDS, (0, 7))
        return {"image": model.encode_image(images), "text": model.encode_text(words)}

    def _named(self, name: str, folder: Path) -> str:
        file = folder.parent / f"lost_{slug(name)}.json"
        file.write_text(json.dumps(OPEN_CLIP[name]), encoding="utf-8")
        self.package.add_model_config(file)
        return file.stem


LIBRARIES = {"transformers": OfTransformers, "timm": OfTimm, "open_clip": OfOpenClip}


def slug(name: str) -> str:
    """A name as part of a path."""
    return re.sub(r"\W+", "_", name)


def drawn(model: nn.Module) -> nn.Module:
    """A model of which every parameter, and every buffer that is saved, is random.

    Vectors and single numbers are drawn around their mean, so that norms stay norms; variances
    stay positive; matrices and kernels are so large that numbers neither grow nor fade.
    """
    generator = torch.Generator().manual_seed(39)
    every = {**model.state_dict(keep_vars=True), **dict(model.named_parameters())}
    for name, value in {id(value): (name, value) for name, value in every.items()}.values():
        if value.is_floating_point() and value.numel():
            noise = torch.empty(value.shape).normal_(generator=generator)
            if name.endswith("running_var"):
                value.copy_(1 + noise.abs() / 2)
            elif value.ndim < 2:
                value.copy_(value.mean() + 0.2 * noise)
            else:
                value.copy_(noise * max((value.numel() / len(value)) ** -0.5, 0.1))
    return model


def save(library: Library, name: str, folder: Path) -> Answer:
    """Save a model, and what it computes."""
    folder.mkdir(parents=True)
    model = drawn(library.make(name, folder / "model")).eval()
    library.save(name, model, folder / "model")
    outputs = {n: t for n, t in computed(library, name, model).items() if t.isfinite().all()}
    if not outputs:
        raise ValueError("no output is finite")
    save_file(outputs, folder / "expected.safetensors")
    return {}


def load(library: Library, name: str, folder: Path) -> Answer:
    """Load a model, audit the load, and compare what it computes with what is expected."""
    torch.manual_seed(0)
    with heard() as lines:
        model = library.load(name, folder / "model").eval()
    answer = audited(model, folder / "model", "\n".join(lines))
    try:
        outputs = computed(library, name, model)
        apart = difference(outputs, load_file(folder / "expected.safetensors"))
    except Exception as error:
        return answer | {"error": f"forward: {first_line(error)}"}
    return answer | {"difference": apart}


def audited(model: nn.Module, file: Path, said: str) -> Answer:
    """What of a file is not in a model, and whether the loader said so."""
    audit = audit_load(lambda: model, file)
    lost = sorted({*audit.untouched, *audit.misplaced, *audit.unexplained})
    named = [is_named(name, said) for name in lost or audit.unused]
    some = any(named) or any(is_named(name, said) for name in audit.unused)
    told = "reported" if all(named) else "in part" if some else "silent"
    return {
        "complete": audit.complete,
        "lost": grouped(lost),
        "unused": grouped(audit.unused),
        "told": told if named else "",
    }


def grouped(names: Iterable[str]) -> list[str]:
    """Names that differ in one number each are one: `layer.{0..11}.bias`."""
    found: dict[str, list[list[str]]] = {}
    for name in names:
        parts = re.split(r"(?<![^.])(\d+)(?![^.])", name)
        found.setdefault("#".join(parts[::2]), []).append(parts[1::2])
    return sorted(
        "".join(
            text + number
            for text, number in zip(
                form.split("#"), [*map(_several, zip(*numbers, strict=True)), ""], strict=True
            )
        )
        for form, numbers in found.items()
    )


def _several(numbers: Iterable[str]) -> str:
    """`3`, `{0..11}`, or `{0,2,5}`."""
    known = sorted({int(number) for number in numbers})
    if len(known) == 1:
        return str(known[0])
    if known == list(range(known[0], known[-1] + 1)):
        return f"{{{known[0]}..{known[-1]}}}"
    return f"{{{','.join(map(str, known))}}}"


def is_named(name: str, said: str) -> bool:
    """Whether a loader's words hold a parameter's name, which transformers 5 shortens.

    In its report, names that differ in a number are one, with all numbers in braces; and those of
    a model within the class may stand without the model's own name.
    """
    for start in (0, name.find(".") + 1):
        parts = (
            rf"(?:{part}|\{{[^}}]*\}})" if part.isdecimal() else re.escape(part)
            for part in name[start:].split(".")
        )
        form = r"\.".join(parts)
        if re.search(rf"(?<![\w.]){form}(?![\w.])", said):
            return True
    return False


class heard(logging.Handler):  # noqa: N801
    """The lines that are logged or warned of meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._loggers = [logging.getLogger(), logging.getLogger("transformers")]
        self._warned = warnings.catch_warnings(record=True)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        for logger in self._loggers:
            logger.addHandler(self)
        self._warnings = self._warned.__enter__()
        warnings.simplefilter("always")
        return self.lines

    def __exit__(self, *error: object) -> None:
        self.lines += [str(one.message) for one in self._warnings]
        self._warned.__exit__(*error)
        for logger in self._loggers:
            logger.removeHandler(self)


def computed(library: Library, name: str, model: nn.Module) -> dict[str, Tensor]:
    """Outputs of a model that are fractions, by their names."""
    torch.manual_seed(0)
    found = dict(tensors_of("", library.compute(name, model)))
    return {name: tensor.float().contiguous().clone() for name, tensor in found.items()}


def tensors_of(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an output, however deep they are."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel():
            yield name, value
    elif isinstance(value, Mapping | list | tuple):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, one in pairs:
            yield from tensors_of(f"{name}.{key}" if name else str(key), one)


def difference(outputs: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest difference of an output from the expected one, relative to its largest number.

    Outputs of another name or shape than those expected are not compared: releases rename them.
    """
    alike = [n for n in expected if n in outputs and outputs[n].shape == expected[n].shape]
    if not alike:
        raise ValueError("no output has the name and the shape of one that is expected")
    apart = [(outputs[n] - expected[n]).abs().max() / expected[n].abs().max() for n in alike]
    return float(torch.stack(apart).nan_to_num(nan=_FAR, posinf=_FAR).max())


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def main(package: str, folder: str, answers: str, *tasks: str) -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")
    module = importlib.import_module(package)
    library = LIBRARIES[package](module)
    with Path(answers).open("a", encoding="utf-8") as file:
        for task in tasks:
            action, release, name = task.split(":", 2)
            act = {"save": save, "load": load}[action]
            try:
                answer = {"error": ABSENT}
                if library.has(name):
                    answer = act(library, name, Path(folder) / release / slug(name))
            except Exception as error:
                answer = {"error": first_line(error)}
            line = {"task": task, "by": module.__version__, **answer}
            print(json.dumps(line), file=file, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
