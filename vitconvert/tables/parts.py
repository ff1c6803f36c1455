"""A ViT that is a part of a checkpoint, and the header in which it is looked for."""

import bisect
import functools
import os.path
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vitconvert.errors import NotRepresentable, UnknownDialect, some
from vitconvert.tables.axes import Shape
from vitconvert.tables.config_file import look_up
from vitconvert.tables.detection import NO_TABLE, Recognised, fitting, identifies, recognise
from vitconvert.tables.dialects import builtin_tables
from vitconvert.tables.others import (
    Evidence,
    another_model,
    instead_of,
    quantised_by,
    read_as_of,
)
from vitconvert.tables.table import Table
from vitconvert.toml_files import read_tables


@dataclass(frozen=True, kw_only=True)
class Tower:
    """A place where a larger model may have a ViT.

    Attributes:
        prefix: What stands before the names of its tensors; "" is the whole file.
        section: Where config.json is about it, as a path of keys with dots; "" is all of that file,
            None no part of it.
        model: Whose encoder it is, in words.
        reads: What the larger model reads of it, in words, where no config.json says so.
        facts: Fields that its code sets otherwise than the library whose names its tensors have.
        model_type: That of config.json, where there is none and the prefix is of one model.
        guessed: Whether nobody names this prefix: a table fits what is below it, and no other.
    """

    prefix: str
    section: str | None = None
    model: str = "a larger model"
    reads: str = ""
    facts: Mapping[str, object] = field(default_factory=dict, compare=False)
    model_type: str = ""
    guessed: bool = False

    def to_dict(self) -> dict[str, str | None]:
        """For `vitconvert.json` and `--json`."""
        return {"prefix": self.prefix, "section": self.section, "model": self.model}

    def __str__(self) -> str:
        return f"{self.prefix.rstrip('./')} ({self.model})"


WHOLE = Tower(prefix="", section="", model="")


