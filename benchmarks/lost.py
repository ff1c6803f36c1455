"""Which releases of transformers, timm and OpenCLIP lose weights of files that others saved.

    python -m benchmarks.lost [--packages P ...] [--classes NAME ...] [--releases R ...] [--cache D]
    python -m benchmarks.lost --page

Tiny models (`benchmarks.lost_models`) are saved by the last release of transformers 4 and by 5.0.0,
and loaded by each minor release of the last twelve months; those of timm and OpenCLIP are saved by
the last release before. Each release is installed into a folder of its own, over the same torch.
There `vitconvert.audit_load` looks which weights arrived, and outputs are compared with those of
the release that saved the file.

It writes benchmarks/lost.json, and from it the tables of docs/pages/lost-weights.md; `--page` only
writes the tables again. With `--classes` or `--releases` it prints what it found, and writes
nothing. The exit code is 1 if a release loses weights that lost.json does not have.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from packaging.version import Version

from benchmarks.lost_child import ABSENT, Answer
from benchmarks.lost_models import OPEN_CLIP, TIMM, TRANSFORMERS
from benchmarks.measuring import ROOT, table
from benchmarks.upstream import PACKAGES, install

NAMES = {"transformers": [*TRANSFORMERS], "timm": [*TIMM], "open_clip": [*OPEN_CLIP]}
RESULTS = ROOT / "benchmarks" / "lost.json"
PAGE = ROOT / "docs" / "pages" / "lost-weights.md"
MARK = "<!-- below: written by benchmarks/lost.py -->"
YEAR = timedelta(days=365)
TOLERANCE = 1e-3  # of the largest number of an output: rounding is below, and a lost bias above
_SECONDS = 3600  # of one process, which no release needs
_SHOWN = 4  # names in one cell
_LETTERS = 150  # of an error
_PLAIN = str.maketrans({"`": "'", "|": "/"})  # what a cell of Markdown cannot hold
JsonDict = dict[str, Any]
# Of each package and model, the public threads about it.
_BIASES = ("huggingface/transformers#48675", "embeddings-benchmark/mteb#5094")
_POSITIONS = ("huggingface/transformers#41190", "huggingface/transformers#41374")
_PROMPTS = ("huggingface/transformers#42837", "huggingface/transformers#42840")
THREADS = {
    ("transformers", "VideoMAE"): _BIASES,
    ("transformers", "VideoMAE, pretraining"): _BIASES,
    ("transformers", "SmolVLM"): _POSITIONS,
    ("transformers", "Idefics 2"): _POSITIONS,
    ("transformers", "Idefics 3"): _POSITIONS,
    ("transformers", "SAM 2"): _PROMPTS,
    ("transformers", "SAM 2 video"): _PROMPTS,
    ("transformers", "DETR"): ("pixeltable/pixeltable#1239",),
    ("transformers", "PaliGemma"): ("huggingface/transformers#44432",),
    ("transformers", "Qwen2.5-VL"): ("huggingface/transformers#45381", "huggingface/lerobot#3648"),
    ("transformers", "Qwen3-VL of experts"): (
        "huggingface/transformers#43201",
        "huggingface/transformers#43956",
    ),
}
# What came of a load: the title and the columns of its table.
KINDS = {
    "lost": (
        "Lost weights: the outputs differ",
        ("model", "saved by", "loaded by", "lost", "loader says", "fixed in", "thread"),
    ),
    "no effect": (
        "Reported by the audit, but the outputs are equal",
        ("model", "saved by", "loaded by", "lost", "loader says"),
    ),
    "otherwise": (
        "All weights loaded, but the outputs differ",
        ("model", "saved by", "loaded by", "difference", "equal again in", "thread"),
    ),
    "crash": ("Crashes", ("model", "saved by", "loaded by", "error", "fixed in", "thread")),
    "not saved": ("Not saved", ("model", "saved by", "error")),
    ABSENT: ("Not in a release", ("model", "saved by", "loaded by")),
}


def published(package: str) -> dict[Version, date]:
    """The day of each release that is not withdrawn, the oldest first."""
    with urlopen(f"https://pypi.org/pypi/{PACKAGES[package]}/json") as answer:
        releases = json.load(answer)["releases"]
    days = {
        Version(release): date.fromisoformat(files[0]["upload_time"][:10])
        for release, files in releases.items()
        if files and not files[0]["yanked"]
    }
    return {one: days[one] for one in sorted(days) if not one.is_prerelease}


def chosen(package: str, days: Mapping[Version, date], today: date) -> tuple[list[str], list[str]]:
    """The releases that save, and those that load: the last of each minor one of twelve months.

    Releases of timm count by their last number, as it has no other.
    """
    recent = [one for one, day in days.items() if day >= today - YEAR]
    kept = {one.release[: 3 if package == "timm" else 2]: one for one in recent}
    if package == "transformers":
        savers = [max(one for one in days if one.major == 4), Version("5.0.0")]
    else:
        savers = [max(one for one, day in days.items() if day < today - YEAR)]
    return [*map(str, savers)], [*map(str, sorted({*kept.values(), *savers}))]


def followed(
    package: str, names: Sequence[str], savers: Sequence[str], loaders: Sequence[str], cache: Path
) -> Iterator[tuple[str, str, str, Answer]]:
    """Of each name, release that saves and release that loads: what came of it.

    Where nothing can be saved, the release that loads is empty. What no saver has is saved by the
    first release that has it.
    """
    saved: list[str] = []
    new = {*names}
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        for release in sorted({*savers, *loaders}, key=Version):
            print(f"{package} {release}", file=sys.stderr, flush=True)
            late = Version(release) > max(map(Version, savers))
            here = [n for n in names if release in savers or (late and n in new)]
            models = [*saved, *(f"{release}:{name}" for name in here)]
            tasks = [f"save:{release}:{name}" for name in here]
            tasks += [f"load:{model}" for model in models if release in loaders]
            answers = asked(package, release, tasks, Path(folder), cache)
            for name in here:
                answer = answers[f"save:{release}:{name}"]
                if answer.get("error") != ABSENT:
                    new.discard(name)
                if not answer:
                    saved.append(f"{release}:{name}")
                elif answer["error"] != ABSENT:
                    yield name, release, "", answer
            for model in saved if release in loaders else ():
                saver, _, name = model.partition(":")
                yield name, saver, release, answers[f"load:{model}"]


def asked(
    package: str, release: str, tasks: Sequence[str], folder: Path, cache: Path
) -> dict[str, Answer]:
    """What a release answers to each task: in its environment, in a new process after a crash."""
    place = cache / f"{package}-{release}"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=cache) as made:
            try:
                install(f"{PACKAGES[package]}=={release}", Path(made) / "packages")
            except SystemExit as error:
                last = str(error).strip().splitlines()[-1]
                return {task: {"error": f"not installed: {last}"} for task in tasks}
            (Path(made) / "packages").rename(place)
    paths = {"PYTHONPATH": os.pathsep.join([str(place), str(ROOT)]), "HF_HUB_OFFLINE": "1"}
    found: dict[str, Answer] = {}
    while left := [task for task in tasks if task not in found]:
        with tempfile.NamedTemporaryFile(mode="r", encoding="utf-8", dir=cache) as file:
            words = ("benchmarks.lost_child", package, str(folder), file.name, *left)
            ended = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                env=os.environ | paths,
                capture_output=True,
                timeout=_SECONDS,
            )
            lines = [json.loads(line) for line in file]
        for line in lines:
            if line.pop("by") != release:
                raise SystemExit(f"{package} {release} was asked for, and another ran.")
            found[line.pop("task")] = line
        if not lines and ended.returncode == 1:  # the package itself cannot be imported
            last = ended.stderr.decode(errors="replace").strip().splitlines()[-1]
            return {task: {"error": f"import: {last}"} for task in tasks}
        if len(lines) < len(left):
            found[left[len(lines)]] = {"error": f"the process ends with {ended.returncode}"}
    return found


def kind(answer: Answer) -> str:
    """What a release made of a model, in a word."""
    if "error" in answer:
        return ABSENT if answer["error"] == ABSENT else "crash"
    gone = not answer["complete"] or answer["unused"]
    if answer["difference"] > TOLERANCE:
        return "lost" if gone else "otherwise"
    return "no effect" if gone else "whole"


def as_rows(answers: Iterable[tuple[str, str, str, Answer]]) -> list[JsonDict]:
    """Answers as rows, where releases that answer the same share one."""
    rows: dict[str, JsonDict] = {}
    for name, saver, loader, answer in answers:
        row = {"name": name, "saved_by": saver, "kind": kind(answer) if loader else "not saved"}
        row |= {key: answer[key] for key in ("error", "lost", "unused", "told") if answer.get(key)}
        if len(row.get("error", "")) > _LETTERS:
            row["error"] = f"{row['error'][:_LETTERS]}..."
        row = rows.setdefault(json.dumps(row), row | {"loaded_by": []})
        row["loaded_by"] += [loader] if loader else []
        apart = float(f"{answer.get('difference', 0):.0e}")
        row["difference"] = max(row.get("difference", 0), apart)
    return [*rows.values()]


def mended(row: JsonDict, rows: Iterable[JsonDict]) -> str:
    """The first release after those of a row in which the same file is whole."""
    last = max(map(Version, row["loaded_by"]))
    whole = [
        Version(release)
        for other in rows
        if (other["name"], other["saved_by"]) == (row["name"], row["saved_by"])
        and other["kind"] == "whole"
        for release in other["loaded_by"]
    ]
    return str(min((one for one in whole if one > last), default="not yet"))


def ranges(releases: Sequence[str], every: Sequence[str]) -> str:
    """Releases in words: `5.0.0 to 5.3.0, 5.5.4`."""
    places = [every.index(release) for release in releases]
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    told = (
        every[run[0]] if len(run) == 1 else f"{every[run[0]]} to {every[run[-1]]}" for run in runs
    )
    return ", ".join(told)


def as_markdown(package: str, found: JsonDict) -> str:
    """The page's section of a package."""
    rows, loaders = found["rows"], found["loaders"]
    kinds = {word: [row for row in rows if row["kind"] == word] for word in KINDS}
    whole = [name for name in found["classes"] if _everywhere_whole(name, rows)]
    lines = [f"## {package} {loaders[0]} to {loaders[-1]}", ""]
    lines += [
        f"{len(found['classes'])} models, saved by {' and '.join(found['savers'])}; {len(whole)} "
        f"lost nothing in every release that has them. {found['date']}, {found['with']}."
    ]
    for word, (title, header) in KINDS.items():
        if kinds[word]:
            ordered = sorted(kinds[word], key=lambda row: found["classes"].index(row["name"]))
            told = [_cells(package, row, rows, loaders) for row in ordered]
            lines += ["", f"### {title}", "", _table(header, _joined(told, header))]
    if whole:
        lines += ["", "### Nothing lost", "", f"{'; '.join(whole)}."]
    lines += ["", f"Releases: {', '.join(loaders)}."]
    return "\n".join(lines)


