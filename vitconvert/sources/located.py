"""The local files that a reference leads to, and how they are fetched."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from vitconvert.documents import read_object
from vitconvert.errors import SourceError, VitConvertError, printable
from vitconvert.file_formats import JOINED
from vitconvert.formats import has_weights, weights_in

CONFIGS = ("config.json", "open_clip_config.json")
PARAMS = "params.json"  # of Mistral
CONVERTER = "image_converter.json"  # of KerasHub
# The first two of transformers 4 and 5
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json", CONVERTER)
RECORD = "vitconvert.json"
ADAPTER = "adapter_config.json"  # of PEFT
# Of transformers' tokenizers, and so of open_clip's; they are copied with a text encoder.
TOKENIZERS = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tokenizer.model"),
    "sentencepiece.bpe.model",
)
# What KerasHub calls those of them that it has, too; they are the same bytes.
KERAS_TOKENIZERS = {
    "vocab.json": "assets/tokenizer/vocabulary.json",
    "merges.txt": "assets/tokenizer/merges.txt",
    "spiece.model": "assets/tokenizer/vocabulary.spm",
}
TASK = "task.json"  # of KerasHub: the config.json of a backbone, and its head
LEAVES = "metadata.json"  # of equimo: what the leaves in weights.eqx are
COMPANIONS = (*CONFIGS, PARAMS, TASK, LEAVES, *PREPROCESSORS, RECORD, ADAPTER)
_OF_TRAINER = re.compile(r"checkpoint-([0-9]{1,18})")  # and the step, of transformers' Trainer


@dataclass(frozen=True, kw_only=True)
class DownloadOptions:
    """How what is not here is fetched; the token stays out of printed forms.

    Attributes:
        revision, token, offline, quiet, tower, headers_only: As for `locate`.
        cache_dir: Where downloads are kept; None: the usual place of each source.
    """

    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    cache_dir: Path | None = None
    offline: bool = False
    quiet: bool = False
    tower: str | None = None
    headers_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A part of a repository's weights.

    Attributes:
        tower: The prefix of the tensors that are here; None: no tensor is, but the headers.
        moved: Bytes that came over the network; 0 if the part was fetched before.
        total: Bytes of the files.
    """

    tower: str | None
    moved: int
    total: int

    def __str__(self) -> str:
        what = f"{self.tower.rstrip('./')} alone" if self.tower else "only headers"
        moved = f"{_size(self.moved)} of" if self.moved else "fetched before, of"
        return (
            f"{what}, by ranges: {moved} {_size(self.total)}; checked were revision"
            " and sizes, not the sha256 of whole files"
        )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


