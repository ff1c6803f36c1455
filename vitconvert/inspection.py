"""Explains a checkpoint from its header alone."""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from vitconvert.checkpoint.adapters import merge_adapter, separate_adapter
from vitconvert.checkpoint.companions import Companions, what_is_read
from vitconvert.checkpoint.function_hash import function_hash, recorded_hash
from vitconvert.checkpoint.images import normalising_tensors, preprocessing_of
from vitconvert.checkpoint.options import ReadOptions
from vitconvert.checkpoint.reading import (
    labels_of,
    noting_doubts,
    open_weights,
    without_wrappers,
)
from vitconvert.checkpoint.recognition import RecognisedViT, gather, prove, recognise_vit
from vitconvert.checkpoint.text_tower import find_text
from vitconvert.checkpoint.weights import Text
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonDict
from vitconvert.errors import MissingFact, VitConvertError
from vitconvert.facts.fact import Facts
from vitconvert.facts.gathering import Gathered
from vitconvert.formats import Container, TensorInfo
from vitconvert.labels import Labels
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.program import program_of
from vitconvert.sources import Located
from vitconvert.sources.located import RECORD
from vitconvert.tables.parts import FoundViT, Tower
from vitconvert.tables.templates import numbers_of, skeleton_of

# What the `format` of safetensors' metadata says of who wrote it: the frameworks of its own
# `safetensors` package (https://github.com/huggingface/safetensors), and MLX.
_FRAMEWORKS = {"pt": "PyTorch", "tf": "TensorFlow", "flax": "Flax", "np": "NumPy", "mlx": "MLX"}

_LACKING = (False, 0, None, "none", ())  # values of parts that a ViT has not
_COUNTS = ("num_classes",)  # of which none is worth telling


def _numbers(name: str) -> list[tuple[int, str]]:
    """Block 9 before block 10, in whatever order a file has them."""
    return [(len(number), number) for number in numbers_of(name)]


@dataclass(frozen=True, kw_only=True, repr=False)
class Inspection:
    """A checkpoint's header, explained as far as possible.

    Attributes:
        located: The files and where they came from.
        format: Name of the file's format, one of `vitconvert/file_formats.py`.
        wrapper: Keys that were unwrapped to reach the tensors.
        tensors: Name, dtype and shape of each tensor, in the order of the file.
        dialect: Name of the table that explains it, or None.
        written_by: Which programs wrote it, as far as it shows, and what shows it.
        opened_by: Which programs know its names; of a larger model's encoder, who knows the whole;
            none where there is another problem than a question.
        tower: Where in a larger model the vision encoder is, or None.
        prefix: What was removed from the start of every key of the ViT.
        facts: Fields of ViTConfig that are known: the value and where it comes from.
        missing: Fields that are unknown, and why.
        ignored: Tensors that are not used, and why.
        preprocessing: How an image becomes the input, or None if no file says it, or tensors do.
        labels: Names that the checkpoint gives its classes, or None.
        notes: What the tensors overruled, and which other weights the file holds.
        problem: Why the checkpoint cannot be loaded as it stands, or None.
        text: The text encoder beside the ViT, which is converted too, or None.
        text_problem: Why a text encoder cannot be converted, or "".
        recorded_hash: The name of its function as vitconvert.json states it, or "".
        function_hash: The same, computed of all numbers where that was asked for, or "".
        config: The configuration, or None if something is missing or wrong.
    """

    located: Located
    format: str
    wrapper: tuple[str, ...]
    tensors: Mapping[str, TensorInfo]
    dialect: str | None
    written_by: tuple[str, ...]
    opened_by: tuple[str, ...]
    tower: Tower | None
    prefix: str
    facts: Facts
    missing: Mapping[str, str]
    ignored: Mapping[str, str]
    notes: tuple[str, ...]
    problem: VitConvertError | None
    preprocessing: Preprocessing | None = None
    labels: Labels | None = None
    text: Text | None = None
    text_problem: str = ""
    recorded_hash: str = ""
    function_hash: str = ""
    config: ViTConfig | None = None

    def __repr__(self) -> str:
        known = f"dialect {self.dialect}" if self.dialect else "no known dialect"
        problem = f", problem: {self.problem.code}" if self.problem else ""
        return (
            f"<Inspection {self.located.reference!r}: {self.format}, {known}, "
            f"{len(self.tensors)} tensors, {self.parameters:,} parameters{problem}>"
        )

    @property
    def parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(info.shape) for info in self.tensors.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info.nbytes for info in self.tensors.values())

    @property
    def told(self) -> Facts:
        """The facts by name, without parts that this ViT does not have."""
        return {
            name: fact
            for name, fact in sorted(self.facts.items())
            if name in _COUNTS
            or not (fact.value in _LACKING or (fact.origin == RECORD and not self.has_part(name)))
        }

    def has_part(self, name: str) -> bool:
        """Whether a field plays a part in the function; True where the function is unknown."""
        return self.config is None or name in self.config.function()

    def tree(self) -> list[str]:
        """One line for all tensors whose names differ only in numbers, and so for all blocks."""
        groups: dict[tuple[str, str], list[str]] = {}
        for name, info in self.tensors.items():
            shape = f"{info.dtype} [{' '.join(map(str, info.shape))}]"
            groups.setdefault((skeleton_of(name), shape), []).append(name)
        return [
            f"{names[0]}  {shape}"
            if len(names) == 1
            else f"{min(names, key=_numbers)} ... {max(names, key=_numbers)}  {shape}"
            f"  x {len(names)}"
            for (_, shape), names in groups.items()
        ]

    def to_dict(self) -> JsonDict:
        """For `--json`."""
        return {
            "source": self.located.reference,
            "fetched": str(self.located.fetched) if self.located.fetched else None,
            "format": self.format,
            "wrapper": list(self.wrapper),
            "parameters": self.parameters,
            "bytes": self.nbytes,
            "dialect": self.dialect,
            "written_by": list(self.written_by),
            "opened_by": list(self.opened_by),
            "tower": self.tower.to_dict() if self.tower else None,
            "prefix": self.prefix,
            "config": {k: fact._asdict() for k, fact in self.facts.items()},
            "missing": dict(self.missing),
            "ignored": dict(self.ignored),
            "preprocessing": self.preprocessing.to_dict() if self.preprocessing else None,
            "labels": list(self.labels) if self.labels else None,
            "text": self.text.to_dict() if self.text else None,
            "text_problem": self.text_problem,
            "recorded_hash": self.recorded_hash or None,
            "function_hash": self.function_hash or None,
            "notes": list(self.notes),
            "problem": self.problem.to_dict() if self.problem else None,
            "tensors": {
                name: {"dtype": info.dtype, "shape": list(info.shape)}
                for name, info in self.tensors.items()
            },
        }


