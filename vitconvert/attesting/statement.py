"""The statement beside an output, and its signature.

An unsigned one is an in-toto Statement v1 (https://github.com/in-toto/attestation/blob/main/spec/v1),
a signed one a DSSE envelope of it (https://github.com/secure-systems-lab/dsse) with an Ed25519 key:
what sigstore's bundles hold inside, and offline. `docs/pages/tutorials/attested.md` has the fields.
"""

import base64
import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint, ReadOptions, read_checkpoint
from vitconvert.conversion.output import files_of
from vitconvert.conversion.record import source_record
from vitconvert.documents import JsonDict, JsonObject, parse_object, read_object, write_json
from vitconvert.errors import (
    CorruptFile,
    MissingPackage,
    SourceError,
    UsageError,
    VitConvertError,
)
from vitconvert.formats import hash_file
from vitconvert.sources import locate
from vitconvert.sources.located import RECORD, STATEMENT
from vitconvert.version import VERSION
from vitconvert.whole import require_place, require_replaceable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

PUBLISHED = f"attestation{STATEMENT}"  # the name among published files
TYPE = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:vitconvert:conversion:v1"
_PAYLOAD = "application/vnd.in-toto+json"
_TOLD = ("command", "target", "converted_from", "config", "ledger", "parity", "opened_by")


def place_of(directory: Path) -> Path:
    """The statement beside an output."""
    whole = directory.absolute()  # "." has a name, too
    return whole.parent / f"{whole.name}{STATEMENT}"


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
        overwrite: Replace an earlier statement.

    Raises:
        OutputExists, UsageError: The statement cannot be written, or not signed by this key.
        MissingPackage: cryptography, which signs, is not installed.
    """
    place = place_of(output)
    require_place(place)
    require_replaceable(place, _is_ours, overwrite=overwrite)
    private = None if key is None else private_key(key)

    def attest(source: Checkpoint, sha256: Mapping[str, str]) -> Path:
        statement = _statement(output, source, sha256, reading)
        write_json(place, statement if private is None else signed(statement, private))
        return place

    return attest


def _is_ours(path: Path) -> bool:
    try:
        return bool(read_statement(path)[0])
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


def read_statement(path: Path) -> tuple[JsonObject, JsonObject]:
    """A statement, and the envelope that it came in; {} if it is unsigned.

    Raises:
        SourceError, CorruptFile: There is none, or it is no statement on a conversion.
    """
    found = read_object(path)
    envelope = found if "payloadType" in found else {}
    try:
        statement = parse_object(base64.b64decode(envelope["payload"])) if envelope else found
        typed = statement["_type"], statement["predicateType"], envelope.get("payloadType")
        if typed != (TYPE, PREDICATE, _PAYLOAD if envelope else None):
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
    return statement, envelope


def signed(statement: JsonObject, key: "Ed25519PrivateKey") -> JsonDict:
    """The DSSE envelope of a statement."""
    body = json.dumps(statement, ensure_ascii=False, separators=(",", ":")).encode()
    signature = base64.b64encode(key.sign(_to_sign(body))).decode()
    return {
        "payload": base64.b64encode(body).decode(),
        "payloadType": _PAYLOAD,
        "signatures": [{"keyid": "", "sig": signature}],
    }


def _to_sign(body: bytes) -> bytes:
    """DSSE's encoding, "PAE": no other text of two parts is the same bytes."""
    return b" ".join([b"DSSEv1", b"%d" % len(_PAYLOAD), _PAYLOAD.encode(), b"%d" % len(body), body])


def is_signed_by(envelope: JsonObject, public: Path) -> bool:
    """Whether an envelope has a signature of a key.

    Raises:
        UsageError: The file has no such key.
        MissingPackage: cryptography is not installed.
    """
    key = public_key(public)
    from cryptography.exceptions import InvalidSignature

    body = base64.b64decode(envelope["payload"])
    signatures = envelope.get("signatures")
    for signature in signatures if isinstance(signatures, list) else ():
        try:
            key.verify(base64.b64decode(signature["sig"]), _to_sign(body))
        except (InvalidSignature, ValueError, KeyError, TypeError):
            continue
        return True
    return False


def private_key(path: Path) -> "Ed25519PrivateKey":
    """The private key in a file; UsageError if there is none."""
    key = _read_key(path, "private")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path, "private", type(key).__name__)
    return key


def public_key(path: Path) -> "Ed25519PublicKey":
    """The public key in a file; UsageError if there is none."""
    key = _read_key(path, "public")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path, "public", type(key).__name__)
    return key


def _read_key(path: Path, kind: str) -> object:
    try:
        from cryptography.hazmat.primitives.serialization import (
            load_pem_private_key,
            load_pem_public_key,
        )
    except ModuleNotFoundError:
        raise MissingPackage(
            "cryptography, which signs statements, is not installed.",
            hint="pip install cryptography, or leave out the key.",
        ) from None
    try:
        text = path.read_bytes()
        return load_pem_public_key(text) if kind == "public" else load_pem_private_key(text, None)
    except (OSError, ValueError, TypeError) as error:
        raise _no_key(path, kind, error) from None


def _no_key(path: Path, kind: str, problem: object) -> UsageError:
    return UsageError(
        f"{path.name} is no {kind} Ed25519 key in PEM without a password.",
        evidence={"file": path, "problem": problem},
        hint="openssl genpkey -algorithm ed25519 -out key.pem makes one.",
    )