@dataclass(frozen=True, kw_only=True)
class Located:
    """Local files that a reference leads to, and what is known of their origin.

    Attributes:
        reference: The reference as it was given.
        weights: The file, the index of shards or the directory to read.
        config: `config.json` or `open_clip_config.json` next to the weights.
        preprocessor: Of `PREPROCESSORS`, the first that is next to them.
        own: `vitconvert.json` next to them.
        name: Architecture name with its tag, when the reference names one.
        repo: Hub repository.
        revision: The commit that was resolved, 40 hexadecimal digits.
        url: The address of an https download.
        sha256: File name to the hash that was computed here; empty for local files.
        verified: File names whose content hash equals one that is published.
        fetched: Which tensors of the weights are here, if not all are: those under the prefix of
            its encoder.
        adapter: `adapter_config.json` next to them.
        random: Whether the weights are random numbers of this program, and nothing was learned.
        notes: What a user should know of how they were chosen.
        fetching: How they were fetched, and what they name in turn is.
    """

    reference: str
    weights: Path | None
    config: Path | None = None
    preprocessor: Path | None = None
    own: Path | None = None
    name: str | None = None
    repo: str | None = None
    revision: str | None = None
    url: str | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)
    verified: tuple[str, ...] = ()
    fetched: Fetched | None = None
    adapter: Path | None = None
    random: bool = False
    notes: tuple[str, ...] = ()
    fetching: DownloadOptions = field(default=DownloadOptions(), repr=False, compare=False)

    def weights_file(self) -> Path:
        """The one file to open: in a directory, that which `weights_in` finds.

        Raises:
            SourceError: There is none, or there are several.
        """
        if self.weights is None:
            raise SourceError(f"{self.reference} has no weights.")
        return weights_in(self.weights) if self.weights.is_dir() else self.weights

    @property
    def folder(self) -> Path | None:
        """The folder of the weights and of the files next to them."""
        place = self.config or self.weights
        return place if place is None or place.is_dir() else place.parent

    @property
    def tokenizer(self) -> Mapping[str, Path]:
        """The files of a tokenizer next to the weights, by transformers' names for them.

        `tokenizer_config.json` of KerasHub is its own `tokenizer.json`.
        """
        if (folder := self.folder) is None:
            return {}
        of_keras = any((folder / name).is_file() for name in JOINED)
        names = KERAS_TOKENIZERS if of_keras else {name: name for name in TOKENIZERS}
        found = {name: folder / theirs for name, theirs in names.items()}
        found = {name: path for name, path in found.items() if path.is_file()}
        stated = folder / "tokenizer.json"
        if found and of_keras and stated.is_file():
            found["tokenizer_config.json"] = stated
        return found

    @property
    def companions(self) -> tuple[Path, ...]:
        """The JSON files next to the weights."""
        files = (self.config, self.preprocessor, self.own, self.adapter)
        return tuple(path for path in files if path is not None)


class FilesBeside(TypedDict):
    """The files next to weights, as `Located` has them."""

    config: Path | None
    preprocessor: Path | None
    own: Path | None
    adapter: Path | None


def files_beside(directory: Path) -> FilesBeside:
    """The `config`, `preprocessor`, `own` and `adapter` fields for weights in a directory."""

    def first(*names: str) -> Path | None:
        paths = (directory / name for name in names)
        return next(
            (path for path in paths if path.exists()), None
        )  # what is no file is refused later

    # task.json is KerasHub's where the tensors that it is about are there.
    has_task = any((directory / name).exists() for name in JOINED.values())
    return {
        "config": first(
            *(TASK,) * has_task, *CONFIGS, *(PARAMS,) * _is_mistrals(directory / PARAMS)
        ),
        "preprocessor": first(*PREPROCESSORS),
        "own": first(RECORD),
        "adapter": first(ADAPTER),
    }


def _is_mistrals(params: Path) -> bool:
    """Whether a file, whose name scripts use too, is about one of Mistral's vision encoders."""
    with suppress(VitConvertError):
        return "vision_encoder" in read_object(params)
    return False


def locate_path(reference: str, path: Path) -> Located:
    """A directory as it is, or a file with the files next to it.

    Of a directory of transformers' Trainer without weights of its own, it is the newest checkpoint
    there. Weights of its own are the final or best ones.
    """
    weights, notes = newest_checkpoint(path) if path.is_dir() else (path, ())
    directory = weights if weights.is_dir() else weights.parent
    return Located(reference=reference, weights=weights, notes=notes, **files_beside(directory))


def newest_checkpoint(directory: Path) -> tuple[Path, tuple[str, ...]]:
    """What Trainer wrote last into a directory without weights, and a note; or the directory."""
    found = {
        int(number[1]): folder
        for folder in directory.glob("checkpoint-*")
        if (number := _OF_TRAINER.fullmatch(folder.name)) and has_weights(folder)
    }
    if not found or has_weights(directory):
        return directory, ()
    newest = found[max(found)]
    note = f"the weights are those of {newest.name}, the newest checkpoint there"
    with suppress(VitConvertError):  # without a state, nobody says which is the best
        best = str(read_object(newest / "trainer_state.json").get("best_model_checkpoint") or "")
        if best and (name := Path(best).name) != newest.name:
            note += f"; trainer_state.json calls {printable(name)} the best"
    return newest, (note,)
