"""The JSON files beside the weights, as they are: what they say is weighed elsewhere."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitconvert.checkpoint.record import Record, read_record
from vitconvert.documents import read_object
from vitconvert.formats import Container
from vitconvert.sources import Located
from vitconvert.tables.parts import config_section


@dataclass(frozen=True, kw_only=True)
class Companions:
    """The JSON files beside the weights, each parsed once, when it is first asked for.

    Attributes:
        located: Where they lie.
        section: Where `config.json` is about the ViT, as a path of keys with dots; "" is all of it,
            None no part.
        container: The open file of weights, which itself may say something of the model.

    Asking for one raises CorruptFile if it is no JSON object, or SourceError if it cannot be read.
    """

    located: Located
    container: Container = field(repr=False)
    section: str | None = ""

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """What the project's own `config.json` or `open_clip_config.json` says of the ViT.

        Empty if there is none.
        """
        return config_section(self.whole_config, self.section)

    @functools.cached_property
    def whole_config(self) -> Mapping[str, Any]:
        """All of that file."""
        return self.container.config or _read(self.located.config) or {}

    @functools.cached_property
    def record(self) -> Record:
        """`vitconvert.json`, which vitconvert itself wrote, as far as it is believed."""
        return read_record(self.located, self.container)

    @property
    def own(self) -> Mapping[str, Any]:
        """All that is believed of the files as they are, empty if there is nothing."""
        return self.record.whole

    @property
    def unspoken(self) -> frozenset[str]:
        """The files of which `own` says nothing, and whose word comes first."""
        return self.record.unspoken

    @functools.cached_property
    def preprocessor(self) -> Mapping[str, Any] | None:
        """`preprocessor_config.json`, or the part of `processor_config.json` on images, or None."""
        found = _read(self.located.preprocessor)
        if found is None:
            return None
        of_images = config_section(found, "image_processor")
        return of_images or (None if "processor_class" in found and len(found) < 4 else found)

    def name_of(self, kind: str) -> str:
        """Where "config", "own" or "preprocessor" lies, for messages."""
        return str(getattr(self.located, kind))


def _read(path: Path | None) -> Mapping[str, Any] | None:
    return None if path is None else read_object(path)
