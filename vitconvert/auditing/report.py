"""What an audit found, as one screen."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vitconvert.auditing.held import title_of
from vitconvert.auditing.names import grouped, heads_of, template
from vitconvert.wrappers import is_averaged

if TYPE_CHECKING:
    from vitconvert.auditing.audit import LoadAudit

_KINDS = 6  # lines of one kind of loss
_CAUSES = 3  # kinds of loss that say their cause
_QUOTED = 3  # lines of what a loader said
_LONGEST = 160  # characters of such a line
# What loaders print of names that do not match (transformers 4 and 5, timm, torch).
_ADMITTED = re.compile(
    r"newly initialized: |not initialized from|not used when|\| (MISSING|UNEXPECTED|MISMATCH) "
    r"|missing_keys|Missing key|Unexpected key|size mismatch"
)


def counts(audit: "LoadAudit") -> str:
    """How many parameters hold the file's numbers."""
    lost = {*audit.untouched, *audit.misplaced, *audit.unexplained}
    held = audit.count - len(lost | {*audit.undecidable})
    share = f"{held} of {audit.count} parameters hold the file's numbers"
    if same := len(audit.undecidable):
        share += f", {same} undecidable (too few numbers, or all the same)"
    if audit.allowed:
        share += f", {len(audit.allowed)} allowed to be new"
    return share if audit.complete else f"{share}: NOT COMPLETE"


def report_lines(audit: "LoadAudit", *, verbose: bool = False) -> Iterator[str]:
    """The screen, line by line; three lines if all is well, and all lines if it is verbose."""
    by = f", by {audit.by}" if audit.by else ""
    yield f"{audit.source.title} -> {title_of(audit.model)}{by}"
    yield counts(audit)
    for answer in audit.answers if verbose or not audit.complete else ():
        yield f"  {answer}"
    for note in audit.notes:
        yield f"note: {note}"
    most = None if verbose else _KINDS
    for loss in audit.losses:
        yield from _listed(f"{loss.title}: {len(loss.parameters)}", loss.parameters, most)
    yield from _listed_if(verbose, "allowed to be new", dict.fromkeys(audit.allowed, ""))
    yield from _listed_if(
        verbose,
        "undecidable: too few numbers, or all the same",
        dict.fromkeys(audit.undecidable, ""),
    )
    yield from _of_changes(audit, most)
    yield from _of_unused(audit, most)
    if not audit.complete:
        yield from _of_causes(audit, None if verbose else _QUOTED)
    if verbose and audit.said:
        yield "the loader printed:"
        yield from (f"  {line}" for line in audit.said)


def _of_changes(audit: "LoadAudit", most: int | None) -> Iterator[str]:
    """What the code did on the way, in a line if all is well."""
    lost = {*audit.unexplained, *audit.misplaced}
    changed = {name: how for name, how in audit.changed.items() if name not in lost}
    ways = list(dict.fromkeys(template(how) for how in changed.values()))
    if most is not None and len(ways) == 1:
        yield f"changed on the way: {len(changed)}, {next(iter(changed.values()))}"
    elif most is not None and audit.complete and changed:
        yield f"changed on the way, as loaders do: {len(changed)} (-v lists them)"
    else:
        yield from _listed(f"changed on the way: {len(changed)}", changed, most)


def _of_unused(audit: "LoadAudit", most: int | None) -> Iterator[str]:
    """What of the file is in no parameter; "nothing" where it is, if no other line is third."""
    told = {tensor for loss in audit.losses for tensor in loss.tensors}
    unused = [name for name in audit.unused if name not in told]
    groups = _by_head(audit, unused)
    if not unused:
        if not audit.unused and not audit.changed:
            yield "in the file, in no parameter: nothing"
        return
    if most is not None and audit.complete:
        names = ", ".join(grouped(groups))
        more = "" if len(names) <= _LONGEST else "... (-v lists all)"
        yield f"in the file, in no parameter: {len(unused)}, {names[:_LONGEST]}{more}"
    else:
        yield from _listed(f"in the file, in no parameter: {len(unused)}", groups, most)
    for head in groups:
        words = head.removesuffix(".*").split(".")
        if head.endswith(".*") and any(map(is_averaged, words)) and audit.complete:
            yield f"note: {head} are averaged weights, which are evaluated mostly: others landed"


def _of_causes(audit: "LoadAudit", most: int | None) -> Iterator[str]:
    for loss in audit.losses[:_CAUSES]:
        yield f"likely cause: {loss.cause}"
        yield f"what to do:   {loss.remedy}"
    if not audit.losses:
        yield "likely cause: the file is of another model: nothing of it is in a parameter"
    if audit.by:
        told = admitted(audit.said)
        if not told:
            yield "the loader said nothing of this"
        yield from (f"the loader said: {line}" for line in told[:most])
        if most is not None and len(told) > most:
            yield f"({len(told) - most} more lines of the loader: -v lists them)"


def admitted(said: Sequence[str]) -> list[str]:
    """What a loader printed of names that do not match, in lines of a bearable length."""
    told = [" ".join(line.split()) for line in said if _ADMITTED.search(line)]
    # Of a table, whose rows are in no order, what is missing comes first.
    told.sort(key=lambda line: ("|" in line, "UNEXPECTED" in line, line if "|" in line else ""))
    return [f"{line[:_LONGEST]}{'...' if len(line) > _LONGEST else ''}" for line in told]


def _by_head(audit: "LoadAudit", unused: Sequence[str]) -> Mapping[str, str]:
    """Tensors that landed nowhere; those of one beginning together, where there are many."""
    of_head: dict[str, list[str]] = {}
    names = audit.source.names
    for head in sorted(heads_of(names), key=len)[1:]:
        idle = [name for name in unused if name.startswith(head)]
        landed = any(name.startswith(head) for name in audit.landed)
        if len(idle) > _KINDS and not landed and not any(head.startswith(h) for h in of_head):
            of_head[head] = idle
    alone = [n for n in unused if not any(n.startswith(h) for h in of_head)]
    groups = {f"{head}*": f"all {len(names)}" for head, names in of_head.items()}
    return groups | dict.fromkeys(alone, "")


def _listed_if(verbose: bool, title: str, lines: Mapping[str, str]) -> Iterator[str]:
    if verbose:
        yield from _listed(f"{title}: {len(lines)}", lines, None)


def _listed(title: str, lines: Mapping[str, str], most: int | None) -> Iterator[str]:
    """A title and its lines, those of all blocks as one; none without lines."""
    if not lines:
        return
    yield title
    shown = list(grouped(lines))
    yield from (f"  {line}" for line in shown[:most])
    if most is not None and len(shown) > most:
        yield f"  and {len(shown) - most} more kinds (-v lists all)"
