"""How to read a checkpoint: what its files may not show."""

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypedDict

from vitconvert.arguments import (
    FACTS,
    FLAG,
    LOCATED,
    NAMES_OF_CLASSES,
    NUMBERS,
    PATH,
    SHARE,
    TEXT,
    VALUES,
    described_by,
    given,
    number,
    one_of,
    option,
    options_of,
    read_fields,
    read_value,
    refuse,
    texts,
)
from vitconvert.documents import JsonObject
from vitconvert.errors import UnknownDialect, UsageError, nearest
from vitconvert.preprocessing.backends import INTERPOLATIONS

if TYPE_CHECKING:
    import torch

    from vitconvert.sources import Located
    from vitconvert.tables.table import Table

IGNORED = "you ignored it"
PIXELS = ("mean", "std", "crop", "interpolation")  # options that state a part of a preprocessing
IMAGES = "Images and classes"  # the heading of options on what a file of weights may lack


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read a checkpoint, with the help of each option; `ReadArguments` are the arguments."""

    dialect: str | None = option(
        TEXT,
        "Name of the source's dialect or library; default: detected.",
        more="By default, it is the table of `weights_map/` that explains every key.",
    )
    table: str | PathLike[str] | None = option(
        PATH,
        "A TOML file with a dialect of your own, which a conversion to its name writes.",
        kind=Path,
    )
    architecture: str | None = option(
        TEXT, "Name of the architecture, if the file does not show it."
    )
    overrides: JsonObject | None = option(
        FACTS,
        "Set a fact that tensors do not show, such as num_heads=3.",
        more="The facts are the fields of ViTConfig.",
        flag="--set",
        metavar="FIELD=VALUE",
        repeats=True,
    )
    prefer: str | None = option(
        TEXT,
        "Which state dict of a torch checkpoint to read; default: averaged weights.",
        more='Such as "model" of a file that has averaged weights too.',
        metavar="KEY",
    )
    tower: str | None = option(
        TEXT,
        "In a larger model, what the ViT's tensor names begin with; default: detected.",
        more='Such as "vision_tower". By default, it is the only vision encoder in the file.',
        metavar="PREFIX",
    )
    ignore: Sequence[str] = option(
        texts("['aux_head.*']"),
        "Leave tensors out, such as 'aux_head.*'.",
        default=(),
        metavar="PATTERN",
        repeats=True,
    )
    rescue: bool = option(
        FLAG,
        "Read the tensors of a whole model that torch.save wrote as data; runs no code.",
        more="What the code of the model computes is not known.",
        default=False,
        kind=bool,
    )
    adapter: "str | PathLike[str] | Located | None" = option(
        LOCATED,
        "An adapter of PEFT to merge into the model: LoRA, DoRA, IA3, LoHa, LoKr or LN tuning.",
        more="It is a path or a reference. If `source` is only an adapter, it is merged into "
        "the base that it names: a path that is here, or a repository.",
        metavar="DIR_OR_REPO",
    )
    lora_scale: float | None = option(
        number(-math.inf),
        "lora_alpha / r, if no adapter_config.json states it.",
        more="The product of an adapter's two matrices is multiplied with it.",
        kind=float,
        metavar="NUMBER",
    )
    dequantise: str | None = option(
        TEXT,
        "Compute the weights of a quantised file in this.",
        more='For bitsandbytes, torchao and GGUF: "float32" or "bfloat16".',
        flag="--dtype",
        choices=("float32", "bfloat16"),
    )
    labels: "str | PathLike[str] | Sequence[str] | None" = option(
        NAMES_OF_CLASSES,
        "Names of the classes: a line each, or JSON (a list, or a config.json's id2label).",
        kind=Path,
        heading=IMAGES,
    )
    mean: float | Sequence[float] | None = option(
        NUMBERS,
        "Of pixels from 0 to 1: 0.5 or 0.48,0.46,0.41.",
        more="One number, or one for each channel, if the files do not state it or are wrong.",
        kind=tuple,
        metavar="NUMBERS",
        heading=IMAGES,
    )
    std: float | Sequence[float] | None = option(
        NUMBERS,
        "Standard deviation, in the same form.",
        kind=tuple,
        metavar="NUMBERS",
        heading=IMAGES,
    )
    crop: float | None = option(
        SHARE,
        "The share of the resized image that is kept, such as 0.875.",
        kind=float,
        metavar="NUMBER",
        heading=IMAGES,
    )
    interpolation: str | None = option(
        one_of(*INTERPOLATIONS),
        "The filter with which images are resized.",
        choices=INTERPOLATIONS,
        heading=IMAGES,
    )
    preprocessor: str | PathLike[str] | None = option(
        PATH,
        "A preprocessor_config.json, or timm's config.json, to be used for the images.",
        kind=Path,
        heading=IMAGES,
    )
    # What weights are cast to later, which follows from dtype=: those of a quantised file are
    # computed in it, and others are read as they are.
    cast_to: str | None = None
    # What images are resampled to later, which states their size where nothing else shows it.
    image_size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        from vitconvert.tables.dialects import is_of  # --help of the command line needs none

        read_fields(self)
        if self.table is not None and self.dialect and not is_of(self.dialect, self.table):
            raise UsageError(
                "dialect and table both say how the tensors are named: only one of them can.",
                evidence={"dialect": self.dialect, "table": self.table},
                hint="leave one of them out.",
            )

    @classmethod
    def of(cls, reading: Mapping[str, object]) -> "ReadOptions":
        """Options by name, as a caller gave them.

        Raises:
            TypeError: One names nothing here; a fact of the model belongs into `overrides`.
        """
        options = options_of(cls)
        for name in reading.keys() - options.keys():
            from vitconvert.config import field_names

            near = (
                [f"overrides={{{name!r}: ...}}"]
                if name in field_names()
                else nearest(name, options)
            )
            meant = f"did you mean {near[0]}?" if near else f"these are: {', '.join(options)}."
            raise TypeError(f"{name!r} is not an option of reading; {meant}")
        return cls(**reading)  # type: ignore[arg-type]

    def cast(self, dtype: "torch.dtype | str | None") -> "ReadOptions":
        """The same, of weights that are cast to a dtype later; None casts none."""
        name = str(dtype).removeprefix("torch.")
        return self if dtype is None else replace(self, cast_to=name)

    def sized(self, image_size: int | tuple[int, int] | str | None) -> "ReadOptions":
        """The same, of a model that is resampled to a size later; None resamples nothing.

        Raises:
            UsageError: It is not a size.
        """
        if image_size is None:
            return self
        size = read_value("image_size", image_size, VALUES["image_size"])
        return replace(self, image_size=(size, size) if isinstance(size, int) else size)  # type: ignore[arg-type]

    def refuse(self, why: str) -> None:
        """Refuse all options where nothing is read by them.

        Args:
            why: The reason, as in "this checkpoint was read already".

        Raises:
            UsageError: Some were given.
        """
        names = given({name: getattr(self, name) for name in options_of(ReadOptions)})
        refuse(names, f"this is about how a checkpoint is read, and {why}.")

    def without_images(self, why: str) -> "ReadOptions":
        """The same, where nothing comes of what is said of images and classes.

        Args:
            why: The reason, as in "two files are compared".

        Raises:
            UsageError: Something is said of them.
        """
        refuse(self.of_images, f"this is about images and classes, and {why}.")
        return self

    @property
    def of_images(self) -> list[str]:
        """Names of the options that say something of images or classes."""
        every = options_of(ReadOptions).items()
        return given({name: getattr(self, name) for name, one in every if one.heading == IMAGES})

    def ignored(self, names: Iterable[str], file: object) -> dict[str, str]:
        """Which of a file's tensors `ignore` names, and the reason.

        Raises:
            UsageError: A pattern names none.
        """
        from vitconvert.tables.names import first_part, separator_of

        found: dict[str, str] = {}
        every = list(names)
        for pattern in self.ignore:
            matching = fnmatch.filter(every, pattern)
            if not matching:
                words = list(dict.fromkeys(map(first_part, every)))
                sign = separator_of(every[0])
                alike = nearest(first_part(pattern), words, 3) or words[:3]
                raise UsageError(
                    f"--ignore {pattern!r} matches no tensor.",
                    evidence={"file": file, "there are": ", ".join(f"{w}{sign}*" for w in alike)},
                    hint="a pattern matches a whole name, such as 'aux_head.*'.",
                )
            found |= dict.fromkeys(matching, f"{IGNORED} ({pattern})")
        return found

    def tables(self, written: JsonObject = MappingProxyType({})) -> "list[Table] | None":
        """The tables that may explain the checkpoint; None: all of `weights_map/`.

        Args:
            written: The `vitconvert.json` beside it, which names a dialect; the fields here
                override it.

        Raises:
            UnknownDialect: It was written by a table of the user's own, which is not named here.
        """
        from vitconvert.tables.dialects import find_tables, is_builtin, read_table

        if self.table is not None:
            return [read_table(Path(self.table))]
        if self.dialect:
            return find_tables(self.dialect)
        target = written.get("target")
        if not isinstance(target, str):
            return None
        if not is_builtin(target):
            raise _of_own_table(target, written.get("command"))
        return find_tables(target)


def _of_own_table(target: str, command: object) -> UnknownDialect:
    """The error for an output in the names of a table of the user's own."""
    typed = re.search(r"--table ('[^']*'|\"[^\"]*\"|\S+)", str(command))
    table = typed[1] if typed else f"{target}.toml"
    return UnknownDialect(
        f"The tensors have the names of your own table {target!r}.",
        evidence={"written by": command or "vitconvert.convert", "known from": "vitconvert.json"},
        hint=f"--table {table} reads them (in Python, table=).",
    )


@described_by(ReadOptions)
class ReadArguments(TypedDict, total=False):
    """How to read a checkpoint: keyword arguments of `vitconvert.load_checkpoint` and others."""

    dialect: str | None
    table: str | PathLike[str] | None
    architecture: str | None
    overrides: JsonObject | None
    prefer: str | None
    tower: str | None
    ignore: Sequence[str]
    rescue: bool
    adapter: "str | PathLike[str] | Located | None"
    lora_scale: float | None
    dequantise: str | None
    labels: "str | PathLike[str] | Sequence[str] | None"
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    crop: float | None
    interpolation: str | None
    preprocessor: str | PathLike[str] | None