def _joined(rows: Iterable[Mapping[str, str]], header: Sequence[str]) -> list[list[str]]:
    """Rows of a table; those that differ in the release that saved alone are one."""
    savers: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        others = tuple(row[column] for column in header if column != "saved by")
        savers.setdefault(others, []).append(row["saved by"])
    place = header.index("saved by")
    return [[*row[:place], ", ".join(by), *row[place:]] for row, by in savers.items()]


def _everywhere_whole(name: str, rows: Iterable[JsonDict]) -> bool:
    return {row["kind"] for row in rows if row["name"] == name} <= {"whole", ABSENT}


def _cells(
    package: str, row: JsonDict, rows: Sequence[JsonDict], loaders: Sequence[str]
) -> dict[str, str]:
    """All that a table can say of a row."""
    lost = [f"`{name}`" for name in row.get("lost", ())]
    unused = [f"`{name}`" for name in row.get("unused", ())]
    shown = lost[:_SHOWN] + ([f"and {len(lost) - _SHOWN} kinds more"] if lost[_SHOWN:] else [])
    if not lost:
        shown = ["in the file, in no parameter:", *unused[:_SHOWN]]
    later = mended(row, rows) if row["loaded_by"] else ""
    return {
        "model": row["name"],
        "saved by": row["saved_by"],
        "loaded by": ranges(row["loaded_by"], loaders),
        "lost": ", ".join(shown),
        "loader says": row.get("told", ""),
        "fixed in": later,
        "equal again in": later,
        "difference": f"{row['difference']:.0e}",
        "error": f"`{row.get('error', '').translate(_PLAIN)}`",
        "thread": ", ".join(f"[{one}]({url})" for one, url in _threads(package, row)),
    }


