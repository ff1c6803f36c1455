"""From local files to a checkpoint, in stages; only headers and the files beside them are read."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint.adapters import merged, separated, with_base
from vitconvert.checkpoint.checkpoint import Checkpoint, states_of
from vitconvert.checkpoint.companions import Companions, own_labels, what_is_read
from vitconvert.checkpoint.images import preprocessing_of
from vitconvert.checkpoint.options import ReadOptions
from vitconvert.checkpoint.recognition import Reading, find_vit, gathered, proved
from vitconvert.checkpoint.stating import stated_names
from vitconvert.checkpoint.text_tower import text_found
from vitconvert.config import ViTConfig
from vitconvert.errors import Quantised, SourceError, UsageError, VitConvertError
from vitconvert.file_formats import directory_names
from vitconvert.formats import FLOATS_OF_8_BITS, Container, TensorInfo, open_container
from vitconvert.labels import Labels
from vitconvert.sources import Located
from vitconvert.wrappers import unwrapped, words_within

if TYPE_CHECKING:
    import torch

_IN_MEMORY = "a state dict"  # where messages name a file


def read_checkpoint(located: Located, options: ReadOptions | None = None) -> Checkpoint:
    """Read the header of a checkpoint, and prove that it is understood.

    Raises:
        VitConvertError: One of the errors of `vitconvert.load_checkpoint`.
    """
    located, options = with_base(located, options or ReadOptions())
    path = located.weights_file()
    # The state of the files before any is opened, as far as they are known by then.
    several = path.suffix == ".json" or path.name in directory_names()
    siblings = path.parent.iterdir() if several and path.parent.is_dir() else [path]
    before = states_of([*siblings, *located.companions])
    read = explained(begun(open_weights(located, options), located, options))
    assert read.weights is not None
    assert read.ledger is not None
    fetched, tower = located.fetched, read.found.tower.prefix
    if fetched is not None and fetched.tower != tower:  # only the place of its tensors is here
        raise SourceError(
            "Another part of this repository was fetched than the one that is to be read.",
            evidence={"fetched": fetched, "to read": tower or "the whole file"},
            hint="give the reference itself; with locate(), tower= says what to fetch.",
        )
    companions, config = read.companions, read.weights.config
    preprocessing, said = preprocessing_of(read, config)
    labels, on_names = _labels(read, config.num_classes)
    files = (*read.weights.container.files, *located.companions)
    # Of shards that are known only now, the state now.
    opened = {**states_of(files), **{file: before[file] for file in files if file in before}}
    return Checkpoint(
        tensors=read.weights.tensors,
        config=config,
        preprocessing=preprocessing,
        own_labels=labels,
        ledger=read.ledger.with_notes(
            (*what_is_read(companions, read.found.tower), *said, *on_names)
        ),
        weights=read.weights,
        merge=read.merge,
        companions=companions,
        opened=opened,
        text=read.text,
        text_problem=read.text_problem,
    )


def _labels(read: Reading, num_classes: int) -> tuple[Labels | None, tuple[str, ...]]:
    """Names of the classes, by the options or else by the checkpoint's own files; and notes."""
    if labels := stated_names(read.options, num_classes):
        return labels, (f"labels: {labels.origin}",)
    if read.merge and read.merge.base.config.num_classes != num_classes:
        return None, ()  # the files name those of the base
    return own_labels(read.companions, num_classes)


def read_state_dict(
    state_dict: "Mapping[str, torch.Tensor]", options: ReadOptions
) -> "tuple[dict[str, torch.Tensor], ViTConfig]":
    """The tensors of a state dict under canonical names, and their configuration.

    Raises:
        VitConvertError: One of the errors of `vitconvert.load_checkpoint`.
    """
    nowhere = Located(reference=_IN_MEMORY, weights=None)
    weights = explained(begun(in_memory(state_dict), nowhere, options)).weights
    assert weights is not None
    return dict(weights.tensors), weights.config


def in_memory(state_dict: "Mapping[str, torch.Tensor]") -> Container:
    """The tensors of a state dict, as those of a file."""
    manifest = {
        name: TensorInfo(dtype=str(t.dtype).removeprefix("torch."), shape=tuple(t.shape))
        for name, t in state_dict.items()
    }
    return Container(
        path=Path(_IN_MEMORY),
        files=(),
        format="memory",
        manifest=manifest,
        reader=state_dict.__getitem__,
        release=lambda: None,
    )


