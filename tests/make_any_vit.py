"""Write weights_map/ANY_VIT.md, of every class that may be a ViT: `python -m tests.make_any_vit`.

What there is comes from the packages' own files; what is read, from the tests that read it; why
another is refused, from weights_map/others.toml; and the rest from any_vit.toml beside this file.
"""

import ast
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.make_classes import committed
from tests.originals.test_clip import OF_TIMM_ALONE, TOWERS_BY_NAME
from tests.packages import timm
from tests.towers.families import FAMILIES
from vitconvert.tables.architectures import named
from vitconvert.tables.others import look_alike

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "weights_map" / "ANY_VIT.md"
STATED: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_suffix(".toml").with_stem("any_vit").read_text(encoding="utf-8")
)
BEGIN, END = "<!-- any ViT: written by tests/make_any_vit.py -->", "<!-- end of any ViT -->"
_IMAGES = re.compile(r"pixel|image|grid|patch|video|frame")
_SOUNDS = re.compile(r"input_(values|features)")
# Modules whose families in tests/towers/families.py have other names.
_FAMILIES = {
    "vision_encoder_decoder": "trocr",
    "vision_text_dual_encoder": "vision-text dual encoder",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A module, class or architecture of a package, its classes, and what becomes of it."""

    name: str
    classes: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    test: str = ""
    refused: str = ""

    def line(self, package: str) -> str:
        """A row of the document; a name that nothing is said of is a KeyError."""
        if self.read:
            said = f"read as {_code(self.read)}"
        else:
            said = _refused(self.refused) if self.refused else stated(package)[self.name]
        test = f"`{self.test}`" if self.read else ""
        return f"| `{self.name}` | {', '.join(self.classes)} | {said} | {test} |"


def stated(package: str) -> dict[str, str]:
    """What any_vit.toml says of the names of a package."""
    sections = STATED[package]
    none = sections["not a ViT"]
    holds = sections.get("holds", {})
    return {
        **{name: f"not a ViT: {why}" for why, names in none.items() for name in names},
        **{name: f"not a ViT itself: it holds `{tower}`" for name, tower in holds.items()},
        **{name: _refused(why) for name, why in sections["refused"].items()},
    }


def _refused(why: str) -> str:
    return f"not supported ({why})"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _source(package: str) -> Path:
    """Where a package lies, which is not imported."""
    found = find_spec(package)
    assert found and found.origin
    return Path(found.origin).parent


def _of_transformers() -> Iterator[Row]:
    """A row for each module with a class that takes images, or audio in patches."""
    by_class = {name: row.split("`")[1] for name, row in committed().items()}
    for file in sorted(_source("transformers").glob("models/*/modeling_*.py")):
        text = file.read_text(encoding="utf-8")
        if not re.search(r"pixel|Patch|grid_thw", text):
            continue  # the others take seconds to parse
        found = _takes_images(ast.parse(text), "Patch" in text)
        if not found:
            continue
        name = file.stem.removeprefix("modeling_")
        family = FAMILIES.get(_FAMILIES.get(name, name))
        read = tuple(sorted({by_class[one] for one in found if one in by_class}))
        if read:
            yield Row(name=name, classes=found, read=read, test="huggingface/test_every_class.py")
        elif family:
            test = "towers/test_families.py"
            yield Row(name=name, classes=found, read=(family.dialect,), test=test)
        else:
            row = _row_of_class("transformers", name)
            yield replace(row, classes=found, refused=_look_alike(file) or "")


def _look_alike(modeling: Path) -> str | None:
    """What weights_map/others.toml says of the types in the configuration beside a module."""
    beside = modeling.with_name(modeling.name.replace("modeling_", "configuration_"))
    text = beside.read_text(encoding="utf-8") if beside.exists() else ""
    types = re.findall(r'^    model_type = "(.+)"$', text, flags=re.MULTILINE)
    return next(filter(None, map(look_alike, types)), None)


def _takes_images(tree: ast.Module, patches: bool) -> tuple[str, ...]:
    """The models of a file that are given images, or sounds that are cut into patches."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def inherited(name: str) -> tuple[str, bool]:
        """The arguments of a class's forward, and whether it is a model."""
        if name not in classes:
            return "", name.endswith("PreTrainedModel")
        node = classes[name]
        above = [inherited(ast.unparse(base).rpartition(".")[2]) for base in node.bases]
        own = [one.args for one in node.body if getattr(one, "name", "") == "forward"]
        taken = [" ".join(one.arg for one in (*a.args, *a.kwonlyargs)) for a in own]
        return next(filter(None, (*taken, *(a for a, _ in above))), ""), any(m for _, m in above)

    found = {name: inherited(name) for name in classes if not name.endswith("PreTrainedModel")}
    return tuple(
        name
        for name, (taken, model) in found.items()
        if model and (_IMAGES.search(taken) or (patches and _SOUNDS.search(taken)))
    )


def _of_timm() -> Iterator[Row]:
    """A row for each module of timm that has architectures."""
    for module in sorted(timm.list_modules()):
        names = timm.list_models(module=module)
        space = vars(getattr(timm.models, module)).values()
        classes = tuple(one.__name__ for one in space if _is_model_of(one, module))
        read = [name for name in names if name in named("timm")]
        assert not read or read == names, f"{module}: {set(names) - set(read)}"
        dialects = ("timm",) if read else ()
        yield Row(name=module, classes=classes, read=dialects, test="coverage/test_timm.py")


def _is_model_of(one: Any, module: str) -> bool:
    here = getattr(one, "__module__", "") == f"timm.models.{module}"
    return here and isinstance(one, type) and hasattr(one, "forward_features")


def _of_open_clip() -> Iterator[Row]:
    """A row for each vision encoder, with the configurations that have it."""
    configs: dict[str, list[str]] = {}
    for file in sorted(_source("open_clip").glob("model_configs/*.json")):
        tower = json.loads(file.read_text(encoding="utf-8"))["vision_cfg"]
        configs.setdefault(_tower_of_open_clip(tower), []).append(file.stem)
    for name, having in sorted(configs.items()):
        of_timm = name in TOWERS_BY_NAME and name not in OF_TIMM_ALONE
        read = ("openclip_timm",) if of_timm else ()
        read = ("openclip",) if name == "VisionTransformer" else read
        yield Row(name=name, classes=tuple(having), read=read, test="originals/test_clip.py")


def _tower_of_open_clip(tower: Mapping[str, Any]) -> str:
    if "timm_model_name" in tower:
        return re.sub(r"_\d+$", "", tower["timm_model_name"])
    if isinstance(tower["layers"], list):
        return "ModifiedResNet"
    return "CoCa's VisionTransformer" if "attentional_pool" in tower else "VisionTransformer"


def _of_keras_hub() -> Iterator[Row]:
    """A row for each exported backbone, image encoder or classifier whose module names images."""
    root = _source("keras_hub")
    text = (root / "models" / "__init__.py").read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        name = node.names[0].asname or node.names[0].name
        source = root.joinpath(*node.module.split(".")[1:]).with_suffix(".py")
        of_images = "image" in source.read_text(encoding="utf-8").lower()
        if of_images and name.endswith(("Backbone", "VisionEncoder", "ImageClassifier")):
            yield _row_of_class("keras_hub", name)


def _of_mmpretrain() -> Iterator[Row]:
    """A row for each backbone."""
    source = _source("mmpretrain") / "models/backbones/__init__.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            for name in ast.literal_eval(node.value):
                yield _row_of_class("mmpretrain", name)


def _row_of_class(package: str, name: str) -> Row:
    """A class that a test names, or that nothing reads."""
    for section in STATED[package]["read"]:
        if name in section["tables"]:
            read = tuple(section["tables"][name])
            return Row(name=name, read=read, test=section["test"].removeprefix("tests/"))
    return Row(name=name)


PACKAGES = {
    "transformers": ("5.24.0", "by modules: classes that take images, or audio", _of_transformers),
    "timm": ("1.0.31", "by modules: their classes", _of_timm),
    "open_clip": ("3.3.0", "by vision encoders: configurations that have them", _of_open_clip),
    "keras_hub": ("0.32.0", "by classes", _of_keras_hub),
    "mmpretrain": ("1.2.0", "by backbones", _of_mmpretrain),
}


def rows(package: str) -> list[Row]:
    """Everything in a package that may be a ViT."""
    return sorted(PACKAGES[package][2](), key=lambda row: row.name.lower())


def section(package: str) -> str:
    """The part of the document about a package."""
    version, kind, _ = PACKAGES[package]
    lines = [row.line(package) for row in rows(package)]
    head = ["| name | classes | | tested by |", "|---|---|---|---|"]
    return "\n".join([f"## {package} {version}, {kind}", "", *head, *lines])


if __name__ == "__main__":
    made = "\n\n".join(map(section, PACKAGES))
    text = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[0]
    DOCUMENT.write_text(f"{text}{BEGIN}\n{made}\n{END}\n", encoding="utf-8")
