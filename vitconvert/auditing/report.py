"""What an audit found, as one screen."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vitconvert.auditing.held import title_of
from vitconvert.auditing.names import heads_of

if TYPE_CHECKING:
    from vitconvert.auditing.audit import LoadAudit

_SHOWN = 8  # lines of one kind


def counts(audit: "LoadAudit") -> str:
    """How many parameters hold what the file has for them."""
    bad = {*audit.untouched, *audit.misplaced, *audit.unexplained, *audit.undecidable}
    held = audit.count - len(bad)
    share = f"{held} of {audit.count} parameters hold what the file has for them"
    return share if audit.complete else f"{share}: NOT COMPLETE"


def report_lines(audit: "LoadAudit") -> Iterator[str]:
    """The screen, line by line."""
    yield f"{audit.source.title} -> {title_of(audit.model)}"
    yield counts(audit)
    for answer in audit.answers:
        yield f"  {answer}"
    explained = {p: how for p, how in audit.changed.items() if p not in audit.unexplained}
    unexplained = {p: audit.changed[p] for p in audit.unexplained}
    yield from _listed("untouched (as initialised)", audit.missing)
    yield from _listed("misplaced", audit.misplaced)
    yield from _listed("changed in no way that is known", unexplained)
    yield from _listed("changed on the way", explained)
    yield from _listed("undecidable (every number the same)", dict.fromkeys(audit.undecidable, ""))
    yield from _listed("of the file, in no parameter", _unused_by_head(audit))


def _unused_by_head(audit: "LoadAudit") -> Mapping[str, str]:
    """Tensors that landed nowhere; those of one beginning together, where there are many."""
    of_head: dict[str, list[str]] = {}
    names = audit.source.names
    for head in sorted(heads_of(names), key=len)[1:]:
        mine = [name for name in names if name.startswith(head)]
        idle = [name for name in audit.unused if name.startswith(head)]
        if len(idle) == len(mine) > _SHOWN and not any(head.startswith(h) for h in of_head):
            of_head[head] = idle
    alone = [n for n in audit.unused if not any(n.startswith(h) for h in of_head)]
    groups = {f"{head}*": f"all {len(names)}" for head, names in of_head.items()}
    return groups | dict.fromkeys(alone, "")


def _listed(title: str, lines: Mapping[str, str]) -> Iterator[str]:
    """A title and its lines: those that differ in numbers alone are one."""
    if not lines:
        return
    yield f"{title}: {len(lines)}"
    alike: dict[tuple[str, str], list[str]] = {}
    for name, text in lines.items():
        key = re.sub(r"\d+", "#", name), re.sub(r"\d+", "#", text)
        alike.setdefault(key, []).append(name)
    for names in list(alike.values())[:_SHOWN]:
        text = f": {lines[names[0]]}" if lines[names[0]] else ""
        times = f"  (and {len(names) - 1} like it)" if len(names) > 1 else ""
        yield f"  {names[0]}{text}{times}"
    if len(alike) > _SHOWN:
        yield f"  and {len(alike) - _SHOWN} other kinds"
