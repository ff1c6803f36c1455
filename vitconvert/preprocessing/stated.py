"""Which preprocessing a checkpoint's own files state, in the order in which projects look."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from vitconvert.config import ViTConfig
from vitconvert.errors import VitConvertError, printable
from vitconvert.preprocessing.keras_hub import is_image_converter
from vitconvert.preprocessing.preprocessing import Preprocessing
from vitconvert.tables.architectures import preparation_of
from vitconvert.tables.table import Table

_RGB = 3


class Files(Protocol):
    """The JSON files beside the weights, parsed; empty where there is none."""

    @property
    def own(self) -> Mapping[str, Any]:
        """`vitconvert.json`, as far as it is believed."""

    @property
    def unspoken(self) -> Collection[str]:
        """Which of "config" and "preprocessor" it says nothing of, and so comes after."""

    @property
    def config(self) -> Mapping[str, Any]:
        """`config.json` or `open_clip_config.json`."""

    @property
    def preprocessor(self) -> Mapping[str, Any] | None:
        """`preprocessor_config.json` or `image_converter.json`, None where there is none."""

    def name_of(self, kind: str) -> str:
        """Where one of the three lies, for messages."""


def stated_preprocessing(files: Files, table: Table, config: ViTConfig) -> Preprocessing | None:
    """How an image becomes the model's input, or None if nothing states it.

    Args:
        files: What lies beside the weights.
        table: The dialect; its `[preprocessing]` is the weakest statement.
        config: The model's configuration.

    What was unknown when vitconvert wrote the files stays so, unless somebody stated it since: the
    defaults of the dialect that they are in now were never the model's.

    Raises:
        MissingFact, ConflictingFact, NotRepresentable: As the reader of each project's file. The
            error names the file.
    """
    if config.in_channels not in (1, 3):
        return None  # files of images have no such channels
    own, unknown = _recorded(files), "preprocessing" in files.own
    if own and not files.unspoken:
        return own
    cfg = files.config.get("pretrained_cfg")
    # timm's own are those of ImageNet's red, green and blue
    silent = isinstance(cfg, dict) and not all(cfg.get(name) for name in ("mean", "std"))
    unknown = unknown or (silent and config.in_channels == 1)
    stated = _live(files, config, without_timm=unknown and silent) or own
    return stated if stated or unknown else _of_dialect(table, config)


def _recorded(files: Files) -> Preprocessing | None:
    """The preprocessing in vitconvert.json."""
    if not (own := files.own.get("preprocessing")):
        return None
    with _naming(files, "own"):
        return Preprocessing.from_dict(own)


def _live(files: Files, config: ViTConfig, *, without_timm: bool) -> Preprocessing | None:
    """The preprocessing by the project's own files, where they state all of it."""
    if files.preprocessor is not None:
        with _naming(files, "preprocessor"):
            if is_image_converter(files.preprocessor):
                return Preprocessing.from_keras_hub(
                    files.preprocessor,
                    image_size=config.image_size,
                    channels=config.in_channels,
                )
            return Preprocessing.from_huggingface(
                files.preprocessor,
                model_type=files.config.get("model_type"),
                image_size=config.image_size,
            )
    if isinstance(cfg := files.config.get("pretrained_cfg"), dict):
        if without_timm:
            return None
        with _naming(files, "config"):
            return Preprocessing.from_timm(cfg)
    if isinstance(cfg := files.config.get("preprocess_cfg"), dict):
        with _naming(files, "config"):
            return Preprocessing.from_openclip(cfg, image_size=config.image_size)
    return None


def preprocessing_of_name(
    table: Table, name: str, config: ViTConfig, arguments: Mapping[str, Any]
) -> Preprocessing | None:
    """A project's preprocessing for an architecture, or None if it is not known.

    Args:
        table: The dialect.
        name: The architecture, with a tag or without.
        config: The model's configuration.
        arguments: Of a training script, which override it: timm's `resolve_data_config`.

    Raises:
        ConflictingFact: An argument is malformed.
    """
    said = preparation_of(table.ecosystem, name)
    if said is None or config.in_channels != _RGB:
        return None
    own = {field: arguments[field] for field in said if arguments.get(field)}
    more = f", {', '.join(own)} by the arguments of the training" if own else ""
    return Preprocessing.from_timm(
        {**said, **own, "input_size": [_RGB, *config.image_size]},
        origin=f"{table.ecosystem}'s own for {printable(name)[:80]}{more}",
    )


def _of_dialect(table: Table, config: ViTConfig) -> Preprocessing | None:
    section = table.preprocessing
    if not section or (config.in_channels != _RGB and _for_rgb_alone(section)):
        return None
    return Preprocessing.from_dialect(
        section,
        image_size=config.image_size,
        channels=config.in_channels,
        origin=table.origin,
    )


def _for_rgb_alone(section: Mapping[str, Any]) -> bool:
    """Whether a project states red, green and blue apart, which says nothing of grey images."""
    return any(
        isinstance(v := section.get(name), list) and len(set(v)) > 1 for name in ("mean", "std")
    )


@contextmanager
def _naming(files: Files, kind: str) -> Iterator[None]:
    """Name the file first in every error about its content."""
    try:
        yield
    except VitConvertError as error:
        error.evidence = {"file": files.name_of(kind), **error.evidence}
        raise
