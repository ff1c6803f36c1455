"""`vitconvert list [GLOB]`."""

from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import reporting_options
from vitconvert.cli.report import print_json, tell

if TYPE_CHECKING:
    from vitconvert.tables.table import Table


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    @click.command(name, help=help_text)
    @click.argument("pattern", default="*", metavar="[GLOB]")
    @reporting_options
    def list_(pattern: str, **options: Any) -> int:
        from vitconvert.tables.architectures import architectures
        from vitconvert.tables.dialects import builtin_tables

        tables = {n: t for n, t in builtin_tables().items() if fnmatch(n, pattern)}
        listed = {
            section: [name for name in rows if fnmatch(name, pattern)]
            for section, rows in architectures().items()
        }
        if options["as_json"]:
            dialects = {n: _described(t) for n, t in tables.items()}
            print_json({"ok": True, "dialects": dialects, "architectures": listed})
            return 0
        if options["quiet"]:
            for found in [*tables, *(n for names in listed.values() for n in names)]:
                tell(found)
            return 0
        for dialect, table in tables.items():
            texts = "; a text tower goes along" if table.text_towers else ""
            tell(f"{dialect:<26} {table.ecosystem:<12} {table.title}{texts}")
        for section, names in listed.items():
            for architecture in names:
                tell(f"{architecture:<50} architecture of {section}")
        return 0

    return list_


def _described(table: "Table") -> dict[str, Any]:
    towers = [tower.name for tower in table.text_towers]
    return {"title": table.title, "ecosystem": table.ecosystem, "text_towers": towers}