def inspect_located(
    located: Located, options: ReadOptions, *, with_hash: bool = False
) -> Inspection:
    """Explain a checkpoint's header as far as possible, reading no weights but for the hash.

    Raises:
        SourceError: There are no weights.
        CorruptFile, UnsafeFile: The header cannot be read, or not safely.
    """
    container = open_weights(located, options)
    named, options = without_wrappers(container, options)
    companions = Companions(located=located, container=named)
    vit = merge = known = weights = text = problem = preprocessing = labels = None
    text_problem, of_images = "", tuple[str, ...]()
    try:  # as `read_checkpoint`, as far as it leads
        with noting_doubts(companions):
            own, adapter = separate_adapter(named, located, options)
            vit = recognise_vit(own, companions, options)
            if adapter is not None:
                vit, merge = merge_adapter(vit, adapter, options)
            statements, known = gather(vit, options)
            weights, _ = prove(vit, statements, known)
            text, text_problem = find_text(weights, vit.companions)
        if normalising_tensors(vit):
            of_images = ("tensors hold the mean and deviation of images; a header does not",)
        else:
            preprocessing, of_images = preprocessing_of(vit, statements, weights.config, options)
        labels, of_labels = labels_of(vit.companions, merge, weights.config, options)
        of_images = (*of_images, *of_labels)
    except VitConvertError as error:
        problem = error
    part = vit.part if vit else None
    record = companions.own if weights and not merge else {}
    tower = part.tower if part and part.tower.prefix else None
    readers: tuple[str, ...] = ()
    # Of a question alone: whoever reads the names has the answer in code.
    if part and (problem is None or isinstance(problem, MissingFact)):
        table = part.recognised.table
        program = program_of(table)
        of_whole = program.packages if weights is None else program.readers(table, weights.config)
        of_whole = of_whole or ("the code of its own library",)
        readers = (*(["the code of the larger model"] if tower else of_whole), "vitconvert")
    return Inspection(
        located=located,
        format=container.format,
        wrapper=container.wrapper,
        tensors=container.manifest,
        dialect=part.recognised.table.name if part else None,
        written_by=tuple(_writers(container, companions, part)),
        opened_by=readers,
        tower=tower,
        prefix=part.tower.prefix + part.recognised.prefix if part else "",
        facts=known.facts if known else {},
        missing=known.asked if known else {},
        ignored=part.ignored if part else {},
        notes=(*_notes(container, companions, vit, known), *of_images),
        problem=problem,
        preprocessing=preprocessing,
        labels=labels,
        text=text,
        text_problem=text_problem,
        recorded_hash=recorded_hash(record, weights.config) if weights else "",
        function_hash=function_hash(weights.config, weights.tensors)
        if weights and with_hash
        else "",
        config=weights.config if weights else None,
    )


def _notes(
    container: Container,
    companions: Companions,
    vit: RecognisedViT | None,
    known: Gathered | None,
) -> Iterator[str]:
    if known:
        yield from known.notes
    else:
        with suppress(VitConvertError):  # whoever needs the record says what is wrong with it
            yield from companions.record.doubts
    yield from container.notes
    if vit and known:
        yield from vit.part.notes
        yield from what_is_read(companions, vit.part.tower)
        yield from vit.changes


def _writers(container: Container, companions: Companions, part: FoundViT | None) -> Iterator[str]:
    if part:
        yield f"{part.recognised.table.title} (names of the tensors)"
    if framework := container.metadata.get("format"):
        yield f"{_FRAMEWORKS.get(framework, framework)} (header of the file)"
    with suppress(VitConvertError):  # whoever needs these files says what is wrong with them
        if "transformers_version" in companions.whole_config:
            yield f"transformers {companions.whole_config['transformers_version']} (config.json)"
        if companions.own:
            yield "vitconvert (vitconvert.json)"
