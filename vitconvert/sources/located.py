"""What a reference leads to."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONFIGS = ("config.json", "open_clip_config.json")
PREPROCESSOR = "preprocessor_config.json"
OWN = "vitconvert.json"
COMPANIONS = (*CONFIGS, PREPROCESSOR, OWN)


@dataclass(frozen=True, kw_only=True)
class Located:
    """Local files that a reference leads to, and what is known of their origin.

    Attributes:
        reference: The reference as it was given.
        weights: The file, the index of shards or the directory to read.
        config: `config.json` or `open_clip_config.json` beside the weights.
        preprocessor: `preprocessor_config.json` beside them.
        own: `vitconvert.json` beside them.
        name: Architecture name with its tag, when the reference names one.
        repo: Hub repository.
        revision: The commit that was resolved, 40 hexadecimal digits.
        url: The address of an https download.
        sha256: File name to the hash that was computed here; empty for local files.
        verified: File names whose content hash equals one that is published.
        random: Whether the weights are random, made here, and nothing was learned.
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
    random: bool = False

    @property
    def companions(self) -> tuple[Path, ...]:
        """The JSON files beside the weights."""
        files = (self.config, self.preprocessor, self.own)
        return tuple(path for path in files if path is not None)


def beside(directory: Path) -> dict[str, Path | None]:
    """The `config`, `preprocessor` and `own` fields for weights in a directory."""
    configs = (directory / name for name in CONFIGS)
    return {
        "config": next((path for path in configs if path.exists()), None),
        "preprocessor": _if_there(directory / PREPROCESSOR),
        "own": _if_there(directory / OWN),
    }


def _if_there(path: Path) -> Path | None:
    return path if path.exists() else None  # reading what is no file says so
