"""Double entry: every tensor of the file used once or ignored for a reason, every tensor of the
model written once, all shapes closed. From headers alone, and all problems in one message."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TypedDict

from vitconvert.config import Config, ViTConfig
from vitconvert.errors import NotRepresentable, ShapeMismatch, TensorMismatch, nearest, printable
from vitconvert.facts.fact import is_assumed, show
from vitconvert.facts.plan import plan_writing
from vitconvert.tables.axes import Axes, Shape
from vitconvert.tables.binding import NO_ELEMENTS, Binding, Link, bind
from vitconvert.tables.canonical import expected_tensors
from vitconvert.tables.detection import NO_TABLE, without_elements
from vitconvert.tables.names import runs
from vitconvert.tables.others import instead_of
from vitconvert.tables.templates import numbers_of


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The report of tensors of a checkpoint: `read` is `used` plus `carried` plus `ignored`."""

    dialect: str
    read: int  # tensors in the file
    used: tuple[str, ...]  # their names, each of which went into the model
    carried: tuple[str, ...] = ()  # the text encoder's, which went into the output beside the model
    ignored: Mapping[str, str] = field(default_factory=dict)  # name -> reason
    assumed: Mapping[str, str] = field(default_factory=dict)  # field -> "value (from where)"
    notes: tuple[str, ...] = ()  # where a config file and the tensors differ, and the like
    changed: tuple[str, ...] = ()  # changes that were asked for, in order
    measured: tuple[Mapping[str, object], ...] = ()  # what lossy steps did to the outputs

    def __repr__(self) -> str:
        return (
            f"Ledger(dialect={self.dialect!r}, read={self.read}, used={len(self.used)}, "
            f"ignored={len(self.ignored)})"
        )

    def __str__(self) -> str:
        """What became of every tensor, and what was assumed and changed; a line for all blocks."""
        lines = [f"{'dialect':<9} {self.dialect}", f"{'tensors':<9} {self.counts}"]
        lines += _rows("used", self.used)
        lines += _rows("carried", self.carried)
        lines += _rows("ignored", (f"{name}: {why}" for name, why in self.ignored.items()))
        lines += _rows("assumed", (f"{field} = {said}" for field, said in self.assumed.items()))
        lines += _rows("changed", self.changed)
        lines += _rows("note", self.notes)
        return "\n".join(lines)

    @property
    def counts(self) -> str:
        """Counts of tensors: read, used, carried and ignored."""
        carried = f"{len(self.carried)} carried, " if self.carried else ""
        used, ignored = len(self.used), len(self.ignored)
        return f"{self.read} read, {used} used, {carried}{ignored} ignored"

    def with_carried(self, names: Iterable[str]) -> "Ledger":
        """The report with tensors that play no part in the model, and were written too."""
        carried = tuple(names)
        left = {name: why for name, why in self.ignored.items() if name not in carried}
        return replace(self, carried=carried, ignored=left)

    def with_changes(self, changes: Iterable[str]) -> "Ledger":
        """The report after further changes."""
        return replace(self, changed=(*self.changed, *changes))

    def with_notes(self, notes: Iterable[str]) -> "Ledger":
        """The report with further notes, but for empty ones."""
        return replace(self, notes=(*self.notes, *filter(None, notes)))

    @property
    def dequantised(self) -> bool:
        """Whether weights were computed that quantised ones stand for."""
        return any(change.startswith(DEQUANTISED) for change in self.changed)

    def to_dict(self) -> dict[str, object]:
        """For `vitconvert.json` and `--json`."""
        return {
            "dialect": self.dialect,
            "read": self.read,
            "used": len(self.used),
            "carried": len(self.carried),
            "ignored": dict(self.ignored),
            "assumed": dict(self.assumed),
            "notes": list(self.notes),
            "changed": list(self.changed),
            "measured": [dict(effect) for effect in self.measured],
        }


def _rows(title: str, texts: Iterable[str]) -> Iterator[str]:
    """A line for each text, with a title; those that differ in a number that counts are one."""
    for text, count in runs(map(printable, texts)):
        yield f"{title:<9} {text}{f'  x {count}' if count > 1 else ''}"


