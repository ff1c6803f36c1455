"""Measure every ViT of timm and write the table of tests/coverage/README.md.

    python -m tests.coverage.make_table [--measured FILE] [--shard I/N]

What was measured is kept in FILE, so that an interrupted run goes on where it stopped, and several
can share the work. The table is written when nothing is left to measure.
"""

import argparse
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import torch
from tqdm import tqdm

from tests.coverage.families import (
    ARCHITECTURES,
    family_of,
    relative_difference,
    supported,
)

DOCUMENT = Path(__file__).parent / "README.md"


def read_measured(file: Path) -> dict[str, float]:
    """One JSON object a line: {"name": ..., "difference": ...}."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {entry["name"]: entry["difference"] for entry in map(json.loads, lines)}


def measure(names: list[str], file: Path) -> None:
    """Measure one architecture after another; the folder of each goes when it is done."""
    for name in tqdm(names):
        with tempfile.TemporaryDirectory() as folder:
            entry = {"name": name, "difference": relative_difference(name, Path(folder))}
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(entry) + "\n")


def table(measured: Mapping[str, float]) -> str:
    """A row for each family, and one for all of them."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in ARCHITECTURES:
        families[family_of(name)].append(name)
    rows = [_row(family, names, measured) for family, names in sorted(families.items())]
    computed = sum(map(supported, ARCHITECTURES))
    total = ("all", len(ARCHITECTURES), computed, f"{max(measured.values()):.1e}")
    lines = [
        "| family | architectures | supported | worst relative difference |",
        "|---|---|---|---|",
        *("| " + " | ".join(map(str, row)) + " |" for row in (*rows, total)),
    ]
    return "\n".join(lines)


def _row(family: str, names: list[str], measured: Mapping[str, float]) -> tuple[str, int, int, str]:
    differences = [measured[name] for name in names if supported(name)]
    worst = f"{max(differences):.1e}" if differences else "-"
    return family, len(names), len(differences), worst


def filled(text: str, title: str, made: str) -> str:
    """The document with this table between its marks."""
    begin = f"<!-- {title}: written by tests/coverage/make_table.py -->"
    end = f"<!-- end of {title} -->"
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{made}\n{end}", text, flags=re.DOTALL)


def main() -> None:
    """Measure what is left, then write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measured", type=Path, default=Path("coverage.jsonl"))
    parser.add_argument("--shard", default="1/1", metavar="I/N")
    options = parser.parse_args()
    index, count = map(int, options.shard.split("/"))
    wanted = [name for name in ARCHITECTURES if supported(name)]
    done = read_measured(options.measured)
    torch.set_num_threads(1)
    measure([n for n in wanted[index - 1 :: count] if n not in done], options.measured)
    measured = read_measured(options.measured)
    left = len(set(wanted) - measured.keys())
    if left:
        print(f"{left} architectures are left to measure; the table is as it was")
        return
    text = DOCUMENT.read_text(encoding="utf-8")
    made = table({name: measured[name] for name in wanted})
    DOCUMENT.write_text(filled(text, "coverage", made), encoding="utf-8")


if __name__ == "__main__":
    main()
