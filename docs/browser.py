"""What the page "Inspect in the browser" asks of the package, in a folder that has the files.

`docs/pages/inspect/worker.js` runs it in Pyodide. Neither it nor what it imports needs more than
the standard library. Answers are JSON, whose text any page can show.
"""

import functools
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vitconvert.checkpoint import ReadOptions, read_checkpoint
from vitconvert.conversion.target import describe, ecosystems_that_hold, suggested_target
from vitconvert.documents import JsonDict
from vitconvert.errors import (
    MissingPackage,
    SourceError,
    VitConvertError,
    printable,
)
from vitconvert.formats import weights_in
from vitconvert.inspection import inspect_located
from vitconvert.sources.choosing import wanted_files
from vitconvert.sources.located import Located, files_beside, locate_path
from vitconvert.sources.references import HubRepo, parse_reference
from vitconvert.tables.dialects import builtin_tables

_AT_HOME = "A browser has no such package: this file is read on your own machine, by the command."


def _told(asked: Callable[..., JsonDict]) -> Callable[..., str]:
    """The answer as JSON; what goes wrong is an answer, in the words of the command line."""

    @functools.wraps(asked)
    def told(*arguments: str) -> str:
        try:
            return json.dumps(_shown(asked(*arguments)), default=str)
        except VitConvertError as error:
            return json.dumps({"problem": _problem(error)})
        except OSError as error:  # a server refuses in the midst of a file
            text = f"error: error\n  The file cannot be read: {error.strerror}."
            return json.dumps({"problem": {"code": "", "text": text, "note": ""}})

    return told


@_told
def listing(reference: str) -> JsonDict:
    """Where a Hub describes a repository, below its own address."""
    hub = _repository(reference)
    at = f"/revision/{hub.revision.replace('/', '%2F')}" if hub.revision else ""
    return {"address": f"api/models/{hub.repo}{at}?blobs=true"}


@_told
def published(reference: str, described: str) -> JsonDict:
    """The files of a repository as a Hub describes it, and where they lie below its address."""
    repo = _repository(reference).repo
    commit, sizes = _listed(described)
    return {"address": f"{repo}/resolve/{commit}/", "sizes": {n: s for n, s in sizes.items() if s}}


@_told
def header(folder: str, reference: str, described: str, answers: str) -> JsonDict:
    """What the header says of dropped files; or of a repository, as `published` lists it.

    Args:
        folder: Where the files are.
        reference: The repository, or "".
        described: What the Hub says of it.
        answers: What was asked and is answered, as JSON: field -> value.
    """
    located, options = _read(folder, reference, described, answers)
    found = inspect_located(located, options)
    table = builtin_tables().get(found.dialect or "")
    return {
        "source": located.reference,
        "title": table.title if table else "",
        "format": ".".join([found.format, *found.wrapper]),
        "count": len(found.tensors),
        "parameters": found.parameters,
        "bytes": found.nbytes,
        "dialect": found.dialect,
        "written_by": found.written_by,
        "opened_by": found.opened_by if found.facts else (),
        "tower": str(found.tower) if found.tower else "",
        "config": {name: [_value(fact.value), fact.origin] for name, fact in found.told.items()},
        "missing": found.missing,
        "ignored": found.ignored,
        "notes": found.notes,
        "tree": found.tree(),
        "problem": _problem(found.problem) if found.problem else None,
        "command": _command("inspect", located, options),
    }


@_told
def targets(folder: str, reference: str, described: str, answers: str) -> JsonDict:
    """Which ecosystems hold the model as it is, and the command that converts to one."""
    located, options = _read(folder, reference, described, answers)
    checkpoint = read_checkpoint(located, options)
    model = describe(checkpoint)
    to, steps, hint = suggested_target(model)
    command = _command("convert", located, options, to, steps)
    return {"targets": ecosystems_that_hold(model), "hint": hint, "command": command}


def _read(folder: str, reference: str, described: str, answers: str) -> tuple[Located, ReadOptions]:
    os.chdir(folder)  # so that messages name a file as its user does
    options = ReadOptions(overrides=json.loads(answers) or None)
    if not reference:
        files = list(Path().iterdir())
        path = files[0] if len(files) == 1 else weights_in(Path())
        return locate_path(path.name, path), options
    hub = _repository(reference)
    commit, sizes = _listed(described)
    weights = Path(wanted_files(hub.repo, hub.file, sizes)[0])
    beside = files_beside(weights.parent)
    where = {"repo": hub.repo, "revision": commit}
    return Located(reference=_typed(reference), weights=weights, **where, **beside), options


def _listed(described: str) -> tuple[str, dict[str, int | None]]:
    """The commit that a Hub describes, and the size of each of its files."""
    answer = json.loads(described)
    try:
        return answer["sha"], {f["rfilename"]: f.get("size") for f in answer["siblings"]}
    except (KeyError, TypeError) as error:
        raise SourceError("The server does not describe the repository as a Hub.") from error


def _repository(reference: str) -> HubRepo:
    hub = parse_reference(_typed(reference))
    if not isinstance(hub, HubRepo):
        raise SourceError("This is no repository of the Hub.", hint="ORG/REPO, as in its address.")
    return hub


def _typed(reference: str) -> str:
    return reference if ":" in reference else f"hf:{reference}"


def _command(
    verb: str, located: Located, options: ReadOptions, to: str = "", steps: Sequence[str] = ()
) -> str:
    settings = [f"{name}={value}" for name, value in (options.overrides or {}).items()]
    place = f"./{located.reference}" if located.reference[:1] == "-" else located.reference
    target = ["--to", to] if to else []
    allowed = [word for step in steps for word in ("--allow", step)]
    answers = [word for setting in settings for word in ("--set", setting)]
    return shlex.join(["vitconvert", verb, place, *target, *allowed, *answers])


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _problem(error: VitConvertError) -> JsonDict:
    missing = isinstance(error, MissingPackage)
    return {"code": error.code, "text": str(error), "note": _AT_HOME if missing else ""}


def _shown(value: object) -> object:
    """The same, with all text printable but that of messages, which is so."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {
            printable(str(key)): each if key == "problem" else _shown(each)
            for key, each in value.items()
        }
    return [_shown(each) for each in value] if isinstance(value, list | tuple) else value