DEQUANTISED = "dequantised"  # how the sentence on such a change begins
_FLOATS = ("float", "bfloat")
_SHOWN = 12  # problems of one kind; a file of another model has hundreds
_WITHOUT_ROWS = "--ignore PATTERN leaves them out if the ViT does not use them; so does --table."
_MOST_RENAMED = 1000  # tensors left over that are compared by name
_SIZES = "the tensors belong to models of different sizes: save the model again, all from one."


class _Told(TypedDict):
    """The arguments of an error on tensors, but for the fact."""

    evidence: Mapping[str, object]
    details: list[str]
    meaning: str | None
    hint: str


def check_accounts(
    binding: Binding, config: Config, file: str, called: Mapping[str, str] | None = None
) -> None:
    """Prove that the plan uses and writes everything exactly once.

    Args:
        binding: A table laid over a checkpoint's header.
        config: The model.
        file: What messages call the checkpoint.
        called: What the file calls a tensor, where the binding has a part of its name.

    Raises:
        ShapeMismatch: Tensors contradict the axes of their rows, and nothing else is wrong.
        TensorMismatch: Tensors are missing, left over, doubled or misshapen.
    """
    renamed = _renamed(binding, config)
    known = called or {}
    problems = {
        "renamed?": [_renaming(name, key, known) for name, key in renamed.items()],
        "missing": [] if renamed else list(_missing(binding, config)),
        "left over": list(_left_over(binding, config, known, renamed.values())),
        "doubled": list(_doubled(binding)),
        "misshapen": list(_misshapen(binding, config)),
    }
    found = {kind: lines for kind, lines in problems.items() if lines}
    if not found:
        return
    _check_elements(binding, found)
    # Whoever catches ShapeMismatch resizes: with anything else wrong, that would not help.
    kind_of_error = ShapeMismatch if list(found) == ["misshapen"] else TensorMismatch
    count = sum(map(len, found.values()))
    raise kind_of_error(
        f"{count} tensor{'s' if count > 1 else ''} of the file "
        f"{'do' if count > 1 else 'does'} not fit a model of {config.depth} blocks of width "
        f"{config.embed_dim}.",
        **_told(binding, found, file, known, config),
    )


def check_explained(binding: Binding, file: str, called: Mapping[str, str] | None = None) -> None:
    """Prove that an answer to a question may be all that lacks: the table places every tensor.

    The arguments are those of `check_accounts`.

    Raises:
        TensorMismatch: Tensors are left over, in parts, doubled or laid out otherwise, or the
            dialect requires some that are missing.
    """
    problems = {
        "missing": [
            *(_required(binding, group) for group in binding.missed),
            *(f"{', '.join(keys)}  part of {name}" for name, keys in binding.partial.items()),
        ],
        "left over": list(_unexplained(binding, called or {})),
        "doubled": list(_doubled(binding)),
        "misshapen": list(_misfits(binding)),
    }
    found = {kind: lines for kind, lines in problems.items() if lines}
    if not found:
        return
    _check_elements(binding, found)
    if list(found) == ["missing"]:
        fact = "The file lacks tensors that its dialect requires."
    else:
        fact = f"The dialect has a place for {binding.explained} of {len(binding.shapes)} tensors."
    raise TensorMismatch(fact, **_told(binding, found, file, called or {}))


def _check_elements(binding: Binding, found: Mapping[str, list[str]]) -> None:
    """Refuse weights without elements by their own name."""
    empty = [key for key in binding.shapes if key in binding.names.empty]
    wanted = {
        line.split("  ")[0] for kind in ("missing", "misshapen") for line in found.get(kind, ())
    }
    if len(empty) > 1 and (wanted & set(empty) or "missing" in found):
        raise without_elements(empty, len(binding.shapes))


