"""Write `weights_map/preprocessing.toml` anew from the installed timm.

    python -m tests.tables.make_preprocessing > weights_map/preprocessing.toml

`test_preprocessing_of_names.py` compares the file with what this script finds.
"""

from collections import defaultdict

import timm
from timm.models import get_pretrained_cfg, list_pretrained

from vitconvert.tables.architectures import cards, named

HEADER = """\
# How timm prepares images for a model that is known by its name alone. A name without a tag is
# of timm's default tag; a name with one is listed where timm says something else of it. Written by
# tests/tables/make_preprocessing.py from timm {timm}.
"""
FIELDS = ("mean", "std", "crop_pct", "crop_mode", "interpolation")

_IMAGENET = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]
_H_OPTIMUS = [[0.707223, 0.578729, 0.703617], [0.211883, 0.230117, 0.177517]]
# What the code of cards says where it is not config.json that does; the scan is of that size.
OF_CARDS = {
    "MahmoodLab": [*_IMAGENET, 1.0, "center", "bilinear"],
    "paige-ai": [*_IMAGENET, 1.0, "center", "bicubic"],
    "prov-gigapath": [*_IMAGENET, 0.875, "center", "bicubic"],
    "bioptimus": [*_H_OPTIMUS, 1.0, "center", "bicubic"],
}


def cfg(name: str) -> tuple[object, ...]:
    """What timm's registry says of a name, or a card."""
    if name in cards():
        return tuple(OF_CARDS[name.partition("/")[0]])
    found = get_pretrained_cfg(name)
    said = (getattr(found, field) for field in FIELDS)
    return tuple(list(v) if isinstance(v, tuple) else v for v in said)


def groups() -> dict[str, list[str]]:
    """The names of which timm says the same, by what it says."""
    found = defaultdict(list)
    architectures = named("timm")
    tagged = {n for n in list_pretrained() if n.partition(".")[0] in architectures}
    for name in sorted({*architectures, *tagged, *cards()}):
        bare, _, tag = name.partition(".")
        if not tag or cfg(name) != cfg(bare):
            lines = [f"{k} = {spell(v)}" for k, v in zip(FIELDS, cfg(name), strict=True)]
            found["\n".join(lines)].append(name)
    return dict(sorted(found.items(), key=lambda group: -len(group[1])))


def spell(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def document() -> str:
    """The whole file."""
    parts = [HEADER.format(timm=timm.__version__)]
    for number, (said, names) in enumerate(groups().items(), 1):
        lines = "".join(f'    "{name}",\n' for name in names)
        parts.append(f"[timm.{number}]\n{said}\nnames = [\n{lines}]\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(document(), end="")
