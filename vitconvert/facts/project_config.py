"""A project's own `config.json` in our words, and ours in its words.

Which of their keys says what is the table's business (`[config_json]`); nothing here knows a
project by name.
"""

from collections.abc import Collection, Mapping
from typing import Any

from vitconvert.config import Config
from vitconvert.config.contradictions import MOST_BLOCKS
from vitconvert.config.field_values import parse_field
from vitconvert.errors import NotRepresentable, UsageError
from vitconvert.facts.fact import CONFIG, Fact, Facts, state
from vitconvert.tables.config_file import (
    ALL_BUT,
    AND,
    PIXELS,
    ConfigFile,
    Ratio,
    Word,
    look_up,
    placed,
)
from vitconvert.tables.table import Table


def facts_from_config(
    table: Table, their_config: Mapping[str, object], *, known: Collection[str] = ()
) -> Facts:
    """Read the fields that the table maps, but for those that are known better.

    Raises:
        NotRepresentable: A value says something that ViTConfig has no word for.
    """
    mapping = table.config_file
    if mapping is None or not their_config:
        return {}
    defaults = dict(mapping.defaults)
    for key in mapping.identify:
        defaults |= mapping.defaults_of.get(str(their_config.get(key)), {})
    silent = f"{table.origin}, for a config.json that does not say"
    facts = state(defaults, silent)
    # What stands elsewhere in the file is not of this model.
    there = (
        place
        for place in mapping.within
        if not place or look_up(their_config, place.removesuffix(".")) is not None
    )
    within = next(there, mapping.within[-1])
    for field, paths in mapping.fields.items():
        read = ((path, _said(mapping, their_config, within, path)) for path in paths)
        stated = ((placed(within, path), value) for path, value in read if value is not None)
        path, found = next(stated, ("", None))
        if _in_our_words(mapping, field, found) == "":
            continue  # nothing stated
        if found is not None and field not in known:
            facts[field] = Fact(_translate(table, mapping, field, path, found), CONFIG)
    return facts


def _said(
    mapping: ConfigFile, their_config: Mapping[str, object], within: str, path: str
) -> object:
    """The value at a path; of `all but PATH`, the blocks that are not listed there.

    Of `pixels of PATH`, the patches of that side, in whole squares of those that are merged; of
    `PATH and PATH`, both values.
    """
    if AND in path:
        pair = [look_up(their_config, within + one) for one in path.split(AND)]
        return None if None in pair else pair

    def number(field: str) -> int | None:
        found = (look_up(their_config, within + p) for p in mapping.fields.get(field, ()))
        return next((value for value in found if type(value) is int), None)

    plain = path.removeprefix(ALL_BUT).removeprefix(PIXELS)
    value = look_up(their_config, placed(within, plain))
    if path.startswith(PIXELS) and type(value) is int:
        patch, square = number("patch_size"), number("merge_size")
        return value // square // patch * square if patch and square else f"{value} pixels"
    depth = number("depth")
    if not path.startswith(ALL_BUT) or depth is None or not isinstance(value, list | tuple):
        return value
    return [block for block in range(min(depth, MOST_BLOCKS)) if block not in value]


def _translate(table: Table, mapping: ConfigFile, field: str, path: str, value: object) -> object:
    ours = _in_our_words(mapping, field, value)
    # timm's pretrained_cfg has no other word for the channels: input_size.
    if field == "in_channels" and isinstance(value, list) and len(value) == 3:
        ours = value[0]  # channels, height, width
    try:
        ours = parse_field(field, ours, table.describes)
        known = table.describes.vocabularies.get(field, (ours,))
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


def _in_our_words(mapping: ConfigFile, field: str, value: object) -> object:
    """A text or a truth value of theirs as the table translates it, anything else as it is."""
    if not isinstance(value, str | bool):
        return value
    word = value if isinstance(value, str) else str(value).lower()
    return mapping.values.get(field, {}).get(word, value)


