"""Statements on conversions: each way to break one is told apart from the others."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitconvert
from tests.adapters.writing import VIT, saved
from tests.packages import timm
from tests.parity import team
from tests.quantised.writers import save_base, save_quantised
from tests.small_models import SMALL_TIMM, randomise
from vitconvert.attesting.check import check_attestation
from vitconvert.checkpoint import ReadOptions
from vitconvert.cli import main
from vitconvert.errors import CorruptFile, MissingPackage, OutputExists, SourceError, UsageError
from vitconvert.formats import hash_file

pytest.importorskip("model_signing")  # of the extra `signed`, with cryptography
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
PEM = serialization.Encoding.PEM
SIZES = SMALL_TIMM | {"img_size": 48}


def save_key(path, key=None):
    key = key or ec.generate_private_key(ec.SECP256R1())
    none = serialization.NoEncryption()
    path.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, none))
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(PEM, spki))
    return path


WRONG = "signature: wrong signature: not of the key in "


def save_model(folder, seed):
    torch.manual_seed(seed)
    model = randomise(timm.create_model("vit_tiny_patch16_224", **SIZES))
    timm.models.save_for_hf(model, folder, model_args=SIZES, safe_serialization=True)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A source, another one, a key, and what was converted and attested."""
    folder = tmp_path_factory.mktemp("made")
    source = save_model(folder / "source", seed=0)
    save_model(folder / "other", seed=1)
    key = save_key(folder / "key.pem")
    vitconvert.convert(source, to="hf", output=folder / "out", verify=False, sign_with=key)
    return folder


@pytest.fixture
def at(made, tmp_path):
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


def wrong(at, **how):
    if source := how.pop("source", None):
        how["source"] = vitconvert.load_checkpoint(source)
    done = check_attestation(at / "out", **how)
    told = [f"{one.about}: {one.text}" for one in done.findings if one.ok is False]
    assert done.ok == (not told)
    return told


def restated(at, change):
    """The statement after a change, which nobody signed, and true of the files that are there."""
    place = at / "out.intoto.json"
    statement = json.loads(place.read_text())
    for one in statement["subject"]:
        one["digest"]["sha256"] = hash_file(at / "out" / one["name"])
    change(statement)
    place.write_text(json.dumps(statement))


def other_weights(at):
    file = at / "out" / "model.safetensors"
    tensors = load_file(file)
    tensors["classifier.bias"] += 1
    save_file(tensors, file, {"format": "pt"})


def test_what_was_attested_holds(at):
    done = check_attestation(at / "out", public_key=at / "key.pub")
    assert done.ok and [one.ok for one in done.findings] == [True] * 3
    assert wrong(at) == []
    predicate = json.loads((at / "out.intoto.json").read_text())["predicate"]
    name = vitconvert.load_checkpoint(at / "source").function_hash
    assert predicate["function"] == {"source": name, "output": name}
    digest = hash_file(at / "source" / "model.safetensors")
    assert predicate["source"]["sha256"]["model.safetensors"] == digest
    assert predicate["ledger"]["used"] == 32


def test_a_tampered_file_is_no_other_function(at):
    (at / "out" / "README.md").write_text("better")
    (at / "out" / "notes.txt").write_text("")
    (at / "out" / ".gitattributes").write_text("")
    (at / "out" / "preprocessor_config.json").unlink()
    missing, added, tampered = wrong(at, public_key=at / "key.pub")
    assert missing == "files: missing file: preprocessor_config.json"
    assert added == "files: added file: notes.txt"
    assert tampered.startswith("files: tampered file: README.md has sha256 ")


def test_another_function_of_files_as_stated(at):
    other_weights(at)
    restated(at, lambda statement: None)
    (told,) = wrong(at)
    assert told.startswith("function: another function: vit1:")
    assert wrong(at, public_key=at / "key.pub") == [
        f"{WRONG}key.pub, or of another statement",
        told,
    ]
    (at / "out.intoto.sig").unlink()
    assert wrong(at, public_key=at / "key.pub") == ["signature: there is none", told]
    assert wrong(at) == [told]


def test_damaged_weights_are_told(at):
    (at / "out" / "model.safetensors").write_bytes(b"nothing")
    tampered, unread = wrong(at)
    assert tampered.startswith("files: tampered file: model.safetensors")
    assert unread.startswith("function: no function can be read: ")


def test_a_swapped_source_is_told(at):
    source, function = wrong(at, source=at / "other")[:2]
    assert source == "source: another source: no file of it has model.safetensors's sha256"
    assert function.startswith("source: another function: vit1:")


def test_another_file_of_the_same_source_function(at):
    file = at / "source" / "model.safetensors"
    save_file(load_file(file), file, {"format": "pt", "by": "somebody"})
    assert wrong(at, source=at / "source") == [
        "source: another source: no file of it has model.safetensors's sha256"
    ]


