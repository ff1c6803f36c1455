"""What a file is, how two differ, and what unknown names stand for."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.api.loading import Source
from vitconvert.arguments import LOCATED, checked
from vitconvert.checkpoint import ReadOptions
from vitconvert.sources import Located, locate

if TYPE_CHECKING:
    from vitconvert.difference import Difference
    from vitconvert.drafting.draft import Draft
    from vitconvert.inspection import Inspection


@checked(ReadOptions, source=LOCATED)
def inspect(source: str | PathLike[str] | Located, **reading: object) -> "Inspection":
    """Say what a checkpoint is, reading no weights.

    If a checkpoint cannot be loaded (an unknown dialect, a missing fact, tensors that do not add
    up), the reason is not raised but returned, as `problem`.

    Args:
        source: A path or a reference, as for `load_model`.
        reading: As for `load_checkpoint`: dialect, overrides, architecture, table, prefer, tower,
            ignore, adapter, lora_scale, rescue, dequantise.

    Raises:
        SourceError: The source leads to no file.
        CorruptFile, UnsafeFile: The header cannot be read, or not safely.
    """
    from vitconvert.inspection import inspect_located

    options = ReadOptions.of(reading)
    located = locate(source, tower=options.tower, headers_only=True)
    return inspect_located(located, options)


@checked(ReadOptions)
def diff(
    a: str | PathLike[str] | Located,
    b: str | PathLike[str] | Located,
    *,
    reading_a: Mapping[str, object] | None = None,
    reading_b: Mapping[str, object] | None = None,
    header: bool = False,
    **reading: object,
) -> "Difference":
    """Say how two checkpoints differ, tensor by tensor under common names.

    Values are compared as vitconvert would load them: in the same layout, and in float64 if their
    dtypes differ. Only one tensor of each side is in memory at a time.

    Args:
        a, b: Paths or references, as for `load_model`.
        reading_a, reading_b: How to read one of them, such as `{"overrides": {"num_heads": 3}}`;
            each comes before what is said for both.
        header: Compare headers only; no weights are read.
        reading: For both, as for `load_checkpoint`: dialect, overrides, architecture, table,
            prefer, tower, ignore, adapter, lora_scale, rescue, dequantise.

    Raises:
        SourceError: A source leads to no file.
        CorruptFile, UnsafeFile: A file cannot be read, or not safely.
        NotRepresentable: A tensor that is ignored as a constant has other values.
        UsageError: There is no such dialect, field or value.
    """
    from vitconvert.difference import diff_located

    of_a = ReadOptions.of({**reading, **(reading_a or {})})
    of_b = ReadOptions.of({**reading, **(reading_b or {})})
    located_a, located_b = locate(a, tower=of_a.tower), locate(b, tower=of_b.tower)
    return diff_located(located_a, located_b, of_a, of_b, header=header)


@checked(ReadOptions, source=LOCATED)
def draft_table(
    source: str | PathLike[str] | Located,
    *,
    like: Source,
    output: str | PathLike[str] | None = None,
    prefer: str | None = None,
    ignore: Sequence[str] = (),
    overwrite: bool = False,
) -> "Draft":
    """Draft a table for the names of a file that nobody knows, by a ViT that is known.

    Rows follow from shapes, words in names and, where the reference has the same weights, equal
    values. What is certain are rows that can be used at once (`load_model(source, table=output)`),
    guesses are commented out with the reason, and what is left is listed. What no tensor shows
    (activation, eps, heads, ...) is taken from the reference.

    Args:
        source: A path or a reference, as for `load_model`.
        like: A ViT of the same depth and width: the name of an architecture of timm
            (`vit_base_patch16_224`: no weights are needed), or what `load_model` takes.
        output: The table to write, NAME.toml; by default, none is written.
        prefer, ignore: As for `load_checkpoint`.
        overwrite: Replace an earlier draft, and nothing else.

    Raises:
        UsageError: Nothing in the file is like the reference, or the output's name is no table's.
        OutputExists: The output is there, and `overwrite` is false or it is no draft.
        VitConvertError: The reference cannot be read, as for `load_checkpoint`.

    Example:
        >>> draft = draft_table("team.pth", like="vit_base_patch16_224")   # doctest: +SKIP
        >>> print(draft.text)                                             # doctest: +SKIP
    """
    from vitconvert.drafting.draft import draft_located, read_reference
    from vitconvert.drafting.draft_text import check_draft_output, write_draft

    if output is not None:  # before anything is downloaded
        check_draft_output(Path(output), overwrite=overwrite)
    options = ReadOptions(prefer=prefer, ignore=ignore)
    draft = draft_located(locate(source), read_reference(like), options)
    if output is not None:
        write_draft(draft.text, Path(output), overwrite=overwrite)
    return draft
