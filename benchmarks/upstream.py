"""Which release of timm, transformers, OpenCLIP or ONNX Runtime changed which numbers.

    python -m benchmarks.upstream [PACKAGE ...] [--last 3] [--all]
    python -m benchmarks.upstream --installed [PACKAGE ...]

Each release is installed into a folder of its own, without what it requires where this environment
has it, torch above all; so only the release differs. There `benchmarks.goldens` opens the same
files of small models, and the same images, as in every release. What it computes is compared, to
the last bit, with what the release before it computed.

The last three releases are taken, and every one that docs/pages/upstream.md does not have yet;
with `--all`, each from the floor in pyproject.toml on. It prints that page's tables. The exit code
is 1 if a release that the page has not changed something: read what changed, see whether
vitconvert's tables must follow, and put the tables of `--all` into the page.

With `--installed`, nothing is installed: what this environment has is compared with the page, by
one number of each family that no processor's rounding changes. The exit code is 1 if one differs.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import distributions, version
from itertools import chain
from pathlib import Path

import numpy as np
from packaging.requirements import Requirement
from packaging.version import Version

from benchmarks.goldens import GOLDENS, ONNX, RAISES, SIZES, drawn
from benchmarks.measuring import ROOT, origin, table

# The name to import, and PyPI's.
PACKAGES = {
    "timm": "timm",
    "transformers": "transformers",
    "open_clip": "open-clip-torch",
    "onnxruntime": "onnxruntime",
}
PAGE = ROOT / "docs" / "pages" / "upstream.md"
SHARED = ("torch", "torchvision", "numpy", "pillow")
NEW = "new"
ROUNDING = 1e-4  # between processors and releases of torch, of numbers around 1
# Of each family, its outputs, or what the release said instead.
Release = Mapping[str, Mapping[str, np.ndarray] | str]
# Of each family, the releases that changed it, and what changed.
History = dict[str, list[tuple[str, str]]]


def main() -> None:
    options = _options()
    page = PAGE.read_text(encoding="utf-8")
    if options.installed:
        raise SystemExit(sum(len(others(package, page)) for package in options.packages) > 0)
    fresh: list[str] = []
    for package in options.packages:
        releases = chosen(published(package), last_of(package, page), options)
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
            newest, history = followed(releases, computed(package, releases, Path(folder)))
            (alone,) = computed(package, releases[-1:], Path(other))
        print(as_markdown(package, releases, newest, alone, history), flush=True)
        fresh += unknown(package, history, last_of(package, page))
    print("\n".join(origin("upstream", SHARED)))
    if fresh:
        raise SystemExit("\n".join(["", "Not on docs/pages/upstream.md:", *fresh]))


def _options() -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks.upstream", description=__doc__)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=", ".join(PACKAGES))
    parser.add_argument("--last", type=int, default=3, help="so many releases at least")
    parser.add_argument("--all", action="store_true", help="every release since pyproject's floor")
    parser.add_argument("--installed", action="store_true", help="compare this environment")
    options = parser.parse_args()
    if strange := set(options.packages) - set(PACKAGES):
        parser.error(f"{', '.join(sorted(strange))}: choose of {', '.join(PACKAGES)}")
    options.packages = options.packages or list(PACKAGES)
    return options


def published(package: str) -> list[str]:
    """The releases since the floor in pyproject.toml, the oldest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every = chain(settings["dependencies"], *settings["optional-dependencies"].values())
    floors = {one.name: one.specifier for one in map(Requirement, every)}
    found = _pip("index", "versions", PACKAGES[package])
    (names,) = re.findall(r"^Available versions: (.+)$", found, re.M)
    return sorted(floors[PACKAGES[package]].filter(names.split(", ")), key=Version)


def last_of(package: str, page: str) -> str:
    """The newest release that the page has; "0" if it has none."""
    found = re.search(rf"^## {package} \S+ to (\S+)$", page, re.M)
    return found[1] if found else "0"