def test_parity_is_computed_again(at):
    checkpoint = vitconvert.load_checkpoint(at / "source")
    done = check_attestation(at / "out", source=checkpoint)
    assert done.ok
    again = [one.text for one in done.findings if one.about == "parity"]
    assert again[0].startswith("of the source, computed again: equal to timm")
    assert again[1].startswith("of the output, computed again: equal to transformers")


def test_a_signature_is_of_one_key_and_one_statement(at):
    other = save_key(at / "other.pem").with_suffix(".pub")
    assert wrong(at, public_key=other) == [f"{WRONG}other.pub, or of another statement"]
    assert check_attestation(at / "out").findings[0].text.startswith("there is one, and no key")
    place = at / "out.intoto.json"
    place.write_text(place.read_text().replace('"hf_vit"', '"hf_git"'))
    (told,) = wrong(at, public_key=at / "key.pub")
    assert told.startswith(WRONG)


def test_a_signature_by_model_signings_own_command_is_one(at):
    restated(at, lambda statement: None)
    assert wrong(at, public_key=at / "key.pub")[0].startswith(WRONG)
    place = ["out.intoto.json", "--signature", "out.intoto.sig", "--private_key", "key.pem"]
    typed = [sys.executable, "-m", "model_signing", "sign", "key", *place]
    subprocess.run(typed, cwd=at, check=True)
    assert wrong(at, public_key=at / "key.pub") == []


def test_what_was_signed_is_replaced_with_its_signature(at):
    again = {"to": "hf", "output": at / "out", "overwrite": True, "verify": False, "attest": True}
    vitconvert.convert(at / "other", **again)
    assert not (at / "out.intoto.sig").exists()
    assert wrong(at, public_key=at / "key.pub") == ["signature: there is none"]
    (at / "out.intoto.json").unlink()
    (at / "out.intoto.sig").write_text("somebody's")
    with pytest.raises(OutputExists, match="vitconvert did not write what lies there"):
        vitconvert.convert(at / "other", **again)