def _threads(package: str, row: JsonDict) -> Iterator[tuple[str, str]]:
    """Public threads of a loss: their titles, short, and addresses."""
    for one in THREADS.get((package, row["name"]), ()):
        owner, _, number = one.partition("#")
        yield f"{owner.partition('/')[2]} {number}", f"https://github.com/{owner}/issues/{number}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return table(header, rows).replace("---:", "---")


def write_page(found: Mapping[str, JsonDict]) -> None:
    """Put the tables of results into the page, after what people wrote."""
    before, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    sections = "\n\n".join(as_markdown(package, one) for package, one in found.items())
    PAGE.write_text(f"{before}{mark}\n\n{sections}\n", encoding="utf-8")


def as_json(found: Mapping[str, JsonDict]) -> str:
    """Results, a row to a line, so that a change is read easily."""
    text = json.dumps({name: one | {"rows": []} for name, one in found.items()}, indent=1)
    for one in found.values():
        rows = ",\n".join(f"   {json.dumps(row)}" for row in one["rows"])
        text = text.replace('"rows": []', f'"rows": [\n{rows}\n  ]', 1)
    return f"{text}\n"


def unknown(known: Mapping[str, JsonDict], found: Mapping[str, JsonDict]) -> Iterator[str]:
    """Losses that the results before have not."""
    for package, one in found.items():
        before = known.get(package, {"rows": []})["rows"]
        had = {(row["name"], *row.get("lost", ())) for row in before if row["kind"] == "lost"}
        for row in one["rows"]:
            if row["kind"] == "lost" and (row["name"], *row.get("lost", ())) not in had:
                releases = ranges(row["loaded_by"], one["loaders"])
                yield f"{package} {releases}, {row['name']}: {', '.join(row.get('lost', ()))}"