def _told(
    binding: Binding,
    found: Mapping[str, list[str]],
    file: str,
    called: Mapping[str, str],
    config: Config | None = None,
) -> _Told:
    """What is wrong with tensors, and what to do, as an error takes it."""
    dialect = f"{binding.table.name} ({binding.table.file})"
    meaning = None
    if not binding.table.builtin and "left over" in found:
        hint = f"give what is left over rows in {binding.table.file}, or entries in its [ignore]."
    elif any("lora" in line.lower() for line in found.get("left over", ())):
        hint = f"matrices of LoRA are left over, which are not merged: {instead_of('LoRA')}"
    elif "renamed?" in found:
        hint = "rename them back."
        if binding.table.ecosystem == "hf":  # of others, an audit has to be told the class
            audit = "`vitconvert audit FILE --by transformers`"
            hint = f"rename them back; {audit} tells what it makes of the file as it is."
    elif "missing" not in found:
        hint = _WITHOUT_ROWS if "left over" in found else _SIZES
        if list(found) == ["doubled"]:
            hint = "--ignore PATTERN leaves out one of each two."
        elif list(found) == ["misshapen"] and len(found["misshapen"]) == 1:
            for link in binding.links.get("head.weight", ()):
                if link.theirs and found["misshapen"][0].startswith(f"{link.theirs}  "):
                    hint = _hint_on_head(binding, link, called, config)
    elif len(found) == 1:
        meaning = "The file is complete, but was saved without these tensors."
        hint = (
            "save the model again with them. If it never had them, a table (--table) that extends "
            f"{binding.table.name} says so."
        )
    else:
        meaning = (
            "The file is complete. It holds another model than those of this dialect, or other "
            "names."
        )
        hint = f"{NO_TABLE.rstrip('.')}, of which --dialect NAME takes another one."
    return {
        "evidence": {"file": file, "dialect": dialect},
        "details": [line for kind, lines in found.items() for line in _listed(kind, lines)],
        "meaning": meaning,
        "hint": hint,
    }


