"""What a project's own `config.json` says, in our words.

Which of their keys says what is the table's business (`[config_json]`); nothing here knows a
project by name.
"""

from collections.abc import Collection, Mapping
from typing import Any

from vitconvert.config import VOCABULARIES
from vitconvert.errors import NotRepresentable, UsageError
from vitconvert.fields import parse_field
from vitconvert.tables.table import ConfigFile, Table

Facts = dict[str, tuple[Any, str]]  # field -> (value, origin)


def facts_from_config(
    table: Table, their_config: Mapping[str, Any], *, known: Collection[str] = ()
) -> Facts:
    """Read the fields that the table maps, but for those that are known better.

    Raises:
        NotRepresentable: A value says something that ViTConfig has no word for.
    """
    mapping = table.config_file
    if mapping is None or not their_config:
        return {}
    facts: Facts = {}
    for field, default in _defaults(mapping, their_config).items():
        facts[field] = (default, f"{table.file}, for a config.json that does not say")
    for field, paths in mapping.fields.items():
        said = ((p, v) for p in paths if (v := look_up(their_config, p)) is not None)
        path, found = next(said, ("", None))
        if found == "" and "" not in mapping.values.get(field, {}):
            continue  # nothing said
        if found is not None and field not in known:
            facts[field] = (_translate(table, mapping, field, path, found), "config.json")
    return facts


def _defaults(mapping: ConfigFile, their_config: Mapping[str, Any]) -> dict[str, Any]:
    defaults = dict(mapping.defaults)
    for key in mapping.identify:
        defaults |= mapping.defaults_of.get(str(their_config.get(key)), {})
    return defaults


def look_up(config: Mapping[str, Any], path: str) -> Any:
    """What stands at a dotted path, or None."""
    value: Any = config
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _translate(table: Table, mapping: ConfigFile, field: str, path: str, value: Any) -> Any:
    words = mapping.values.get(field, {})
    ours = value
    if isinstance(value, str | bool):
        ours = words.get(value if isinstance(value, str) else str(value).lower(), value)
    if field == "in_channels" and isinstance(value, list) and len(value) == 3:
        ours = value[0]  # channels, height, width
    try:
        ours = parse_field(field, ours)
        known = VOCABULARIES.get(field, (ours,))
        problem = "" if ours in known else f"{field} is one of {', '.join(known)}"
    except UsageError as error:
        problem = error.fact
    if not problem:
        return ours
    raise NotRepresentable(
        f"config.json says {path} = {value!r}, which vitconvert has no word for.",
        evidence={"table": table.file, "problem": problem},
        hint=f"--set {field}=... states it in vitconvert's words.",
    )


def broken_musts(table: Table, their_config: Mapping[str, Any]) -> list[str]:
    """What the project's config would have to say for the table to be right, and does not."""
    must = table.config_file.must if table.config_file and their_config else {}
    return [
        f"{path} = {value}" for path, value in must.items() if look_up(their_config, path) != value
    ]


def unknown_arguments(table: Table, their_config: Mapping[str, Any]) -> list[str]:
    """Arguments of the project's constructor that the table neither maps nor calls inert."""
    mapping = table.config_file
    if mapping is None or not mapping.arguments:
        return []
    arguments = look_up(their_config, mapping.arguments)
    if not isinstance(arguments, Mapping):
        return []
    paths = {path for paths in mapping.fields.values() for path in paths}
    known = {p.removeprefix(f"{mapping.arguments}.") for p in paths} | set(mapping.inert)
    return sorted(set(arguments) - known)