def main() -> None:
    options = _options()
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if options.page:
        write_page(known)
        return
    found: dict[str, JsonDict] = {}
    with tempfile.TemporaryDirectory() as temporary:
        cache = options.cache or Path(temporary)
        for package in options.packages:
            found[package] = looked(package, options, cache)
            print(as_markdown(package, found[package]), flush=True)
    fresh = [*unknown(known, found)]
    if not (options.classes or options.releases):
        RESULTS.write_text(as_json(known | found), encoding="utf-8")
        write_page(known | found)
    if fresh:
        raise SystemExit("\n".join(["", "Not in benchmarks/lost.json:", *fresh]))


def looked(package: str, options: Namespace, cache: Path) -> JsonDict:
    """All results of a package."""
    today = datetime.now(UTC).date()
    savers, loaders = chosen(package, published(package), today)
    loaders = options.releases or loaders
    names = [name for name in NAMES[package] if name in (options.classes or NAMES[package])]
    return {
        "date": str(today),
        "with": f"Python {platform.python_version()}, torch {version('torch')}",
        "savers": savers,
        "loaders": loaders,
        "classes": names,
        "rows": as_rows(followed(package, names, savers, loaders, cache)),
    }


def _options() -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks.lost", description=__doc__)
    every = {name for package in NAMES.values() for name in package}
    parser.add_argument("--packages", nargs="+", choices=[*NAMES], default=[*NAMES])
    parser.add_argument("--classes", nargs="+", metavar="NAME", help="of benchmarks.lost_models")
    parser.add_argument("--releases", nargs="+", metavar="R", help="that load, of one package")
    parser.add_argument("--cache", type=Path, help="a folder that keeps releases for the next run")
    parser.add_argument("--page", action="store_true", help="only write the page's tables again")
    options = parser.parse_args()
    if strange := {*(options.classes or ())} - every:
        parser.error(f"{', '.join(sorted(strange))}: choose of {', '.join(sorted(every))}")
    if options.releases and len(options.packages) > 1:
        options.packages = ["transformers"]
    return options


if __name__ == "__main__":
    main()
