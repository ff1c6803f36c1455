"""A file that `export` wrote, as a classifier: its metadata say what images and classes are."""

import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from vitconvert.arguments import refuse
from vitconvert.checkpoint.images import warn_of_assumed
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonObject
from vitconvert.errors import ConflictingFact, MissingFact, UsageError, size_text
from vitconvert.inference.batches import Ready
from vitconvert.inference.options import ComputeOptions
from vitconvert.labels import Labels
from vitconvert.model import ViT
from vitconvert.model.heads import logits_of
from vitconvert.model.resizing import require_whole_patches
from vitconvert.preprocessing import Preprocessing
from vitconvert.runtimes import RUNTIMES
from vitconvert.runtimes.export import RECORD
from vitconvert.runtimes.images import as_levels
from vitconvert.runtimes.runtime import Run, Runtime


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """A file with the record that is in its metadata; it is also `inference.batches.Engine`."""

    path: Path
    runtime: Runtime
    record: JsonObject

    @property
    def labels(self) -> Labels | None:
        """Names of the classes, or None."""
        if not (names := self.record.get("labels")):
            return None
        origin = self.record.get("labels_origin") or self.path.name
        return Labels(names, origin=origin, assumed=bool(self.record.get("labels_assumed")))

    @property
    def any_size(self) -> bool:
        """Whether height and width of its images are free."""
        return "height" in self.record["input"]["shape"]

    @property
    def clips(self) -> bool:
        """Whether it reads clips."""
        return bool(self.record["config"].get("frames"))

    def at_size(self, image_size: tuple[int, int]) -> Preprocessing:
        """Its own preprocessing, for images of another size.

        Raises:
            UsageError: The file takes images of one size.
            MissingFact: The file does not state its preprocessing.
        """
        own = ViTConfig.from_dict(self.record["config"]).image_size
        if not self.any_size and image_size != own:
            raise UsageError(
                f"This file takes images of {size_text(own)} pixels only.",
                evidence={"file": self.path},
                hint="write a file for this size, or for all: `vitconvert export CHECKPOINT --to "
                "FORMAT -o FILE --image-size N`, or `--dynamic-size`.",
            )
        return self._stated().at_size(image_size)

    def _stated(self) -> Preprocessing:
        if not (stated := self.record["preprocessing"]):
            raise MissingFact(
                "This file does not state its preprocessing.",
                evidence={"file": self.path},
                hint="export the checkpoint with --preprocessor FILE, or --mean and --std.",
            )
        return Preprocessing.from_dict(stated)

    def running(self, preprocessing: Preprocessing | None, options: ComputeOptions) -> Ready:
        """The file, ready to compute logits.

        Raises:
            ConflictingFact: It computes no classes, or prepares its images otherwise.
            MissingFact: Nothing says how its images are prepared.
            UsageError: It is asked for what another runtime does.
        """
        own = self.runtime.packages[:1] == (options.runtime,)  # may be named
        usual = ComputeOptions(runtime=options.runtime if own else "")
        names = ("dtype", "device", "fast", "runtime", "decode")
        other = [name for name in names if getattr(options, name) != getattr(usual, name)]
        refuse(other, f"the file was exported for {self.runtime.name}, which runs it as it is.")
        if (kind := self.record["output"]["kind"]) != "logits":
            raise ConflictingFact(
                f"The file gives {kind}, and no classes.",
                evidence={"file": self.path},
                hint="export the checkpoint without --kind.",
            )
        stated = self.record["preprocessing"]
        inside = self.record["input"]["dtype"] == "uint8"
        resized = preprocessing and self.any_size and self.at_size(preprocessing.image_size)
        if preprocessing and inside and preprocessing != resized:
            raise ConflictingFact(
                "The file prepares its images itself.",
                evidence={"file": self.path, "within": Preprocessing.from_dict(stated).origin},
                hint="leave out the preprocessing, or export without with_preprocessing.",
            )
        preprocessing = preprocessing or self._stated()
        warn_of_assumed(preprocessing)
        config = ViTConfig.from_dict(self.record["config"])
        if self.any_size and preprocessing.image_size != config.image_size:
            config = config.replace(image_size=preprocessing.image_size)
            if self.record["input"]["left_over"] == "refused":
                require_whole_patches(config)
            if min(config.grid_size) < self.runtime.fewest_patches:
                raise UsageError(
                    f"Images of {size_text(config.image_size)} are too small for this file.",
                    evidence={"file": self.path, "patches": size_text(config.grid_size)},
                    hint=f"a {self.runtime.suffix} file takes images from two patches up, "
                    "down and across.",
                )
        return Ready(
            model=_Described(config),
            preprocessing=preprocessing,
            options=options,
            engine=self,
        )

    def ready(self, *, images: int | None, batch: int, threads: int, streams: int) -> Run:
        """What gives logits of prepared images; as `inference.batches.Engine`."""
        run = self.runtime.open(self.path, threads=threads, streams=streams)
        taken, given = self.record["input"], self.record["output"]
        # Earlier versions said whether there is a softmax.
        scores = given.get("scores") or ("softmax" if given.get("softmax") else "none")
        size, stated = taken["shape"][0], self.record["preprocessing"]
        within = Preprocessing.from_dict(stated) if taken["dtype"] == "uint8" else None

        def compute(images: Tensor) -> Tensor:
            images = images if within is None else as_levels(images, within)
            out = torch.cat([run(part) for part in _parts(images, size)])[: len(images)]
            return logits_of(out, scores)

        return compute


class _Described(ViT):
    """The configuration of a model whose weights are in a file; it computes nothing itself."""

    dynamic_img_size = False  # the configuration is for the images that come

    def __init__(self, config: ViTConfig) -> None:
        nn.Module.__init__(self)
        self.config = config
        # Which says where images go, and in what dtype.
        self.nothing = nn.Parameter(torch.empty(0, dtype=torch.float32, device="cpu"))


def _parts(images: Tensor, size: int | str) -> list[Tensor]:
    """Images in batches of the one size that a file takes; the last is filled up."""
    if isinstance(size, str):
        return [images]
    missing = -len(images) % size
    full = torch.cat([images, images[-1:].expand(missing, *images.shape[1:])])
    return [full[start : start + size] for start in range(0, len(full), size)]


def open_exported(path: str | PathLike[str]) -> ExportedFile:
    """Read what a file says of itself.

    Raises:
        MissingPackage: Its runtime is not installed.
        MissingFact: vitconvert did not write it.
    """
    path = Path(path)
    (runtime,) = (one for one in RUNTIMES.values() if one.suffix == path.suffix)
    runtime.require()
    try:
        metadata = dict(runtime.metadata(path))
        found = f"metadata {', '.join(metadata) or 'without any entry'}"
    except Exception:  # parsers of foreign files raise anything
        metadata, found = {}, "no metadata that can be read"
    if RECORD not in metadata:
        raise MissingFact(
            f"This {path.suffix} file does not say which images it takes, nor its classes.",
            evidence={"file": path, "found": found, "expected": f"an entry {RECORD!r} of export"},
            hint="give a file that vitconvert exported, or the checkpoint itself.",
        )
    return ExportedFile(path=path, runtime=runtime, record=json.loads(metadata[RECORD]))
