"""Write the table of dialects in weights_map/CONVERSIONS.md: `python -m tests.make_dialects`."""

import re
from pathlib import Path

from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.table import Table

CONVERSIONS = Path(__file__).parents[1] / "weights_map" / "CONVERSIONS.md"
BEGIN, END = "<!-- dialects: written by tests/make_dialects.py -->", "<!-- end of dialects -->"

# What `verify` compares a library's files with.
VERIFIED = {
    "timm": "timm",
    "hf": "transformers",
    "hf_flax": "not verified; outputs of transformers 4's Flax classes",
    "llama_cpp": "not verified; outputs of transformers from the same weights",
    "mlx_image": "mlx-image",
    "hf_tf": "outputs of transformers 4, which loads what is written",
    "keras_hub": "KerasHub",
    "vit_keras": "outputs of its own model, which loads what is written",
    "jax": "timm's .npz loader; outputs of Google's Flax model",
    "big_vision": "timm's .npz loader; outputs of big_vision's Flax model",
    "scenic": "not verified; outputs of its own Flax model",
    "jeonsworld": "not verified; outputs of its own model",
    **dict.fromkeys(
        ("asyml", "ibot", "lukemelas", "tintn", "videomae", "vjepa2"),
        "not verified; outputs of its own model",
    ),
    "lucidrains": "vit-pytorch (current layouts); outputs of older releases",
    "torchvision": "torchvision",
    "openai_clip": "open_clip's vision encoder; outputs of its own model",
    "openclip": "open_clip (its own vision encoders)",
    "dino": "not verified; outputs of its own model",
    "dinov2": "not verified; outputs of its own model",
    "dinov3": "not verified; outputs of its own model",
    "deit3": "not verified; outputs of its own model",
    "mae": "not verified; outputs of its own model",
    "msn": "not verified; outputs of its own model",
    "moco_v3": "not verified; outputs of its own model",
    **dict.fromkeys(("ast", "deimv2", "eat", "m2d"), "not verified; outputs of its own model"),
    "sam": "segment-anything",
    "vitdet": "not verified; outputs of its own model and of transformers' port",
    "deepseek": "not verified; outputs of timm's model, which reads its files; its own was not run",
    "mistral": "not verified; outputs of transformers' class that writes these names",
    "mmpretrain": "mmpretrain",
    "mobileclip": "not verified; outputs of its own model",
    "mmseg": "not verified; names of its own model",
    **dict.fromkeys(
        ("aimv2", "beit3", "pe", "sapiens2"),
        "timm, whose own loader reads these names; outputs of its own model",
    ),
    "eva": "timm, whose own loader reads these names; outputs of its own models",
    "equimo": "equimo",
    "vit": "itself",
}


def dialect_table() -> str:
    """One row for each library, with its dialects."""
    ecosystems: dict[str, list[Table]] = {}
    for table in builtin_tables().values():
        ecosystems.setdefault(table.ecosystem, []).append(table)
    rows = [
        f"| `{ecosystem}` | {_dialects(tables)} | {tables[0].container} | {VERIFIED[ecosystem]} |"
        for ecosystem, tables in sorted(ecosystems.items())
    ]
    return "\n".join(
        ["| library | dialects | written as | verified with |", "|---|---|---|---|", *rows]
    )


def _dialects(tables: list[Table]) -> str:
    return "<br>".join(f"`{table.name}` {table.title}" for table in tables)


def filled(text: str) -> str:
    """The document with the table as it should be."""
    part = f"{BEGIN}\n{dialect_table()}\n{END}"
    return re.sub(f"{BEGIN}.*?{END}", lambda _: part, text, flags=re.DOTALL)


if __name__ == "__main__":
    CONVERSIONS.write_text(filled(CONVERSIONS.read_text(encoding="utf-8")), encoding="utf-8")
