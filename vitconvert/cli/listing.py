"""`vitconvert list [GLOB]`."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch

from vitconvert.cli.options import Reporting, argument


@dataclass(kw_only=True)
class List(Reporting):
    """Lists what vitconvert knows by name."""

    pattern: str = argument("[GLOB]", required=False, default="*")

    def run(self) -> int:
        from vitconvert.tables.architectures import architectures
        from vitconvert.tables.dialects import builtin_tables

        tables = {n: t for n, t in builtin_tables().items() if fnmatch(n, self.pattern)}
        listed = {
            section: [name for name in rows if fnmatch(name, self.pattern)]
            for section, rows in architectures().items()
        }

        def lines() -> Iterator[str]:
            for dialect, table in tables.items():
                texts = "; a text tower goes along" if table.text_towers else ""
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
            long=lines,
        )
        return 0
