"""How to read a checkpoint: what its files may not show."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

from vitconvert.arguments import given, read_fields, refuse
from vitconvert.config import field_names
from vitconvert.errors import UsageError, nearest
from vitconvert.sources import Located
from vitconvert.tables.dialects import find_tables, is_of, read_table
from vitconvert.tables.table import Table

IGNORED = "you ignored it"


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read a checkpoint.

    Attributes:
        dialect: Name of a table of `weights_map/` or of an ecosystem; by default the one table
            that explains every key.
        overrides: Fields of ViTConfig that the tensors do not show, such as `{"num_heads": 3}`.
        architecture: Name of the architecture, for files that do not show it.
        table: A TOML file with one more dialect.
        prefer: Which weights to read from a torch checkpoint that has several, such as "model"
            if it has averaged ones too; by default the averaged ones.
        tower: What stands before the names of the tensors to take, in a file of a larger model,
            such as "vision_tower"; by default, the one tower that is found.
        adapter: A LoRA or DoRA adapter of PEFT to merge: what `sources.locate` takes or returned.
        lora_scale: What the product of its two matrices is multiplied with, where no
            adapter_config.json says it: lora_alpha / r.
        ignore: Patterns of names of tensors that play no part, such as `["aux_head.*"]`.
        rescue: Of a whole model that torch.save wrote, read the tensors as data; nothing is run.
        dequantise: Compute the weights of a quantised file in this: "float32" or "bfloat16".
        cast_to: What the weights are cast to later: those of a quantised file are computed in it,
            and others are read as they are.
    """

    dialect: str | None = None
    overrides: Mapping[str, Any] | None = None
    architecture: str | None = None
    table: str | PathLike[str] | None = None
    prefer: str | None = None
    tower: str | None = None
    adapter: str | PathLike[str] | Located | None = None
    lora_scale: float | None = None
    ignore: Sequence[str] = ()
    rescue: bool = False
    dequantise: str | None = None
    cast_to: str | None = None

    def __post_init__(self) -> None:
        read_fields(self)
        if self.table is not None and self.dialect and not is_of(self.dialect, self.table):
            raise UsageError(
                "dialect and table both say how the tensors are named: only one of them can.",
                evidence={"dialect": self.dialect, "table": self.table},
                hint="leave one of them out.",
            )

    @classmethod
    def of(cls, reading: Mapping[str, Any]) -> "ReadOptions":
        """What a caller gave by names.

        Raises:
            TypeError: One names nothing here; a fact of the model belongs into `overrides`.
        """
        options = cls.__dataclass_fields__
        for name in reading.keys() - options.keys():
            near = (
                [f"overrides={{{name!r}: ...}}"]
                if name in field_names()
                else nearest(name, options)
            )
            meant = f"did you mean {near[0]}?" if near else f"these are: {', '.join(options)}."
            raise TypeError(f"{name!r} is no option of reading; {meant}")
        return cls(**reading)

    @staticmethod
    def refuse(reading: Mapping[str, Any], why: str) -> None:
        """Refuse options by name where nothing is read by them.

        Args:
            reading: What a caller gave by names.
            why: The reason, as in "this checkpoint was read already".

        Raises:
            UsageError: Some were given.
        """
        ReadOptions.of(reading)  # names that are none are refused as such
        names = [name for name in given(reading) if name != "cast_to"]
        refuse(names, f"this is about how a checkpoint is read, and {why}.")

    def ignored(self, names: Iterable[str], file: object) -> dict[str, str]:
        """Which of a file's tensors `ignore` names, and the reason.

        Raises:
            UsageError: A pattern names none.
        """
        found: dict[str, str] = {}
        every = list(names)
        for pattern in self.ignore:
            matching = fnmatch.filter(every, pattern)
            if not matching:
                raise _names_nothing(pattern, every, file)
            found |= dict.fromkeys(matching, f"{IGNORED} ({pattern})")
        return found

    def tables(self, written_as: str | None = None) -> list[Table] | None:
        """The tables that may explain the checkpoint; None: all of `weights_map/`.

        Args:
            written_as: The dialect that a `vitconvert.json` names; the fields here override it.
        """
        if self.table is not None:
            return [read_table(Path(self.table))]
        dialect = self.dialect or written_as
        return find_tables(dialect) if dialect else None


def _names_nothing(pattern: str, names: Iterable[str], file: object) -> UsageError:
    words = list(dict.fromkeys(name.split(".")[0] for name in names))
    alike = nearest(pattern.split(".")[0], words, 3) or words[:3]
    return UsageError(
        f"No tensor is called {pattern!r}, which is to be ignored.",
        evidence={"file": file, "there are": ", ".join(f"{word}.*" for word in alike)},
        hint="patterns are of whole names, such as 'aux_head.*'.",
    )


class ReadArguments(TypedDict, total=False):
    """The fields of `ReadOptions`, as keyword arguments of the public functions."""

    dialect: str | None
    overrides: Mapping[str, Any] | None
    architecture: str | None
    table: str | PathLike[str] | None
    prefer: str | None
    tower: str | None
    adapter: str | PathLike[str] | Located | None
    lora_scale: float | None
    ignore: Sequence[str]
    rescue: bool
    dequantise: str | None
