"""What a reference leads to."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONFIGS = ("config.json", "open_clip_config.json")
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")  # of transformers 4 and 5
OWN = "vitconvert.json"
ADAPTER = "adapter_config.json"  # of PEFT
COMPANIONS = (*CONFIGS, *PREPROCESSORS, OWN, ADAPTER)


@dataclass(frozen=True, kw_only=True)
class Located:
    """Local files that a reference leads to, and what is known of their origin.

    Attributes:
        reference: The reference as it was given.
        weights: The file, the index of shards or the directory to read.
        config: `config.json` or `open_clip_config.json` beside the weights.
        preprocessor: `preprocessor_config.json` or `processor_config.json` beside them.
        own: `vitconvert.json` beside them.
        name: Architecture name with its tag, when the reference names one.
        repo: Hub repository.
        revision: The commit that was resolved, 40 hexadecimal digits.
        url: The address of an https download.
        sha256: File name to the hash that was computed here; empty for local files.
        verified: File names whose content hash equals one that is published.
        adapter: `adapter_config.json` beside them.
    """

    reference: str
    weights: Path | None
    config: Path | None
    preprocessor: Path | None
    own: Path | None
    name: str | None
    repo: str | None
    revision: str | None
    url: str | None
    sha256: Mapping[str, str]
    verified: tuple[str, ...]
    adapter: Path | None = None

    @property
    def companions(self) -> tuple[Path, ...]:
        """The JSON files beside the weights."""
        files = (self.config, self.preprocessor, self.own, self.adapter)
        return tuple(path for path in files if path is not None)


def beside(directory: Path) -> dict[str, Path | None]:
    """The `config`, `preprocessor`, `own` and `adapter` fields for weights in a directory."""
    return {
        "config": _first(directory, CONFIGS),
        "preprocessor": _first(directory, PREPROCESSORS),
        "own": _first(directory, (OWN,)),
        "adapter": _first(directory, (ADAPTER,)),
    }


def _first(directory: Path, names: tuple[str, ...]) -> Path | None:
    paths = (directory / name for name in names)
    return next((path for path in paths if path.exists()), None)  # reading what is no file says so