def _hint_on_head(
    binding: Binding, link: Link, called: Mapping[str, str], config: Config | None
) -> str:
    """What to do about a head that reads another width than the model's features have."""
    key = called.get(str(link.theirs), str(link.theirs))
    leave = f"--ignore '{key.removesuffix(_end(key))}*' leaves it out"
    if isinstance(config, ViTConfig) and config.pooling == "token_avg":
        halved = {**config.axes(), "feature": config.feature_dim // 2}
        if link.their_axes.takes(binding.shapes[str(link.theirs)], link.their_axes.shape(halved)):
            return (
                f"--set pooling=token, or avg, says what the head reads, if it is its own; {leave}."
            )
    return f"the head reads what this ViT does not compute, such as an ignored layer: {leave}, too."


def _renamed(binding: Binding, config: Config) -> dict[str, str]:
    """What the dialect calls each missing tensor -> the tensor left over that may be it.

    That has the same shape and numbers in its name, and no other one has them, or else the words in
    which the names differ are alike. {} unless all that is missing is found so.
    """
    missing = {name for name in expected_tensors(config) if name not in binding.links}
    # Of a table of the user's own, a row may be wrong.
    if not missing or not binding.table.builtin or not 0 < len(binding.unexplained) < _MOST_RENAMED:
        return {}
    wanted = _wanted(binding, config, missing)
    left = {key: (binding.shapes[key], numbers_of(key)) for key in binding.unexplained}
    if len(wanted) > len(left):
        return {}
    found: dict[str, str] = {}
    for name, kind in wanted.items():
        alike = [key for key in left if left[key] == kind]
        if len(alike) > 1 or [*wanted.values()].count(kind) > 1 or _end(*alike) != _end(name):
            alike = [key for key in alike if _is_near(name, key)]
        if len(alike) != 1:
            return {}
        found[name] = alike[0]
    back = {key: name for name, key in found.items()}
    after = bind(binding.table, {back.get(key, key): s for key, s in binding.shapes.items()})
    return found if len(back) == len(found) and missing <= after.links.keys() else {}


def _wanted(
    binding: Binding, config: Config, missing: Set[str]
) -> dict[str, tuple[Shape, list[str]]]:
    """Keys of which missing tensors are made -> the shape, and the numbers in the key."""
    try:
        plan = plan_writing(binding.table, config)
    except NotRepresentable:
        return {}
    sources = {a.target: {piece.source for piece in a.pieces} for a in plan.assemblies}
    # A file may have other words in front than are written: none for `vit.`.
    fronts = Counter(
        _fronts(key, link.theirs)
        for key, ours in sources.items()
        for name in ours - missing - {None}
        for link in binding.links.get(str(name), ())
        if link.theirs and _end(link.theirs) == _end(key)
    )
    written, there = max(fronts, key=lambda pair: fronts[pair], default=("", ""))
    wanted = {}
    for assembly in plan.assemblies:
        key = assembly.target
        if key.startswith(written):
            key = there + key.removeprefix(written)
        if sources[assembly.target] & missing and key not in binding.shapes:
            wanted[key] = (plan.shape(assembly), numbers_of(key))
    return wanted


def _fronts(name: str, other: str) -> tuple[str, str]:
    """What two names of the same end begin with."""
    words, others = (re.findall(r"[^./]*[./]?", one) for one in (name, other))
    while words and others and words[-1] == others[-1]:
        words.pop(), others.pop()
    return "".join(words), "".join(others)


def _end(name: str = "") -> str:
    return name[max(name.rfind("."), name.rfind("/")) + 1 :]


def _is_near(name: str, other: str) -> bool:
    """Whether the words in which two names differ are alike."""
    words, others = (re.split("[./]", one) for one in (name, other))
    pairs = zip(words, others, strict=False)
    return len(words) == len(others) and all(a == b or nearest(a, [b]) for a, b in pairs)


def _renaming(name: str, key: str, called: Mapping[str, str]) -> str:
    whole = called.get(key, key)
    return f"{whole} in the file, {whole.removesuffix(key)}{name} expected"


def _required(binding: Binding, group: tuple[str, ...]) -> str:
    return f"{' or '.join(group)}  every {binding.table.title} has it"


def check_float_dtypes(binding: Binding, dtypes: Mapping[str, str], file: str) -> None:
    """Prove that what becomes a weight is a number of the kind that a model computes with.

    Args:
        binding: A table laid over a checkpoint's header.
        dtypes: torch's name of each tensor's dtype, by the names of the header.
        file: What messages call the checkpoint.

    Raises:
        TensorMismatch: Weights are whole numbers, truth values or complex.
    """
    strange = {
        link.theirs: dtypes[link.theirs]
        for name, links in binding.links.items()
        if not name.endswith("num_batches_tracked")  # of batch norms, which count
        for link in links
        if link.theirs is not None and not dtypes[link.theirs].startswith(_FLOATS)
    }
    if strange:
        raise TensorMismatch(
            f"{len(strange)} of the weights {'are' if len(strange) > 1 else 'is'} not stored as "
            "floating-point numbers.",
            evidence={"file": file, "dialect": f"{binding.table.name} ({binding.table.file})"},
            details=_listed("found", [f"{key}  {dtype}" for key, dtype in strange.items()]),
            meaning="The numbers of a quantised checkpoint must be scaled, and the scales are "
            "unknown.",
            hint="convert the checkpoint that it was quantised from.",
        )


def open_ledger(
    binding: Binding,
    config: ViTConfig,
    notes: tuple[str, ...],
    wrappers_own: Mapping[str, str] | None = None,
) -> Ledger:
    """The accounts of a checkpoint whose plan was verified."""
    own = wrappers_own or {}
    empty = set(_empty_and_unwanted(binding, config))
    used = {link.theirs for links in binding.links.values() for link in links} - empty
    laid_out = [
        (link.theirs, link.their_axes) for links in binding.links.values() for link in links
    ]
    frames = (
        f"{key} reads {count} frames, and an image is the same frame {count} times: it was "
        "summed over them, in float64"
        for key, axes in dict.fromkeys(laid_out)
        for _, count in axes.frames
    )
    shared = (
        f"the first row of {key} was added to all others, in float64"
        for key, axes in dict.fromkeys(laid_out)
        if axes.shared
    )
    surplus = (
        f"{key} has {rows} rows, of which the first {taken} are used: {rows - taken} were cut"
        for key, rows, taken in _cut(laid_out, binding, config)
    )
    return Ledger(
        dialect=binding.table.name,
        read=len(binding.shapes) + len(own),
        used=tuple(key for key in binding.shapes if key in used),
        ignored={**binding.ignored, **dict.fromkeys(empty, NO_ELEMENTS), **own},
        assumed={
            field: f"{show(getattr(config, field))} ({origin})"
            for field, origin in config.origins.items()
            if is_assumed(origin) or origin.startswith(binding.table.origin)
        },
        notes=(*notes, *frames, *shared, *surplus),
    )


def _cut(
    laid_out: Iterable[tuple[str | None, Axes]], binding: Binding, config: ViTConfig
) -> Iterator[tuple[str, int, int]]:
    """Tensors of more rows than are used: how many these are, and how many are used."""
    for key, axes in dict.fromkeys(laid_out):
        if key is None:
            continue
        for place, axis in axes.surplus:
            rows, taken = binding.shapes[key][place], config.axes()[axis]
            if rows > taken:
                yield key, rows, taken


def _missing(binding: Binding, config: Config) -> Iterator[str]:
    for group in binding.missed:
        yield _required(binding, group)
    required = {name for group in binding.missed for name in group}
    for name in expected_tensors(config):
        if name in binding.partial:
            yield f"{', '.join(binding.partial[name])}  part of {name}"
        elif name not in binding.links and name not in required:
            row = _row_text(binding, name)
            yield f"{name}  {row}"
    for name, keys in binding.partial.items():
        if name not in expected_tensors(config):
            yield f"{', '.join(keys)}  part of {name}"


def _row_text(binding: Binding, name: str) -> str:
    for row in binding.table.rows:
        if row.tensor.name.match(name) is not None:
            return row.text
    return "the table has no row for it"


def _unexplained(
    binding: Binding, called: Mapping[str, str], renamed: Collection[str] = ()
) -> Iterator[str]:
    for key in binding.unexplained:
        if key in renamed:
            continue
        name, sizes = called.get(key, key), _sizes(binding.shapes[key])
        yield f"{name}  {sizes}, which no row of the table explains"


def _left_over(
    binding: Binding, config: Config, called: Mapping[str, str], renamed: Collection[str]
) -> Iterator[str]:
    yield from _unexplained(binding, called, renamed)
    expected, empty = expected_tensors(config), set(_empty_and_unwanted(binding, config))
    for name, links in binding.links.items():
        if name in expected:
            continue
        theirs = next(link.theirs for link in links if link.theirs is not None)
        if theirs not in empty:
            yield f"{called.get(theirs, theirs)}  the model has no {name}"


def _empty_and_unwanted(binding: Binding, config: Config) -> Iterator[str]:
    """Keys without elements, such as zero register tokens, that the model has no tensor for."""
    expected = expected_tensors(config)
    for name, links in binding.links.items():
        keys = [link.theirs for link in links if link.theirs is not None]
        if name not in expected and all(0 in binding.shapes[key] for key in keys):
            yield from keys


def _doubled(binding: Binding) -> Iterator[str]:
    for name, keys in binding.doubled.items():
        yield f"{name}  {' and '.join(keys)}"


def _misfits(binding: Binding) -> Iterator[str]:
    for key, row in binding.misfits.items():
        yield f"{key}  found {_sizes(binding.shapes[key])}, which is not laid out as in {row}"


def _misshapen(binding: Binding, config: Config) -> Iterator[str]:
    yield from _misfits(binding)
    sizes, seen = config.axes(), set()
    for links in binding.links.values():
        for link in links:
            if link.theirs is None or link.theirs in seen:
                continue
            seen.add(link.theirs)
            found, axes = binding.shapes[link.theirs], link.their_axes
            if not set(axes.names) <= sizes.keys():
                continue  # a tensor that is left over; its axes have no size
            if not axes.takes(found, axes.shape(sizes)):
                yield f"{link.theirs}  found {_sizes(found)}, wanted {_sizes(axes.shape(sizes))}"
    for key, constant in binding.guarded.items():
        found, wanted = binding.shapes[key], constant.axes.shape(sizes)
        if found != wanted:
            yield f"{key}  found {_sizes(found)}, wanted {_sizes(wanted)}"


def _sizes(shape: tuple[int, ...]) -> str:
    return f"[{' '.join(map(str, shape))}]"


def _listed(kind: str, lines: list[str]) -> list[str]:
    shown = [f"{kind:<10} {line}" for line in lines[:_SHOWN]]
    if len(lines) > _SHOWN:
        shown.append(f"{kind:<10} ... and {len(lines) - _SHOWN} more")
    return shown
