"""`vitconvert.json`: where a directory came from, what was done, and how it was proved."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.containers import hash_file
from vitconvert.conversion.target import Target
from vitconvert.export.consumers import Opened
from vitconvert.loading import Checkpoint, Reading
from vitconvert.version import VERSION

if TYPE_CHECKING:
    from vitconvert.parity import ParityReport


def provenance(
    source: Reading | Checkpoint,
    target: Target,
    *,
    sha256_in: Mapping[str, str],
    sha256_out: Mapping[str, str],
    parity: "ParityReport | None",
    opened: Sequence[Opened],
    command: str | None,
) -> dict[str, Any]:
    """The record of a conversion; `config` in it is what vitconvert itself reads back."""
    located = source.located
    return {
        "vitconvert": VERSION,
        "command": command,
        "source": {
            "reference": located.reference,
            "name": located.name,
            "repo": located.repo,
            "revision": located.revision,
            "url": located.url,
            "sha256": dict(located.sha256) or dict(sha256_in),
            "verified": list(located.verified),
            "dialect": source.dialect,
        },
        "target": target.table.name,
        "config": source.config.to_dict(),
        "origins": dict(source.config.origins),
        "preprocessing": source.preprocessing and source.preprocessing.to_dict(),
        "ledger": source.ledger.to_dict(),
        "parity": parity.to_dict() if parity else None,
        "opened_by": [consumer.to_dict() for consumer in opened],
        "sha256": dict(sha256_out),
    }


def hash_files(files: Sequence[Path]) -> Callable[[], dict[str, str]]:
    """Hash files on another core; the call that this returns waits for it.

    Returns:
        Gives file name -> sha256.
    """
    found: dict[str, str] = {}

    def digest() -> None:
        found.update({file.name: hash_file(file) for file in sorted(files)})

    thread = threading.Thread(target=digest, daemon=True)
    thread.start()

    def result() -> dict[str, str]:
        thread.join()
        return found

    return result
