"""Addresses where files are read or written: refused, and without the secrets that are in them."""

from pathlib import Path

import pytest

import vitconvert
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import UsageError, without_secrets

SECRETS = ("s3://KEY:TOLD@bucket/x", "https://host:9/x?token=TOLD", "https://a/x?X-Amz-Sig=TOLD")
READ = {
    "predict": ("predict", DIGITS, "{}"),
    "attention": ("attention", DIGITS, "{}", "-o", "maps"),
    "embed, a file": ("embed", DIGITS, "{}", "-o", "x.npz"),
    "verify --images": ("verify", DIGITS, "--images", "{}"),
    "export --images": ("export", DIGITS, "--to", "pt2", "--images", "{}"),
    "--labels": ("predict", DIGITS, DIGITS / "samples" / "3.png", "--labels", "{}"),
    "--preprocessor": ("predict", DIGITS, DIGITS / "samples" / "3.png", "--preprocessor", "{}"),
}
WRITTEN = {
    "convert": ("convert", DIGITS, "--to", "hf", "-o", "{}"),
    "export": ("export", DIGITS, "--to", "pt2", "-o", "{}.pt2"),
    "golden": ("golden", DIGITS, "-o", "{}.golden"),
    "golden --pixels": ("golden", DIGITS, "--pixels", "-o", "{}"),
    "attention": ("attention", DIGITS, DIGITS / "samples" / "3.png", "-o", "{}"),
}


@pytest.mark.parametrize("address", SECRETS)
@pytest.mark.parametrize("typed", [*READ.values(), *WRITTEN.values()])
def test_an_address_is_no_path(typed, address, run, tmp_path, monkeypatch):
    """Path() makes a folder `s3:` of it, in which outputs would lie that nobody looks for there."""
    monkeypatch.chdir(tmp_path)
    place = {"{}": address, "{}.pt2": address + ".pt2", "{}.golden": address + ".golden"}
    code, out, err = run(*(place.get(str(word), word) for word in typed))
    assert code in (1, 2)
    assert "address" in err
    assert "TOLD" not in out + err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("address", SECRETS)
def test_nor_in_python(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda: vitconvert.convert(DIGITS, to="hf", output=Path(address)),
        lambda: list(vitconvert.predict(DIGITS, address)),
        lambda: list(vitconvert.embed(DIGITS, [Path(address)])),
        lambda: vitconvert.record_golden(DIGITS, f"{address}.golden"),
    ):
        with pytest.raises(UsageError, match="address") as caught:
            call()
        assert "TOLD" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3:/KEY:TOLD@bucket/x", "s3:/bucket/x"),
        ("https:/host:9/x?token=TOLD", "https:/host:9/x"),
        ("see https://me:TOLD@host/x?a=TOLD and s3:/k:TOLD@b", "see https://host/x and s3:/b"),
        (r"C:/photos/a?b", r"C:/photos/a?b"),
        ("photos/a?b.jpg", "photos/a?b.jpg"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
    ],
)
def test_secrets_go_also_where_a_path_lost_a_slash(text, shown):
    assert without_secrets(text) == shown