def their_word(table: Table, field: str, value: object) -> Any:
    """Returns the value in their file for a value of ours; the inverse of reading it.

    Raises:
        NotRepresentable: They have words for this field, and none for the value.
    """
    words = table.config_file.values.get(field, {}) if table.config_file else {}
    theirs = next((theirs for theirs, ours in words.items() if ours == value), None)
    if words and theirs is None:
        # A list stands for what we have no word for.
        known = [str(ours) for ours in words.values() if not isinstance(ours, list)]
        raise NotRepresentable(
            f"{table.title} has no word for {field} = {value!r}.",
            evidence={"table": table.file, "words for": ", ".join(known)},
        )
    if theirs is not None:
        return theirs == "true" if theirs in ("true", "false") else theirs
    if isinstance(value, tuple):
        return value[0] if len(value) > 1 == len(set(value)) else list(value)
    return value


def written_besides(table: Table, config: Config) -> dict[str, Any]:
    """The entries of their file besides those that map fields of ours: path -> value, nested.

    Raises:
        NotRepresentable: No ratio makes one of our sizes.
    """
    written: dict[str, Any] = {}
    for stated in table.config_file.writes if table.config_file else ():
        if not stated.holds_for(config):
            continue
        value: object = stated.value
        if isinstance(value, Word):
            value = getattr(config, value.word)
        elif isinstance(value, Ratio):
            field, value = value.makes, value.of(config)
            if value is None:
                raise NotRepresentable(
                    f"{table.title} says {field} by a ratio, and none makes this one.",
                    evidence={
                        "table": table.file,
                        "ratio": stated.name,
                        field: getattr(config, field),
                        "embed_dim": config.embed_dim,
                    },
                )
        put(written, stated.name, value)
    return written


def written_config(table: Table, config: Config) -> dict[str, Any]:
    """Their file: every field of ours that the table maps, and what it has besides.

    Raises:
        NotRepresentable: They have no word for a value, or no ratio makes one of our sizes.
    """
    written = written_besides(table, config)
    mapping = table.config_file
    for field, path in mapping.written_fields if mapping else ():
        value = getattr(config, field)
        if AND in path:
            paths = path.split(AND)
            if len(value) != len(paths):
                raise NotRepresentable(
                    f"{table.title} has no word for {field} = {value!r}.",
                    evidence={"table": table.file, "words": path},
                )
            for one, number in zip(paths, value, strict=True):
                put(written, one, number)
        else:
            put(written, path, their_word(table, field, value))
    return written


def put(written: dict[str, Any], path: str, value: object) -> None:
    """Set the value at a dotted path."""
    *sections, key = path.split(".")
    for section in sections:
        written = written.setdefault(section, {})
    written[key] = value


def broken_musts(table: Table, their_config: Mapping[str, object]) -> list[str]:
    """Entries that the project's config lacks, without which the table is wrong."""
    must = table.config_file.must if table.config_file and their_config else {}
    return [
        f"{path} = {value}" for path, value in must.items() if look_up(their_config, path) != value
    ]


def broken_must_nots(table: Table, their_config: Mapping[str, object], config: Config) -> list[str]:
    """Entries of the project's config that make another function of the same tensors."""
    must_not = table.config_file.must_not if table.config_file else ()
    return [
        f"{stated.name} = {stated.value}"
        for stated in must_not
        if stated.holds_for(config) and look_up(their_config, stated.name) == stated.value
    ]


def denied_positions(table: Table, their_config: Mapping[str, object], config: Config) -> list[str]:
    """Entries of the project's config on tensors of positions that the file denies.

    The project's class makes up those that the file lacks, and passes over those that it has.
    """
    denied = []
    for entry in table.config_file.writes if table.config_file else ():
        said, made = look_up(their_config, entry.name), entry.value
        if entry.condition or not isinstance(said, bool) or not isinstance(made, Word):
            continue
        if made.word.endswith("positions") and said != getattr(config, made.word):
            denied.append(f"{entry.name} = {said}")
    return denied


def unknown_arguments(table: Table, their_config: Mapping[str, object]) -> list[str]:
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
