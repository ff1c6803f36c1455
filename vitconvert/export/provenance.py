"""`vitconvert.json`: where a directory came from, what was done, and how it was proved."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.containers import hash_file
from vitconvert.conversion.target import Target
from vitconvert.export.consumers import Opened
from vitconvert.loading import Checkpoint

if TYPE_CHECKING:
    from vitconvert.parity import ParityReport


def tool_version() -> str:
    """The installed release."""
    try:
        return version("vitconvert")
    except PackageNotFoundError:  # a source tree that was never installed
        return "unknown"


def provenance(
    checkpoint: Checkpoint,
    target: Target,
    weights: Path,
    *,
    parity: "ParityReport | None",
    opened: Sequence[Opened],
    command: str | None,
) -> dict[str, Any]:
    """The record of a conversion; `config` in it is what vitconvert itself reads back."""
    located = checkpoint.located
    return {
        "vitconvert": tool_version(),
        "command": command,
        "source": {
            "reference": located.reference,
            "name": located.name,
            "repo": located.repo,
            "revision": located.revision,
            "url": located.url,
            "sha256": dict(located.sha256) or _hashes(checkpoint.files),
            "verified": list(located.verified),
            "dialect": checkpoint.dialect,
        },
        "target": target.table.name,
        "config": checkpoint.config.to_dict(),
        "origins": dict(checkpoint.config.origins),
        "preprocessing": checkpoint.preprocessing and checkpoint.preprocessing.to_dict(),
        "ledger": checkpoint.ledger.to_dict(),
        "parity": parity.to_dict() if parity else None,
        "opened_by": [consumer.to_dict() for consumer in opened],
        "sha256": {weights.name: hash_file(weights)},
    }


def _hashes(files: Sequence[Path]) -> dict[str, str]:
    return {file.name: hash_file(file) for file in sorted(files)}
