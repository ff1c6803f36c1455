"""A model that costs nothing: its features are bytes of a hash of the file's content."""

import hashlib
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from vitconvert.embedding.options import Event, RunOptions
from vitconvert.embedding.run import run
from vitconvert.embedding.sources import Sources
from vitconvert.errors import CorruptFile, SourceError, VitConvertError
from vitconvert.inference.embed import Embedding

AHEAD = 3  # images that are taken before the first has its answer, as threads take them
BAD = b"bad"  # how a file begins that is no image


def features_of(content: bytes, width: int = 4) -> list[float]:
    return [float(value) for value in hashlib.blake2b(content, digest_size=width).digest()]


@dataclass(frozen=True)
class NullTask:
    """Stands for a `Task`, and for what it loads.

    Attributes:
        model: Says which numbers these are.
        log: A file that gets a line for each image that is computed.
    """

    model: str = "null"
    computed: str = "features"
    width: int = 4
    scale: float = 1.0
    log: Path | None = None
    identity: dict = field(init=False, default_factory=dict)
    labels = features = None
    doubts = ()

    def __post_init__(self):
        self.identity.update(weights=self.model, computed={"what": self.computed})

    def with_computing(self, **_changes):
        return self

    @property
    def shape(self):
        return (self.width,)

    def load(self):
        return self

    def answers(self, pictures):
        waiting = deque()
        for picture in pictures:
            waiting.append(picture)
            if len(waiting) > AHEAD:
                yield self._answer(waiting.popleft())
        yield from map(self._answer, waiting)

    def _answer(self, picture):
        if self.log:
            with self.log.open("a") as log:
                log.write("image\n")
        try:
            content = _content(picture)
        except VitConvertError as error:
            return Embedding(path=None, error=error)
        numbers = self.scale * np.asarray(features_of(content, self.width), np.float32)
        return Embedding(path=None, features=torch.from_numpy(numbers))


def _content(picture):
    if isinstance(picture, VitConvertError):
        raise picture
    if isinstance(picture, Path):
        try:
            content = picture.read_bytes()
        except (OSError, ValueError) as error:
            raise SourceError("There is no such file.", evidence={"image": picture}) from error
    else:
        content = picture() if callable(picture) else picture
    if not content or content.startswith(BAD):
        raise CorruptFile("This is not an image.")
    return content


def embed_null(output, *given, task=None, notify=lambda _event: None, **options) -> Event:
    """A run of the null model; what is not of a run's options is of the sources."""
    names = ("listed", "recursive", "keep", "image_column")
    stated = {name: options.pop(name) for name in names if name in options}
    sources = Sources(given=[str(place) for place in given], **stated)
    how = RunOptions(**{"shard_rows": 3, **options})
    return run(task or NullTask(), sources, str(output), how, notify)


def stop(event) -> None:
    """Told of a shard, interrupts the run."""
    if event.what == "shard":
        raise KeyboardInterrupt