def chosen(releases: Sequence[str], known: str, options: Namespace) -> Sequence[str]:
    """All releases, or the last, and those after the one that is known, with it."""
    if options.all:
        return releases
    newer = sum(Version(release) > Version(known) for release in releases)
    return releases[-max(options.last, newer + 1) :]


def computed(package: str, releases: Iterable[str], folder: Path) -> Iterator[Release]:
    """What each release computes, in a process and an environment of its own."""
    files = folder / "files"
    files.mkdir()
    if package == "onnxruntime":
        export(files)
    for release in releases:
        print(f"{package} {release}", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            install(f"{PACKAGES[package]}=={release}", Path(place))
            yield answers(package, release, Path(place), files)


def export(folder: Path) -> None:
    """The ONNX files that ONNX Runtime's goldens open, by vitconvert."""
    import timm

    import vitconvert

    for family, architecture in ONNX.items():
        model = drawn(timm.create_model(architecture, **SIZES))
        source = folder / family
        timm.models.save_for_hf(model, source, model_args=SIZES, safe_serialization=True)
        vitconvert.export_model(source, folder / f"{family}.onnx", to="onnx", verify=False)


def install(requirement: str, folder: Path) -> None:
    """A release, and of what it requires what this environment has not."""
    wanted = [requirement]
    while wanted:
        how = ("--quiet", "--no-deps", "--no-compile", "--target", str(folder))
        _pip("install", *how, *wanted)
        installed, wanted = wanted, sorted(set(lacking(folder)))
        if wanted == installed:
            raise SystemExit(f"{requirement}: {', '.join(wanted)} contradict each other.")


def lacking(folder: Path) -> Iterator[str]:
    """What a folder's packages require and neither it nor this environment satisfies."""
    for package in distributions(path=[str(folder)]):
        for one in map(Requirement, package.requires or ()):
            if one.marker and not one.marker.evaluate({"extra": ""}):
                continue
            there = next(iter(distributions(name=one.name, path=[str(folder), *sys.path])), None)
            if there is None or not one.specifier.contains(there.version, prereleases=True):
                yield f"{one.name}{one.specifier}"


def answers(package: str, release: str, folder: Path, files: Path) -> Release:
    """What the release in a folder computes."""
    output = folder / "goldens.npz"
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "benchmarks.goldens", package, str(files), str(output)]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | paths, capture_output=True)
    if ended.returncode:
        return dict.fromkeys(GOLDENS[package], f"the process ends with {ended.returncode}")
    found: dict[str, dict[str, np.ndarray] | str] = {}
    with np.load(output) as arrays:
        ran = str(arrays["release"])
        if ran != release:
            raise SystemExit(f"{package} {release} was asked for, and {ran} ran.")
        for name in set(arrays) - {"release"}:
            family, _, output_name = name.rpartition("/")
            if output_name == RAISES:
                found[family] = str(arrays[name])
            else:
                found.setdefault(family, {})[output_name] = arrays[name]
    return found


def followed(names: Iterable[str], releases: Iterable[Release]) -> tuple[Release, History]:
    """The last release's goldens, and what each release changed of those before it."""
    history: History = {}
    before: Release | None = None
    for name, after in zip(names, releases, strict=True):
        for family in sorted({*(before or ()), *after}):
            changes = history.setdefault(family, [])
            if before is None:
                told = [after[family]] if isinstance(after[family], str) else []
            else:
                told = list(changed(before.get(family), after.get(family)))
            changes += [(name, ", ".join(told))] if told else []
        before = after
    return before or {}, history


def changed(
    before: Mapping[str, np.ndarray] | str | None, after: Mapping[str, np.ndarray] | str | None
) -> Iterator[str]:
    """What differs of one family between two releases, each of which may raise or lack it."""
    if isinstance(after, str):
        if after != before:
            yield after
    elif after is None:
        if before is not None:
            yield "gone"
    elif before is None or isinstance(before, str):
        yield NEW if before is None else "works"
    else:
        for name in sorted({*before, *after}):
            if told := difference(before.get(name), after.get(name)):
                yield f"{name} {told}"


