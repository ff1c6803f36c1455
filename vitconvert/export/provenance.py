"""`vitconvert.json`: where a directory came from, what was done, and how it was proved."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint import Checkpoint
from vitconvert.containers import hash_file
from vitconvert.conversion.target import Target
from vitconvert.documents import write_json
from vitconvert.errors import printable
from vitconvert.export.written import RECORD, files_of
from vitconvert.sources import Located
from vitconvert.sources.references import published
from vitconvert.version import VERSION

if TYPE_CHECKING:
    from vitconvert.parity.report import ParityReport
    from vitconvert.programs.opening import Opened


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a conversion found out, which the card and the record of its output tell.

    Attributes:
        parity: Comparison with the source's own implementation, or None if it was not asked for.
        opened: How programs that loaded the output agree.
        departures: What they do otherwise with photographs.
        sha256_in: Hash of each file of the source, by its name.
    """

    parity: "ParityReport | None"
    opened: "tuple[Opened, ...]"
    departures: tuple[str, ...]
    sha256_in: Mapping[str, str]


def write_record(
    directory: Path,
    source: Checkpoint,
    target: Target,
    proof: Proof,
    *,
    sha256_out: Mapping[str, str],
    command: str | None,
) -> None:
    """Write the record of a conversion; `config` in it is what vitconvert itself reads back.

    It goes to the Hub with the weights, so it tells of no place on this machine.

    Args:
        directory: The output, with all else that is in it.
        source: What was converted.
        target: The layout that it has.
        proof: What was found out.
        sha256_out: Hash of each file of weights.
        command: What was typed.
    """
    parity = proof.parity
    record = {
        "vitconvert": VERSION,
        "command": command,
        "source": source_record(source, proof.sha256_in),
        "target": target.table.name,
        "config": source.config.to_dict(),
        "origins": dict(source.config.origins),
        "preprocessing": source.preprocessing and source.preprocessing.to_dict(),
        "text": source.text.to_dict() if source.text else None,
        "labels": source.own_labels and list(source.own_labels),
        "departures": list(proof.departures),
        "ledger": source.ledger.to_dict(),
        "parity": {**parity.to_dict(), "source": published(parity.source)} if parity else None,
        "opened_by": [consumer.to_dict() for consumer in proof.opened],
        "sha256": dict(sha256_out),
        "files": sorted([*files_of(directory), RECORD]),
    }
    write_json(directory / RECORD, record)


def source_record(source: Checkpoint, sha256: Mapping[str, str]) -> dict[str, Any]:
    """Where a checkpoint came from; `sha256` has the hashes of its files."""
    located = source.located
    return {
        "reference": published(located.reference),
        "name": located.name and published(located.name),
        "repo": located.repo,
        "revision": located.revision,
        "url": located.url and published(located.url),
        "sha256": {printable(name): digest for name, digest in sha256.items()},
        "verified": list(located.verified),
        **({"fetched": str(located.fetched)} if located.fetched else {}),
        "dialect": source.dialect,
        "adapter": source.merge and printable(source.merge.adapter.name),
        "tower": source.tower and source.tower.to_dict(),
        "random": source.random,
    }


def weights_metadata(source: Checkpoint, target: Target) -> dict[str, str]:
    """What the weights say of their own origin, wherever they are copied.

    Only what is the same on every machine, so no path and no time, and only what is known before
    a byte is written: a local file is hashed while it is moved, and waiting for that would take
    as long as moving it. Its hash is in `vitconvert.json`.
    """
    located = source.located
    stated = {
        "version": VERSION,
        "source_dialect": source.dialect,
        "target_dialect": target.table.name,
        "source_repo": located.repo,
        "source_revision": located.revision,
        "source_url": located.url and published(located.url),
        "source_sha256": _sha256_of_weights(located),
    }
    return {f"vitconvert.{key}": value for key, value in stated.items() if value}


def _sha256_of_weights(located: Located) -> str | None:
    name = located.weights.name if located.weights else None
    # In a repository a file may lie in a folder.
    return next((found for file, found in located.sha256.items() if Path(file).name == name), None)


def source_hashes(checkpoint: Checkpoint) -> Callable[[], Mapping[str, str]]:
    """Hash what is read on another core, unless that was done when it was downloaded.

    Returns:
        Waits for it, and gives file name -> sha256, or raises what went wrong.
    """
    known = checkpoint.located.sha256
    if known and not checkpoint.merge:  # the files of an adapter are from elsewhere
        return lambda: known
    hashes: Future[Mapping[str, str]] = Future()

    def digest() -> None:
        try:
            hashes.set_result({file.name: hash_file(file) for file in sorted(checkpoint.files)})
        except BaseException as error:  # who asks for the hashes gets it, and waits for nothing
            hashes.set_exception(error)

    threading.Thread(target=digest, daemon=True).start()  # so that an interrupt need not wait
    return hashes.result
