"""Models that save, load and publish themselves: what the methods of `model.hub` do."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from vitconvert.api.loading import load_model
from vitconvert.arguments import FLAG, NAMES_OF_CLASSES, PATH, TEXT, checked, such
from vitconvert.checkpoint import Checkpoint, ReadOptions
from vitconvert.config import ViTConfig
from vitconvert.conversion.options import WriteOptions
from vitconvert.errors import UsageError, size_text, warn
from vitconvert.preprocessing import Preprocessing
from vitconvert.settings import plain_arithmetic
from vitconvert.sources import locate

if TYPE_CHECKING:
    from vitconvert.conversion.convert import Conversion
    from vitconvert.conversion.push import Pushed
    from vitconvert.model import ViT

_IMAGES = such(
    lambda value: isinstance(value, Preprocessing | str | PathLike),
    "a Preprocessing, or a preprocessor_config.json",
    "load_checkpoint(...).preprocessing",
)


@checked(model=such(callable, "a ViT", "model"), labels=NAMES_OF_CLASSES, preprocessing=_IMAGES)
@plain_arithmetic()
def save_model(
    model: "ViT",
    output: str | PathLike[str],
    *,
    to: str = "vit",
    allow: Sequence[str] = (),
    labels: "str | PathLike[str] | Sequence[str] | None" = None,
    preprocessing: "Preprocessing | str | PathLike[str] | None" = None,
    max_shard_size: int | str | None = None,
    verify: bool = True,
    overwrite: bool = False,
) -> "Conversion":
    """Write a model in memory as `convert` writes a checkpoint; see `ViT.save_pretrained`."""
    from vitconvert.checkpoint.from_model import checkpoint_of
    from vitconvert.conversion.convert import convert_checkpoint
    from vitconvert.conversion.output import check_output

    check_output(Path(output), overwrite=overwrite)
    checkpoint = _stated(checkpoint_of(model), labels, preprocessing)
    if verify:
        _check_function(model, checkpoint)
    if model.dynamic_img_size:
        warn("a free image size is not saved: dynamic_size=True makes it free again on loading")
    options = WriteOptions(to=to, allow=tuple(allow), max_shard_size=max_shard_size)
    done = convert_checkpoint(
        checkpoint, options, output=Path(output), verify=verify, overwrite=overwrite
    )
    if checkpoint.preprocessing is not None and done.departures:
        measure = "`vitconvert verify DIR --images PHOTOS` measures it"
        differently = "its library prepares some images differently"
        warn(f"what was saved: {differently} ({'; '.join(done.departures)}); {measure}")
    return done


@checked(
    model=such(callable, "a ViT", "model"),
    **dict.fromkeys(("repo", "revision", "commit_message", "token"), TEXT),
    **dict.fromkeys(("private", "create_pr"), FLAG),
)
def push_model(
    model: "ViT",
    repo: str,
    *,
    private: bool = False,
    revision: str | None = None,
    commit_message: str | None = None,
    create_pr: bool = False,
    token: str | None = None,
    **saving: Any,
) -> "Pushed":
    """Save a model, and publish that as `vitconvert push` does; see `ViT.push_to_hub`."""
    with TemporaryDirectory(prefix="vitconvert-") as place:
        save_model(model, Path(place) / "model", **saving)
        return push_directory(
            Path(place) / "model",
            repo,
            private=private,
            revision=revision,
            commit_message=commit_message,
            create_pr=create_pr,
            token=token,
        )


def push_directory(
    directory: Path,
    repo: str,
    *,
    private: bool = False,
    revision: str | None = None,
    commit_message: str | None = None,
    create_pr: bool = False,
    token: str | None = None,
) -> "Pushed":
    """Publish what was saved, as `vitconvert push` does."""
    from vitconvert.conversion.push import push

    return push(
        directory,
        repo,
        private=private,
        create_pr=create_pr,
        revision=revision,
        message=commit_message,
        token=token,
        quiet=False,
        force=False,
    )


@checked(
    **dict.fromkeys(("revision", "token"), TEXT), cache_dir=PATH, local_files_only=FLAG, fast=FLAG
)
def load_from(
    source: str | PathLike[str],
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | PathLike[str] | None = None,
    local_files_only: bool = False,
    **how: Any,
) -> "ViT":
    """Load a model of a directory or repository; see `ViT.from_pretrained`."""
    located = locate(
        source,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        offline=local_files_only,
        tower=how.get("tower"),
    )
    return load_model(located, **how)


def _stated(
    checkpoint: Checkpoint,
    labels: "str | PathLike[str] | Sequence[str] | None",
    preprocessing: "Preprocessing | str | PathLike[str] | None",
) -> Checkpoint:
    """The checkpoint with what is said of it, and its preprocessing for the sizes of the model.

    Raises:
        ConflictingFact: There are more or fewer names than classes.
        UsageError: The preprocessing is for other images than the model reads.
    """
    from vitconvert.checkpoint.stating import preprocessing_in, stated_names
    from vitconvert.conversion.changes import preprocessing_for

    config, loaded = checkpoint.config, checkpoint.loaded
    known = checkpoint.preprocessing
    if preprocessing is not None:
        if isinstance(preprocessing, Preprocessing):
            known = preprocessing
        else:
            known = preprocessing_in(Path(preprocessing), config)
        _check_images(known, config)
    elif loaded is not None:
        known = preprocessing_for(known, loaded.config, config)
    named = stated_names(ReadOptions(labels=labels), config.num_classes)
    ledger = checkpoint.ledger
    if named is not None:
        kept = [note for note in ledger.notes if not note.startswith("labels: ")]
        ledger = replace(ledger, notes=(*kept, f"labels: {named.origin}"))
    return replace(
        checkpoint,
        preprocessing=known,
        own_labels=named or checkpoint.own_labels,
        ledger=ledger,
    )


def _check_images(stated: Preprocessing, config: ViTConfig) -> None:
    """Make sure that a preprocessing makes what the model reads.

    Raises:
        UsageError: Its images have another size or other channels.
    """
    made = (stated.channels, *stated.image_size)
    read = (config.in_channels, *config.image_size)
    if made != read:
        raise UsageError(
            "The preprocessing is for other images than the model reads.",
            evidence={"makes": size_text(made), "model reads": size_text(read)},
            hint=f"preprocessing.at_size({config.image_size}) makes it one for that size."
            if made[1:] != read[1:]
            else "its mean and std have one number for each channel.",
        )


def _check_function(model: "ViT", checkpoint: Checkpoint) -> None:
    """Make sure that what would be saved computes what the model does.

    Raises:
        UsageError: It does not: a hook, an attribute or a function of a module was changed.
    """
    import torch

    from vitconvert.checkpoint import build_model
    from vitconvert.comparison import TOLERANCE, relative_difference
    from vitconvert.programs.opening import random_images

    saved = build_model(checkpoint)
    weight = saved.patch_embed.a_weight()
    live = copy.deepcopy(model).to(device=weight.device, dtype=weight.dtype).eval()
    images = random_images(checkpoint.config).to(weight.dtype)
    with torch.inference_mode():
        difference = relative_difference(live(images), saved(images))
    if not difference <= TOLERANCE:
        raise UsageError(
            "The model computes something else than a ViT of its configuration and weights.",
            evidence={"relative difference": f"{difference:.3g}", "tolerance": TOLERANCE},
            meaning="A hook, a function or an attribute of a module was changed, or the weights "
            "give numbers that are not finite.",
            hint="verify=False saves configuration and weights all the same.",
        )