def difference(before: np.ndarray | None, after: np.ndarray | None) -> str:
    """How far two arrays are apart, of the largest number; nothing if they are equal in bits."""
    if before is None or after is None:
        return NEW if before is None else "gone"
    if before.shape != after.shape:
        return f"of shape {before.shape} has shape {after.shape}"
    if before.tobytes() == after.tobytes():
        return ""
    far = np.abs(after - before).max() / max(np.abs(before).max(), np.finfo(np.float32).tiny)
    return f"{far:.1e}"


def unknown(package: str, history: History, known: str) -> list[str]:
    """What releases after the known one changed; a family that is new changed nothing."""
    return [
        f"{package} {release}, {family}: {told}"
        for family, changes in history.items()
        for release, told in changes
        if Version(release) > Version(known) and told != NEW
    ]


def others(package: str, page: str) -> list[str]:
    """Families of which the installed release computes another number than the page has; said."""
    release, rows = version(PACKAGES[package]), recorded(package, page)
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "files"
        files.mkdir()
        if package == "onnxruntime":
            export(files)
        found = answers(package, release, Path(folder), files)
    numbers = {family: along(found.get(family)) for family in rows}
    other = [name for name, number in rows.items() if not abs(numbers[name] - number) <= ROUNDING]
    same, known = len(rows) - len(other), last_of(package, page)
    print(f"{package} {release}: {same} of {len(rows)} families compute what {known} did.")
    for family in other:
        print(f"  {family}: {numbers[family]:.5f}, not {rows[family]:.5f}")
    return other


def recorded(package: str, page: str) -> dict[str, float]:
    """The number of each family in the page."""
    section = page.partition(f"## {package} ")[2].partition("\n## ")[0]
    found = re.findall(r"^\| ([^|]+) \| [^|]+ \| `\w+` \| (-?[\d.]+) \|", section, re.M)
    return {family: float(number) for family, number in found}


def along(outputs: Mapping[str, np.ndarray] | str | None) -> float:
    """Logarithms of the outputs' lengths, and how far each lies along a random direction.

    What changes an output by a share of its length changes this by about as much. It is nan if
    there are none.
    """
    if outputs is None or isinstance(outputs, str):
        return np.nan
    total = 0.0
    for name in sorted(outputs):
        flat = outputs[name].ravel().astype(np.float64)
        direction = np.random.default_rng(0).standard_normal(flat.size)
        length = max(float(np.linalg.norm(flat)), np.finfo(np.float32).tiny)
        total += np.log(length) + float(flat @ direction) / length
    return total


def as_markdown(
    package: str, releases: Sequence[str], newest: Release, alone: Release, history: History
) -> str:
    """The page's section of a package, whose newest release also opened files of its own."""
    rows = []
    for family, changes in history.items():
        outputs = newest.get(family)
        told = "; ".join(f"{release}: {what}" for release, what in changes) or "bit-equal"
        names = "" if outputs is None or isinstance(outputs, str) else ", ".join(sorted(outputs))
        number = f"{along(alone.get(family)):.5f}"
        rows.append((family, names, fingerprint(outputs), number, told.replace("|", "/")))
    head = f"## {package} {releases[0]} to {releases[-1]}\n\nReleases: {', '.join(releases)}.\n\n"
    found = table(("family", "outputs", "sha256", "number", "changed by"), rows).replace(
        "---:", "---"
    )
    return f"{head}{found}\n"


def fingerprint(outputs: Mapping[str, np.ndarray] | str | None) -> str:
    """The first figures of a hash over a family's numbers; nothing if there are none."""
    if outputs is None or isinstance(outputs, str):
        return ""
    whole = hashlib.sha256()
    for name in sorted(outputs):
        whole.update(name.encode() + outputs[name].tobytes())
    return f"`{whole.hexdigest()[:8]}`"


def _pip(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode:
        raise SystemExit(f"pip {' '.join(words)} failed:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