def test_keys_and_statements_that_are_none(at):
    save_key(at / "ed.pem", ed25519.Ed25519PrivateKey.generate())
    save_key(at / "koblitz.pem", ec.generate_private_key(ec.SECP256K1()))
    key = serialization.load_pem_private_key((at / "key.pem").read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    pkcs8 = serialization.PrivateFormat.PKCS8
    (at / "locked.pem").write_bytes(key.private_bytes(PEM, pkcs8, secret))
    for name in ("absent.pem", "ed.pem", "koblitz.pem", "locked.pem", "key.pub"):
        with pytest.raises(UsageError, match=f"{name} is no private key in PEM without a password"):
            vitconvert.convert(at / "source", to="hf", output=at / "new", sign_with=at / name)
    assert not (at / "new").exists()
    for name in ("absent.pem", "ed.pub", "key.pem", "out.intoto.sig"):
        with pytest.raises(UsageError, match=f"{name} is no public key in PEM without") as told:
            check_attestation(at / "out", public_key=at / name)
        assert "pkey -in key.pem -pubout" in str(told.value)
    restated(at, lambda statement: statement.update(predicateType="urn:other"))
    with pytest.raises(CorruptFile, match="no statement on a conversion"):
        check_attestation(at / "out")
    with pytest.raises(OutputExists):  # it is not ours any more
        vitconvert.convert(
            at / "source", to="hf", output=at / "out", overwrite=True, attest=True, verify=False
        )
    (at / "out.intoto.json").unlink()
    with pytest.raises(SourceError, match="There is no statement on"):
        check_attestation(at / "out")


@pytest.mark.parametrize(
    "change",
    [
        lambda statement: statement["subject"].append({"name": "a"}),
        lambda statement: statement["subject"].clear(),
        lambda statement: statement["predicate"]["function"].pop("source"),
        lambda statement: statement["predicate"].update(source=[]),
    ],
)
def test_statements_that_lack_a_part_are_none(change, at):
    restated(at, change)
    with pytest.raises(CorruptFile, match="no statement on a conversion"):
        check_attestation(at / "out")


@pytest.mark.parametrize("signatures", [None, 3, [], [{}], [{"sig": "AA"}], [{"sig": None}]])
def test_signatures_that_are_none_are_wrong(signatures, at):
    place = at / "out.intoto.sig"
    bundle = json.loads(place.read_text())
    bundle["dsseEnvelope"]["signatures"] = signatures
    place.write_text(json.dumps(bundle))
    (told,) = wrong(at, public_key=at / "key.pub")
    assert told.startswith(WRONG)


@pytest.mark.parametrize("text", ["", "[]", "{}", "\0", '{"verificationMaterial": {}}'])
def test_files_that_are_no_signatures_are_wrong(text, at):
    (at / "out.intoto.sig").write_text(text)
    (told,) = wrong(at, public_key=at / "key.pub")
    assert told.startswith(WRONG)


def test_without_model_signing_a_key_is_refused_and_no_key_needs_it(at, monkeypatch):
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(MissingPackage, match="model-signing, which signs statements") as told:
        vitconvert.convert(at / "source", to="hf", output=at / "new", sign_with=at / "key.pem")
    assert "pip install model-signing pyopenssl" in str(told.value)
    assert not (at / "new").exists()
    with pytest.raises(MissingPackage, match="model-signing, which signs statements"):
        check_attestation(at / "out", public_key=at / "key.pub")
    assert wrong(at) == []


def test_a_statement_that_was_published_lies_among_the_files(at):
    for name in ("intoto.json", "intoto.sig"):  # the Hub's cache has links
        blob = (at / f"out.{name}").rename(at / f"blob.{name[-4:]}")
        (at / "out" / f"attestation.{name}").symlink_to(blob)
    assert wrong(at, public_key=at / "key.pub") == []
    other_weights(at)
    assert wrong(at)[0].startswith("files: tampered file: model.safetensors")


def test_an_output_by_a_table_of_ones_own(at):
    (at / "team.toml").write_text(team.TABLE)
    table = {"table": at / "team.toml"}
    vitconvert.convert(
        at / "source", to="team", output=at / "ours", attest=True, verify=False, **table
    )
    assert check_attestation(at / "ours", reading=ReadOptions(**table)).ok
    unread = check_attestation(at / "ours").findings[-1]
    assert not unread.ok and unread.text.startswith("no function can be read: ")


def told_of(place, source):
    done = check_attestation(place, source=source)
    return done, [one.text for one in done.findings if one.ok is None and one.about == "function"]


def test_what_was_changed_on_purpose_is_told(at):
    changes = {"dtype": torch.float16, "attest": True, "verify": False}
    vitconvert.convert(at / "source", to="hf", output=at / "half", **changes)
    done, (told,) = told_of(at / "half", None)
    assert done.ok
    assert told.startswith("not the source's, as the statement says: ")
    assert "float16" in told


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of PEFT
def test_a_merged_adapter_is_part_of_the_source(tmp_path):
    base, adapter, _ = saved(VIT.model(), tmp_path, target_modules=["q_proj"], bias="lora_only")
    place = tmp_path / "merged"
    vitconvert.convert(base, to="hf", output=place, adapter=adapter, attest=True, verify=False)
    with_adapter = vitconvert.load_checkpoint(base, adapter=adapter)
    assert check_attestation(place, source=with_adapter).ok
    done = check_attestation(place, source=vitconvert.load_checkpoint(base))
    wrong = [one.text for one in done.findings if one.ok is False]
    assert wrong[:2] == [
        "another source: no file of it has adapter_config.json's sha256",
        "another source: no file of it has adapter_model.safetensors's sha256",
    ]
    assert wrong[2].startswith("another function: vit1:")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torchao
def test_a_quantised_source_is_attested_as_what_it_computes(tmp_path):
    pytest.importorskip("torchao")
    save_quantised(save_base(tmp_path / "base"), tmp_path / "quantised", "int8")
    source = vitconvert.load_checkpoint(tmp_path / "quantised", dequantise="float32")
    place = tmp_path / "out"
    vitconvert.convert(source, to="hf", output=place, attest=True, verify=False)
    done, told = told_of(place, source)
    assert done.ok and not told
    (at_once,) = (one for one in done.findings if one.about == "function")
    assert at_once.text.startswith(source.function_hash)
    done = check_attestation(place, source=vitconvert.load_checkpoint(tmp_path / "base"))
    wrong = [one.text.split(":")[0] for one in done.findings if one.ok is False]
    assert {*wrong} == {"another source", "another function"}


def test_the_command_line_says_so(at, capsys, monkeypatch):
    monkeypatch.chdir(at)
    (at / "out" / "README.md").write_text("better")
    codes = []
    for typed in (
        ["verify", "out", "--attestation", "-q"],
        ["verify", "out", "--attestation", "--seed", "1"],
        ["verify", "out", "--public-key", "key.pub"],
        ["verify", "out", "--attestation", "--table-against", "key.pub"],
    ):
        with pytest.raises(SystemExit) as exit_:
            main(typed)
        codes.append(exit_.value.code)
    told = capsys.readouterr()
    assert codes == [3, 2, 2, 2] and told.out == "not as attested\n"
    assert "--seed is about a comparison" in told.err
    assert "--public-key is about a statement" in told.err
    assert "--table-against is about reading a checkpoint, and --against is missing" in told.err