def begun(container: Container, located: Located, options: ReadOptions) -> Reading:
    """An open file and what lies beside it, of which nothing is explained yet.

    Words that training programs put into names are taken out of them, and of the options.
    """
    own = Path(options.table) if options.table else None
    said = own.read_text(encoding="utf-8", errors="replace") if own and own.is_file() else ""
    # A word that a table of the user's spells belongs to the model.
    names = unwrapped(container.manifest, [word for word in words_within() if word in said])
    if count := sum(new != old for new, old in names.items()):
        gone = _words(names.values()) - _words(names)
        wrappers = ", ".join(f"{word} ({words_within()[word]})" for word in sorted(gone))
        note = f"words of wrappers were taken out of {count} names: {wrappers}"
        container = replace(container.renamed(names), notes=(*container.notes, note))
        options = replace(
            options,
            tower=options.tower and _without(options.tower, gone),
            ignore=[_without(pattern, gone) for pattern in options.ignore],
        )
    companions = Companions(located=located, container=container)
    return Reading(container=container, companions=companions, options=options)


def _words(names: Iterable[str]) -> set[str]:
    return {word for name in names for word in name.split(".")}


def _without(text: str, words: set[str]) -> str:
    return ".".join(word for word in text.split(".") if word not in words)


def explained(reading: Reading) -> Reading:
    """The last of `stages`.

    Raises:
        VitConvertError: As `read_checkpoint`.
    """
    *_, last = stages(reading)
    return last


def stages(reading: Reading) -> Iterator[Reading]:
    """Recognise the tensors, weigh statements, prove: what is known after each stage.

    Raises:
        VitConvertError: As `read_checkpoint`; what is known stays what it was then.
    """
    try:
        for stage in STAGES:
            reading = stage(reading)
            yield reading
    except VitConvertError as error:
        with suppress(VitConvertError):  # of the record itself
            for doubt in reading.companions.record.doubts:
                error.evidence["note"] = doubt
        raise


def recognised(reading: Reading) -> Reading:
    """Find the ViT, among the weights that quantised ones stand for if that is asked for.

    Raises:
        Quantised: They are, and it is not asked for.
        UsageError: They are not, and it is asked for.
        VitConvertError: As `find_vit` and `quantised.computed`.
    """
    asked = reading.options.dequantise
    dtype = asked or reading.options.cast_to
    try:
        part = find_vit(reading)
    except Quantised as error:
        # Of a header alone, what says how weights are packed is not here.
        if dtype is None or reading.companions.located.fetched or not error.computable:
            raise
        from vitconvert.checkpoint.quantised import computed  # few files have such weights

        return computed(reading, dtype)
    container = reading.container
    cast = Counter(container.manifest[name].dtype for name in part.used)
    if small := [name for name in FLOATS_OF_8_BITS if name in cast]:
        from vitconvert.checkpoint.quantised.scaled import widened

        wide = asked or "float32"
        count = sum(cast[name] for name in small)
        note = f"{count} tensors of {' and '.join(small)} are read as {wide}, which is exact"
        container = widened(replace(container, notes=(*container.notes, note)), wide)
    elif asked:
        raise not_quantised(asked, container.path)
    return replace(reading, container=container, part=part)


def narrowed(reading: Reading) -> Reading:
    """The tensors of a tower alone, under its own names, and what the files say of it."""
    part = reading.found
    if part.is_whole:
        return reading
    return replace(
        reading,
        container=reading.container.renamed(part.names),
        companions=replace(reading.companions, section=part.tower.section),
    )


STAGES: tuple[Callable[[Reading], Reading], ...] = (
    separated,  # an adapter, beside the file or within
    recognised,
    narrowed,  # to a larger model's tower
    merged,  # the adapter
    gathered,
    proved,
    text_found,
)


def not_quantised(dtype: str, *files: object) -> UsageError:
    """The error for a dtype of quantised weights where no file has any."""
    return UsageError(
        f"dequantise = {dtype!r} computes the weights of a quantised file, and there is none.",
        evidence={"read": ", ".join(map(str, files))},
        hint="leave out --dtype (in Python, dequantise).",
    )


def open_weights(located: Located, options: ReadOptions) -> Container:
    """Open the file of weights, and read its header only.

    Raises:
        SourceError: There is no such file.
        UsageError: It has no weights under the preferred key.
    """
    prefer = options.prefer
    container = open_container(
        located.weights_file(), prefer=(prefer,) if prefer else (), rescue=options.rescue
    )
    if prefer and prefer not in container.wrapper:
        raise UsageError(
            f"The checkpoint has no weights under {prefer!r}.",
            evidence={
                "file": container.path,
                "found": ".".join(container.wrapper) or "tensors at the top",
                "beside": ", ".join(container.extras) or "nothing",
            },
            hint="leave out --prefer (in Python, prefer) to read those that were found.",
        )
    return replace(container, notes=(*located.notes, *container.notes))
