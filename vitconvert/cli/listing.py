"""`vitconvert list [GLOB]`."""

import itertools
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from vitconvert.cli.options import Reporting, argument
from vitconvert.errors import UsageError

if TYPE_CHECKING:
    from vitconvert.tables.table import Table

_WIDTH = 86  # letters of what is told of a library


@dataclass(kw_only=True)
class List(Reporting):
    """Lists what vitconvert knows by name; a name that nothing has is an error."""

    details = (
        " GLOB is a pattern of names, or a library, whose dialects are listed. Without it, "
        "libraries are listed."
    )

    pattern: str | None = argument("[GLOB]", required=False, default=None)

    def run(self) -> int:
        from vitconvert.tables.architectures import architectures
        from vitconvert.tables.dialects import builtin_tables, ecosystems, what_was_meant

        wanted = self.pattern or "*"
        tables = {
            name: table
            for name, table in builtin_tables().items()
            if fnmatch(name, wanted) or table.ecosystem == wanted
        }
        listed = {
            section: [name for name in rows if fnmatch(name, wanted)]
            for section, rows in architectures().items()
        }

        if not tables and not any(listed.values()):
            every = [*builtin_tables(), *ecosystems(), *itertools.chain(*architectures().values())]
            raise UsageError(
                f"There is no dialect or architecture called {wanted!r}.",
                **what_was_meant(wanted, every),
            )

        def lines() -> Iterator[str]:
            for dialect, table in tables.items():
                texts = "; the text encoder is converted too" if table.text_towers else ""
                yield f"{dialect:<26} {table.ecosystem:<12} {table.title}{texts}"
            for section, names in listed.items():
                for architecture in names:
                    yield f"{architecture:<50} architecture of {section}"

        dialects = {
            name: {
                "title": table.title,
                "ecosystem": table.ecosystem,
                "text_towers": [tower.name for tower in table.text_towers],
            }
            for name, table in tables.items()
        }
        self.report(
            lambda: {"dialects": dialects, "architectures": listed},
            short="\n".join([*tables, *(name for names in listed.values() for name in names)]),
            long=lines if self.pattern else lambda: _ecosystems(tables.values()),
        )
        return 0


def _ecosystems(tables: "Iterable[Table]") -> Iterator[str]:
    """A line for each, with its dialects, or the title of its only one."""
    titles: dict[str, dict[str, str]] = {}
    for table in tables:
        titles.setdefault(table.ecosystem, {})[table.name] = table.title
    for ecosystem, of in sorted(titles.items()):
        (title, *more) = of.values()
        about = f"{len(of)} dialects: {', '.join(of)}" if more else title
        yield f"{ecosystem:<12} {textwrap.shorten(about, _WIDTH, placeholder=' ...')}"
    yield "`vitconvert list LIBRARY` lists its dialects, `vitconvert list '*'` all names."