@dataclass(frozen=True, kw_only=True)
class FoundViT:
    """The ViT among a checkpoint's tensors.

    Attributes:
        tower: Where it is.
        names: What its dialect calls a tensor -> what the file calls it.
        outside: The file's other tensors, and what they are.
        left_out: Tensors that the user ignores, and why.
        head: What the file calls the head, where its dialect calls it otherwise.
        recognised: Its dialect.
    """

    tower: Tower = WHOLE
    names: Mapping[str, str]
    outside: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    head: str = ""
    recognised: Recognised

    @property
    def called(self) -> Mapping[str, str]:
        """What the file calls each tensor, by its name in the binding."""
        prefix = self.recognised.prefix
        return {name.removeprefix(prefix): whole for name, whole in self.names.items()}

    @property
    def beside(self) -> Mapping[str, str]:
        """Tensors of the file that its dialect does not know, and why they play no part."""
        return {**self.recognised.wrappers_own, **self.outside, **self.left_out}

    @property
    def ignored(self) -> Mapping[str, str]:
        """Tensors of the file that play no part, and why."""
        return {**self.recognised.binding.ignored, **self.beside}

    @property
    def used(self) -> list[str]:
        """Tensors of the file that its dialect makes the model of."""
        links = (link for links in self.recognised.binding.links.values() for link in links)
        keys = dict.fromkeys(link.theirs for link in links if link.theirs is not None)
        return [self.names[self.recognised.prefix + key] for key in keys]

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole file, under the names of the file."""
        same = all(new == old for new, old in self.names.items())
        return same and not self.outside and not self.left_out

    @property
    def notes(self) -> tuple[str, ...]:
        """Which part of the file this is, a sentence each."""
        notes = []
        if self.tower.guessed:
            notes.append(self._guess)
        elif self.tower.prefix and not self.head:
            notes.append(f"the vision encoder under {self.tower} was taken")
        if self.tower.prefix and (program := quantised_by(self.outside)):
            notes.append(f"outside of it are quantised weights ({program}), which are not read")
        if self.head:
            notes.append(
                f"{self.head} is taken for the head, and reads what the head of a "
                f"{self.recognised.table.title} reads; --set pooling=... states another pooling"
            )
        copies = Counter(name.partition(".")[0] for name in self.recognised.wrappers_own)
        if copy := next(
            (word for word, n in copies.items() if 2 * n > len(self.recognised.binding.shapes)),
            None,
        ):
            read = self.recognised.prefix.rstrip(".")
            notes.append(f"the weights under {read} are read; --tower {copy} reads those beside")
        if count := len(self.left_out):
            tensors = "1 tensor was" if count == 1 else f"{count} tensors were"
            notes.append(f"{tensors} ignored as you asked: parity was not tested for them")
        return tuple(notes)

    @property
    def _guess(self) -> str:
        """That a prefix was found which nobody named, and what stands beside it."""
        prefix = self.tower.prefix
        groups: dict[str, int] = {}
        for name in self.outside:
            common = os.path.commonprefix([name, prefix])  # noqa: RUF071 (of letters)
            start = max(common.rfind(mark) for mark in "./") + 1
            group = name[:start] + re.split("[./]", name[start:])[0]
            groups[group] = groups.get(group, 0) + 1
        read = prefix + self.recognised.prefix
        told = f"read below the prefix {read!r}; --tower names another"
        if groups:
            beside = [f"{g} ({n} tensor{'s' if n > 1 else ''})" for g, n in groups.items()]
            told += f"; not read: {some(beside, 6)}"
        return told


@dataclass(frozen=True, kw_only=True)
class Header:
    """The header in which a ViT is looked for.

    Attributes:
        shapes: Names and shapes from the checkpoint's header.
        config: The `config.json` beside it.
        tables: The dialects to try; None: all of `weights_map/`.
        ignored: Tensors that are not among the shapes, and why.
        settings: What a training program saved with the weights.
    """

    shapes: Mapping[str, Shape]
    config: Mapping[str, object] = field(default_factory=dict)
    tables: tuple[Table, ...] | None = None
    ignored: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)

    def inside(self, tower: Tower) -> dict[str, Shape]:
        """The tensors of an encoder, under its own names."""
        start = tower.prefix
        # Most files have none of the known prefixes: each is a search in the sorted names.
        at = bisect.bisect_left(self._sorted, start)
        if not "".join(self._sorted[at : at + 1]).startswith(start):
            return {}
        return {n[len(start) :]: s for n, s in self.shapes.items() if n.startswith(start)}

    @functools.cached_property
    def _sorted(self) -> list[str]:
        """The names, in which most of the known encoders are looked for in vain."""
        return sorted(self.shapes)

    def config_of(self, tower: Tower) -> Mapping[str, object]:
        """The part of config.json that is about an encoder."""
        stated = {"model_type": tower.model_type} if tower.model_type else {}
        said = config_section(self.config, tower.section) or stated
        if said and "model_type" in said and tower.prefix:
            return said
        found = self._another_model(tower)
        read_as = read_as_of(found[0]) if found else None
        under = read_as is not None and tower.prefix in read_as["under"]
        return {**said, "model_type": read_as["model_type"]} if read_as and under else said

    def fitting(self, shapes: Mapping[str, Shape], tower: Tower) -> Recognised | None:
        """The one dialect that explains these tensors of an encoder, or None."""
        return fitting(shapes, self.tables, self.config_of(tower))

    def nearest_dialect(self, shapes: Mapping[str, Shape], tower: Tower) -> Recognised:
        """The dialect that explains most of them; UnknownDialect, if it explains few.

        Where it does not explain all, it must not be another model's than config.json names.
        """
        config = self.config_of(tower)
        found = recognise(shapes, self.tables, config)
        lacks_only = not found.binding.unexplained and not found.binding.misfits
        if "model_type" not in config and (tower.section is not None or not lacks_only):
            config = self.config  # nothing is said of the encoder itself
        kind = config.get("model_type")
        named = self.tables is not None and len(self.tables) == 1
        if found.binding.fits or named or not isinstance(kind, str):
            return found
        if any(identifies(table, config) for table in builtin_tables().values()):
            return found
        raise UnknownDialect(
            "The model that config.json names is unknown.",
            evidence={
                "config.json": f"model_type = {kind!r}",
                "nearest": f"{found.table.name} ({found.table.title}), whose tensors are not these",
                "unexplained": some(
                    sorted([*found.binding.unexplained, *found.binding.misfits]), 4
                ),
            },
            meaning="Tensors of similar names can mean another function.",
            hint=NO_TABLE,
        )

    def check_model(self, tower: Tower) -> None:
        """Refuse a model that has a known ViT's tensors, and computes something else, by its name.

        A table that the user gives may still identify it.

        Raises:
            NotRepresentable: config.json, the file's settings or its other tensors say so.
        """
        config, found = self.config_of(tower) or self.config, self._another_model(tower)
        if found and self._is_read(found[0], tower):
            return
        if found and not any(not t.builtin and identifies(t, config) for t in self.tables or ()):
            other, told_by = found
            raise NotRepresentable(
                f"This is {other}.",
                evidence=told_by,
                meaning="Its tensors, whatever their names, mean another function than a ViT's.",
                hint=instead_of(other),
            )

    def _another_model(self, tower: Tower) -> tuple[str, dict[str, str]] | None:
        """A model with a ViT's tensors and another function, and what tells it."""
        every = {**self.shapes, **dict.fromkeys(self.ignored, ())}
        inside = {
            n.removeprefix(tower.prefix): s for n, s in every.items() if n.startswith(tower.prefix)
        }
        return another_model(
            Evidence(
                config=config_section(self.config, tower.section) or self.config,
                settings=self.settings,
                inside=inside,
                around=every,
                left_out=bool(self.ignored),
            )
        )

    def _is_read(self, model: str, tower: Tower) -> bool:
        """Whether one of the tables computes such a model, whose tensors are where they belong."""
        read_as = read_as_of(model)
        if read_as is None:
            return False
        said = {"model_type": read_as["model_type"]}
        tables = builtin_tables().values() if self.tables is None else self.tables
        names = tuple(read_as["under"])
        there = (
            tower.prefix in names if tower.prefix else any(n.startswith(names) for n in self.shapes)
        )
        return there and any(identifies(table, said) for table in tables)

    def part(
        self,
        tower: Tower,
        recognised: Recognised,
        names: Mapping[str, str] | None = None,
        head: str = "",
    ) -> FoundViT:
        """A ViT that was found: by default, all that stands under the tower's prefix."""
        names = names or {name: tower.prefix + name for name in self.inside(tower)}
        architectures = self.config.get("architectures")
        model = architectures[0] if isinstance(architectures, list) and architectures else None
        if not tower.prefix or not isinstance(model, str):
            # Several models have most prefixes, and nothing tells which of them this is.
            model = tower.model if ", " not in tower.model else Tower(prefix="").model
        used = set(names.values())
        why = f"outside the vision encoder {tower.prefix.rstrip('./')}"
        outside = {name: why for name in self.shapes if name not in used}
        return FoundViT(
            tower=replace(tower, model=model),
            names=names,
            outside=outside,
            left_out=self.ignored,
            head=head,
            recognised=recognised,
        )


def tower_words() -> Mapping[str, Any]:
    """`weights_map/towers.toml`."""
    return read_tables("towers")


def config_section(config: Mapping[str, object], path: str | None) -> Mapping[str, object]:
    """The object at a dotted path of a config.json, or at the first of several; else empty."""
    paths = () if path is None else path.split(" | ")
    sections = (look_up(config, one) if one else config for one in paths)
    return next((found for found in sections if isinstance(found, Mapping)), {})
