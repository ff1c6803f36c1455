"""The statement beside an output, and the signature beside that.

The statement is an in-toto Statement v1 (https://github.com/in-toto/attestation/blob/main/spec/v1),
with the fields in `docs/pages/tutorials/attested.md`. As it holds the hash of every file, it alone
is signed: by model-signing (https://github.com/sigstore/model-transparency), which others have.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint, ReadOptions, read_checkpoint
from vitconvert.conversion.output import files_of
from vitconvert.conversion.record import source_record
from vitconvert.documents import JsonDict, JsonObject, read_object, write_json
from vitconvert.errors import (
    CorruptFile,
    MissingPackage,
    SourceError,
    UsageError,
    VitConvertError,
)
from vitconvert.formats import hash_file
from vitconvert.sources import locate
from vitconvert.sources.located import RECORD, SIGNATURE, STATEMENT
from vitconvert.version import VERSION
from vitconvert.whole import require_place, require_replaceable

if TYPE_CHECKING:
    from model_signing import signing

PUBLISHED = f"attestation{STATEMENT}"  # the name among published files
TYPE = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:vitconvert:conversion:v1"
_TOLD = ("command", "target", "converted_from", "config", "ledger", "parity", "opened_by")


def place_of(directory: Path) -> Path:
    """The statement beside an output."""
    whole = directory.absolute()  # "." has a name, too
    return whole.parent / f"{whole.name}{STATEMENT}"


def signature_of(statement: Path) -> Path:
    """The signature beside a statement."""
    return statement.with_name(statement.name.removesuffix(STATEMENT) + SIGNATURE)


def found_at(directory: Path) -> Path:
    """The statement beside an output, or among the files of one that was published.

    Raises:
        SourceError: There is none.
    """
    places = place_of(directory), directory / PUBLISHED
    if found := next((place for place in places if place.is_file()), None):
        return found
    raise SourceError(
        f"There is no statement on {directory}.",
        evidence={"looked for": " and ".join(map(str, places))},
        hint="convert --attest writes one, and `hf download REPO --local-dir DIR` gets one.",
    )


def attester(
    output: Path, key: Path | None, *, reading: ReadOptions, overwrite: bool
) -> Callable[[Checkpoint, Mapping[str, str]], Path]:
    """What writes the statement once an output is written, from its source and the source's hashes.

    Args:
        output: The directory.
        key: The private key that signs, if any.
        reading: How the output is read back.
        overwrite: Replace an earlier statement and its signature.

    Raises:
        OutputExists, UsageError: The statement cannot be written, or not signed by this key.
        MissingPackage: model-signing, which signs, is not installed.
    """
    place = place_of(output)
    signature = signature_of(place)
    require_place(place)
    for path in (place, signature):
        require_replaceable(path, lambda _: _is_ours(place), overwrite=overwrite)
    signer = None if key is None else _signer(key)

    def attest(source: Checkpoint, sha256: Mapping[str, str]) -> Path:
        signature.unlink(missing_ok=True)  # of an earlier statement
        write_json(place, _statement(output, source, sha256, reading))
        if signer is not None:
            signer.sign(place.resolve(), signature)  # it refuses links
        return place

    return attest


def _is_ours(path: Path) -> bool:
    try:
        return bool(read_statement(path))
    except (VitConvertError, OSError):
        return False


def _statement(
    output: Path, source: Checkpoint, sha256: Mapping[str, str], reading: ReadOptions
) -> JsonDict:
    record = read_object(output / RECORD)
    subject = [
        {"name": name, "digest": {"sha256": hash_file(output / name)}} for name in files_of(output)
    ]
    # Of the output as it is read back, whatever the record says.
    of_output = read_checkpoint(locate(output), reading).function_hash
    predicate = {
        "source": source_record(source, sha256),
        "function": {"source": source.function_hash, "output": of_output},
        **{name: record.get(name) for name in _TOLD},
        "versions": {"vitconvert": VERSION, **{name: version(name) for name in ("torch", "numpy")}},
    }
    return {
        "_type": TYPE,
        "subject": subject,
        "predicateType": PREDICATE,
        "predicate": predicate,
    }


def read_statement(path: Path) -> JsonObject:
    """A statement, whoever signed it.

    Raises:
        SourceError, CorruptFile: There is none, or it is no statement on a conversion.
    """
    statement = read_object(path)
    try:
        typed = statement["_type"], statement["predicateType"]
        if typed != (TYPE, PREDICATE):
            raise ValueError(f"its type is {' of '.join(str(one) for one in typed)}")
        if not {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}:
            raise ValueError("it is about no file")
        stated = statement["predicate"]
        (stated["function"]["source"], stated["function"]["output"])
        stated["source"]["sha256"].values()
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as problem:
        raise CorruptFile(
            f"{path.name} is no statement on a conversion that this version reads.",
            evidence={"file": path, "problem": repr(problem)},
        ) from None
    return statement


def _signer(key: Path) -> "signing.Config":
    with _reading_key(key, "private"):
        from model_signing import signing

        return signing.Config().use_elliptic_key_signer(private_key=key)


def is_signed_by(statement: Path, public: Path) -> bool:
    """Whether the signature beside a statement is of a key, and of this statement.

    Raises:
        UsageError: The file has no such key.
        MissingPackage: model-signing is not installed.
    """
    with _reading_key(public, "public"):
        from model_signing import verifying

        verifier = verifying.Config().use_elliptic_key_verifier(public_key=public)
    try:
        # The Hub's cache is made of links; what a file is called is not signed.
        verifier.verify(statement.resolve(), signature_of(statement))
    except Exception:  # of a file that may hold anything
        return False
    return True


@contextmanager
def _reading_key(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        raise MissingPackage(
            "model-signing, which signs statements and checks that, is not installed.",
            evidence={"missing": missing.name},
            hint="pip install model-signing pyopenssl, or leave out the key.",
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as problem:
        made = "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem"
        made = made if kind == "private" else "pkey -in key.pem -pubout -out public.pem"
        raise UsageError(
            f"{path.name} is no {kind} key in PEM without a password, of the curves P-256, P-384 "
            "or P-521.",
            evidence={"file": path, "problem": problem},
            hint=f"openssl {made} makes one.",
        ) from None
