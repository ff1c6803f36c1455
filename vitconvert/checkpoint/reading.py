"""From local files to a checkpoint; only headers and the files beside them are read."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint.adapters import merge_adapter, separate_adapter, with_base
from vitconvert.checkpoint.adapters.merging import Merge
from vitconvert.checkpoint.checkpoint import Checkpoint, State, states_of
from vitconvert.checkpoint.companions import Companions, own_labels, what_is_read
from vitconvert.checkpoint.images import preprocessing_of
from vitconvert.checkpoint.options import ReadOptions
from vitconvert.checkpoint.recognition import gather, prove, recognise_vit
from vitconvert.checkpoint.stating import stated_names
from vitconvert.checkpoint.text_tower import find_text
from vitconvert.config import ViTConfig
from vitconvert.errors import SourceError, UsageError, VitConvertError
from vitconvert.file_formats import directory_names
from vitconvert.formats import Container, TensorInfo, open_container
from vitconvert.labels import Labels
from vitconvert.sources import Located
from vitconvert.tables.parts import Tower
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
    before = _states_before(located)
    container = open_weights(located, options)
    return read_container(container, located, options, before=before)


def read_state_dict(
    state_dict: "Mapping[str, torch.Tensor]", options: ReadOptions
) -> "tuple[dict[str, torch.Tensor], ViTConfig]":
    """The tensors of a state dict under canonical names, and their configuration.

    Raises:
        VitConvertError: One of the errors of `vitconvert.load_checkpoint`.
    """
    nowhere = Located(reference=_IN_MEMORY, weights=None)
    checkpoint = read_container(in_memory(state_dict), nowhere, options, before={})
    return dict(checkpoint.tensors), checkpoint.config


def read_container(
    container: Container,
    located: Located,
    options: ReadOptions,
    *,
    before: Mapping[Path, State],
) -> Checkpoint:
    """The checkpoint of an open file.

    Args:
        container: The file.
        located: Where it and the files beside it are.
        options: How to read them.
        before: The state of files before any was opened.

    Raises:
        VitConvertError: As `read_checkpoint`.
    """
    container, options = without_wrappers(container, options)
    companions = Companions(located=located, container=container)
    with noting_doubts(companions):
        container, adapter = separate_adapter(container, located, options)
        vit = recognise_vit(container, companions, options)
        merge = None
        if adapter is not None:
            vit, merge = merge_adapter(vit, adapter, options)
        statements, known = gather(vit, options)
        weights, ledger = prove(vit, statements, known)
        text, text_problem = find_text(weights, vit.companions)
    companions, tower, config = vit.companions, vit.part.tower, weights.config
    _check_fetched(located, tower)
    preprocessing, of_images = preprocessing_of(vit, statements, config, options)
    labels, of_labels = labels_of(companions, merge, config, options)
    files = (*weights.container.files, *located.companions)
    # Of shards that are known only now, the state now.
    opened = states_of(files) | {file: before[file] for file in files if file in before}
    return Checkpoint(
        tensors=weights.tensors,
        config=config,
        preprocessing=preprocessing,
        own_labels=labels,
        ledger=ledger.with_notes((*what_is_read(companions, tower), *of_images, *of_labels)),
        weights=weights,
        merge=merge,
        companions=companions,
        opened=opened,
        text=text,
        text_problem=text_problem,
    )


def labels_of(
    companions: Companions, merge: Merge | None, config: ViTConfig, options: ReadOptions
) -> tuple[Labels | None, tuple[str, ...]]:
    """Names of the classes, or None if nothing states them; and notes on them.

    Raises:
        ConflictingFact: They are not those of so many classes.
    """
    if stated := stated_names(options, config.num_classes):
        return stated, (f"labels: {stated.origin}",)
    if merge and merge.base.config.num_classes != config.num_classes:
        return None, ()  # the files name those of the base
    return own_labels(companions, config.num_classes)


def _states_before(located: Located) -> dict[Path, State]:
    """The state of the files before any is opened, as far as they are known by then."""
    path = located.weights_file()
    several = path.suffix == ".json" or path.name in directory_names()
    siblings = path.parent.iterdir() if several and path.parent.is_dir() else [path]
    return states_of([*siblings, *located.companions])


def _check_fetched(located: Located, tower: Tower) -> None:
    """Make sure that the tensors that are read are those that were fetched.

    Raises:
        SourceError: Of the others, only their place is here.
    """
    fetched = located.fetched
    if fetched is not None and fetched.tower != tower.prefix:
        raise SourceError(
            "Another part of this repository was downloaded than the part to read.",
            evidence={"fetched": fetched, "to read": tower.prefix or "the whole file"},
            hint="give the reference itself; with locate(), tower= says what to fetch.",
        )


@contextmanager
def noting_doubts(companions: Companions) -> Iterator[None]:
    """Add to an error why a vitconvert.json beside the weights is not believed."""
    try:
        yield
    except VitConvertError as error:
        with suppress(VitConvertError):  # of the record itself
            for doubt in companions.record.doubts:
                error.evidence["note"] = doubt
        raise


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


def without_wrappers(container: Container, options: ReadOptions) -> tuple[Container, ReadOptions]:
    """The same without words that training programs put into names, and the options so too."""
    own = Path(options.table) if options.table else None
    said = own.read_text(encoding="utf-8", errors="replace") if own and own.is_file() else ""
    # A word that a table of the user's spells belongs to the model.
    names = unwrapped(container.manifest, [word for word in words_within() if word in said])
    count = sum(new != old for new, old in names.items())
    if not count:
        return container, options
    gone = _words(names.values()) - _words(names)
    wrappers = ", ".join(f"{word} ({words_within()[word]})" for word in sorted(gone))
    note = f"words of wrappers were removed from {count} names: {wrappers}"
    options = replace(
        options,
        tower=options.tower and _without(options.tower, gone),
        ignore=[_without(pattern, gone) for pattern in options.ignore],
    )
    return replace(container.renamed(names), notes=(*container.notes, note)), options


def _words(names: Iterable[str]) -> set[str]:
    return {word for name in names for word in name.split(".")}


def _without(text: str, words: set[str]) -> str:
    return ".".join(word for word in text.split(".") if word not in words)
