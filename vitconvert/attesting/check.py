"""Whether an output is what its statement says: the files, the function, the source, the parity."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitconvert.attesting.statement import (
    PUBLISHED,
    found_at,
    is_signed_by,
    read_statement,
    signature_of,
)
from vitconvert.checkpoint import Checkpoint, ReadOptions, read_checkpoint
from vitconvert.conversion.output import files_of
from vitconvert.conversion.record import source_hashes
from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import VitConvertError
from vitconvert.formats import hash_file
from vitconvert.sources import locate


@dataclass(frozen=True)
class Finding:
    """What came of one check: about what, whether it holds (None: it was not checked), and why."""

    about: str
    ok: bool | None
    text: str


@dataclass(frozen=True)
class Attested:
    """What came of all checks of a statement."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether everything that was checked holds."""
        return all(finding.ok is not False for finding in self.findings)

    def to_dict(self) -> JsonDict:
        """For `--json`."""
        return {"findings": [vars(finding) for finding in self.findings]}


def check_attestation(
    directory: Path,
    *,
    source: Checkpoint | None = None,
    public_key: Path | None = None,
    reading: ReadOptions | None = None,
) -> Attested:
    """Check an output by the statement beside it, or in it where it was published.

    Args:
        directory: The output.
        source: What it was converted from: its files are compared, and parity is computed again.
        public_key: Of whom the signature has to be.
        reading: How the output is read, such as by a table of one's own.

    Raises:
        SourceError, CorruptFile: There is no statement, or none on a conversion.
        UsageError, MissingPackage: The key cannot be read.
    """
    place = found_at(directory)
    statement = read_statement(place)
    predicate = statement["predicate"]
    findings = [check_signature(place, public_key), *check_files(directory, statement)]
    sides = {"source": source}
    try:
        output = read_checkpoint(locate(directory), reading)
        findings += check_function(output, predicate)
        sides["output"] = output
    except VitConvertError as error:
        findings.append(Finding("function", False, f"no function can be read: {error.fact}"))
    if source is not None:
        findings += check_source(source, predicate)
        findings += [_parity(name, one) for name, one in sides.items() if one is not None]
    return Attested(tuple(findings))


def check_signature(statement: Path, public_key: Path | None) -> Finding:
    """Whether a statement is signed, and by whom."""
    if not signature_of(statement).is_file():
        return Finding("signature", None if public_key is None else False, "there is none")
    if public_key is None:
        return Finding("signature", None, "there is one, and no key was given to check it by")
    if is_signed_by(statement, public_key):
        return Finding("signature", True, f"of the key in {public_key.name}")
    text = f"wrong signature: not of the key in {public_key.name}, or of another statement"
    return Finding("signature", False, text)


def check_files(directory: Path, statement: JsonObject, editable: str = "") -> Iterator[Finding]:
    """Whether the files are those that were attested, and no others; one may be edited since."""
    attested = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    # What tools of Git and the Hub leave in a folder begins with a dot.
    ours = PUBLISHED, signature_of(Path(PUBLISHED)).name
    found = [name for name in files_of(directory) if name[0] != "." and name not in ours]
    wrong = [f"missing file: {name}" for name in attested if name not in found]
    wrong += [f"added file: {name}" for name in found if name not in attested]
    for name in found:
        digest = hash_file(directory / name)
        if attested.get(name, digest) != digest and name != editable:
            wrong.append(f"tampered file: {name} has sha256 {digest}, not {attested[name]}")
    yield from (Finding("files", False, text) for text in wrong)
    if not wrong:
        yield Finding("files", True, f"all {len(attested)} have the sha256 that was attested")


def check_function(output: Checkpoint, predicate: JsonObject) -> Iterator[Finding]:
    """Whether the files compute what was attested, and whether that is what the source computes."""
    found, attested = output.function_hash, predicate["function"]["output"]
    same = found == attested
    text = f"{found}, computed again" if same else f"another function: {found}, not {attested}"
    yield Finding("function", same, text)
    if attested != predicate["function"]["source"]:
        ledger = predicate.get("ledger")
        changed = ledger.get("changed") if isinstance(ledger, dict) else None
        told = "; ".join(map(str, changed)) if isinstance(changed, list) else "by what is not said"
        yield Finding("function", None, f"not the source's, as the statement says: {told}")


def check_source(source: Checkpoint, predicate: JsonObject) -> Iterator[Finding]:
    """Whether a source is the one that was converted."""
    attested, found = predicate["source"]["sha256"], source_hashes(source)()
    wrong = [name for name, digest in attested.items() if digest not in found.values()]
    for name in wrong:
        yield Finding("source", False, f"another source: no file of it has {name}'s sha256")
    if not wrong:
        yield Finding("source", True, "the files that were converted")
    computed, function = source.function_hash, predicate["function"]["source"]
    same = computed == function
    text = (
        f"{computed}, computed again" if same else f"another function: {computed}, not {function}"
    )
    yield Finding("source", same, text)


def _parity(name: str, checkpoint: Checkpoint) -> Finding:
    """Source or output, compared with its own project's implementation, as then."""
    from vitconvert.parity.verification import verify_checkpoint

    try:
        report = verify_checkpoint(checkpoint, briefly=True)
    except VitConvertError as error:
        return Finding("parity", False, f"of the {name}: {error.fact}")
    text = f"of the {name}, computed again: {report.summary().splitlines()[0]}"
    return Finding("parity", report.ok if report.verified else None, text)
