"""`vitconvert.json`: where a directory came from, what was done, and how it was verified.

`checkpoint.companions` reads it back, and says how far it is believed.
"""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vitconvert.checkpoint import Checkpoint, ReadOptions
from vitconvert.checkpoint.companions import stated_weights
from vitconvert.checkpoint.reading import open_weights
from vitconvert.conversion.other_sizes import OtherSizes
from vitconvert.conversion.output import files_of
from vitconvert.documents import JsonDict, JsonObject, write_json
from vitconvert.errors import without_secrets
from vitconvert.facts.fact import ASKED, USER
from vitconvert.formats import hash_file
from vitconvert.programs.target import Target
from vitconvert.sources import locate
from vitconvert.sources.located import RECORD
from vitconvert.sources.references import published
from vitconvert.version import VERSION

if TYPE_CHECKING:
    from vitconvert.parity.report import ParityReport
    from vitconvert.programs.opening import Opened


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a conversion found out, which the card and the record of its output tell.

    Attributes:
        parity: Comparison with the source's own implementation, or None if it was not asked for.
        opened: How programs that loaded the output agree.
        departures: What they do otherwise with images.
        sha256_in: Hash of each file of the source, by its name.
        function_hash: The name of the function that was written; "" if no numbers were compared.
        changed: What was changed between the source, of which parity is, and the output.
        read: In which state the source was compared, where reading changed its numbers.
        other_sizes: How the target treats images of other sizes otherwise, or None.
    """

    parity: "ParityReport | None"
    opened: "tuple[Opened, ...]"
    departures: tuple[str, ...]
    sha256_in: Mapping[str, str]
    function_hash: str = ""
    changed: tuple[str, ...] = ()
    read: str = ""
    other_sizes: OtherSizes | None = None

    def parity_lines(self) -> list[str]:
        """The comparison with the source's own implementation, and of what that is."""
        if self.parity is None:
            return ["not asked for"]
        first, *rest = self.parity.summary().split("\n")
        compared = f"the source {self.read}".rstrip()
        if self.changed:
            return [f"{compared}, before it was changed: {first}", *rest]
        return [f"{compared}: {first}" if self.read else first, *rest]

    def opened_lines(self) -> list[str]:
        """How programs that loaded the output agree, and with what."""
        to = "the changed model" if self.changed else f"the source {self.read}" * bool(self.read)
        return [line for opened in self.opened for line in opened.summary(to=to).split("\n")]

    def to_dict(self) -> JsonDict:
        """What was compared, of the source or of the output, for `vitconvert.json` and `--json`."""
        parity = self.parity and {**self.parity.to_dict(), "of": "source"}
        return {
            "parity": parity,
            "opened_by": [opened.to_dict() for opened in self.opened],
            "other_sizes": self.other_sizes and self.other_sizes.to_dict(),
        }


def write_record(
    directory: Path,
    source: Checkpoint,
    target: Target,
    proof: Proof,
    *,
    sha256_out: Mapping[str, str],
    command: str | None,
) -> None:
    """Write the record of a conversion, which vitconvert itself reads back while it is true.

    It goes to the Hub with the weights, so it tells of no place on this machine.

    Args:
        directory: The output, with all else that is in it.
        source: What was converted.
        target: The layout that it has.
        proof: What was found out.
        sha256_out: Hash of each file of weights.
        command: What was typed.
    """
    labels, config, stated = source.own_labels, source.config, proof.to_dict()
    if parity := stated["parity"]:
        parity["source"] = published(parity["source"])
    before = source.weights.config
    kept = {field for field in config.origins if getattr(config, field) == getattr(before, field)}
    written = {
        name: sha256_out.get(name) or hash_file(directory / name) for name in files_of(directory)
    }
    origins = dict.fromkeys(config.origins, ASKED)
    for field in kept:  # a user's word is known for it without the source, too
        origin = config.origins[field]
        named = source.is_users(origin) and not origin.startswith(USER)
        origins[field] = f"{USER}: {origin}" if named else origin
    with open_weights(locate(directory), ReadOptions()) as container:
        weights = stated_weights(container)
    record = {
        "vitconvert": VERSION,
        "command": command and without_secrets(command),
        "source": source.source_record(proof.sha256_in),
        "loaded_from": source.loaded and dict(source.loaded.source),
        "target": target.table.name,
        "converted_from": dict(source.first_source) or None,
        "config": config.to_dict(),
        "origins": origins,
        "preprocessing": source.preprocessing and source.preprocessing.to_dict(),
        "text": source.text.to_dict() if source.text else None,
        "labels": labels and list(labels),
        "labels_origin": labels and labels.origin,
        "labels_assumed": bool(source.labels and source.labels.doubtful),
        "departures": list(proof.departures),
        "ledger": source.ledger.to_dict(),
        **stated,
        "function_hash": proof.function_hash or None,
        "sha256": written,
        "weights": weights,
        "files": sorted([*written, RECORD]),
    }
    write_json(directory / RECORD, record)


def first_source_line(source: Checkpoint) -> str:
    """Where a source came from before vitconvert wrote it, in words; "" if it did not."""
    return f"before, {origin}" if (origin := origin_line(source.first_source)) else ""


def origin_line(first: JsonObject) -> str:
    """The place that an entry on a source tells of, in words; "" if it tells of none."""
    told = [first.get(name) for name in ("repo", "url", "reference")]
    where = next((text for text in told if isinstance(text, str) and text), "")
    revision = first.get("revision")
    if where and isinstance(revision, str):
        where = f"{where} @ {revision[:12]}"
    return f"from {published(where)} ({first.get('dialect')})" if where else ""


def weights_metadata(source: Checkpoint, target: Target) -> dict[str, str]:
    """What the weights say of their own origin, wherever they are copied."""
    # Only what is the same on every machine, so no path and no time, and only what is known before
    # a byte is written: a local file is hashed while it is moved, and waiting for that would take
    # as long as moving it. Its hash is in vitconvert.json.
    located = source.located
    name = located.weights.name if located.weights else None
    # In a repository a file may lie in a folder.
    hashes = (digest for file, digest in located.sha256.items() if Path(file).name == name)
    stated = {
        "version": VERSION,
        "source_dialect": source.dialect,
        "target_dialect": target.table.name,
        "source_repo": located.repo,
        "source_revision": located.revision,
        "source_url": located.url and published(located.url),
        "source_sha256": next(hashes, None),
    }
    return {f"vitconvert.{key}": value for key, value in stated.items() if value}


def source_hashes(checkpoint: Checkpoint) -> Future[Mapping[str, str]]:
    """Hash what is read on another core, unless that was done when it was downloaded.

    Returns:
        File name -> sha256.
    """
    known = checkpoint.located.sha256
    if known and not checkpoint.merge:  # the files of an adapter are from elsewhere
        return in_background(lambda: known)
    return in_background(lambda: {file.name: hash_file(file) for file in sorted(checkpoint.files)})


def in_background(work: Callable[[], T]) -> Future[T]:
    """Do something on another core; whoever asks for the result waits for it."""
    done: Future[T] = Future()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # who asks for the result gets it, and waits for nothing
            done.set_exception(error)

    threading.Thread(target=do, daemon=True).start()  # so that an interrupt need not wait
    return done
