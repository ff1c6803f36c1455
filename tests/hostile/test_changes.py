"""A source that somebody changes, replaces or removes while it is converted."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import vitconvert
from tests.sampling import sampled
from vitconvert.conversion import convert as export
from vitconvert.demo.demonstration import DIGITS
from vitconvert.errors import IntegrityError, VitConvertError
from vitconvert.sources import locate


@pytest.fixture
def source(tmp_path: Path) -> Path:
    place = tmp_path / "source"
    shutil.copytree(DIGITS, place)
    return place


def replaced(path: Path) -> None:
    """Another file of the same size, with the same time, under the same name."""
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    status = path.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


def written_to(path: Path) -> None:
    """The same file with other bytes."""
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def removed(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", sampled([replaced, written_to, longer, removed], 4, "slow"))
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vitconvert.json"])
@pytest.mark.parametrize("when", ["choose_target", "write_card"])
def test_what_changes_meanwhile_is_not_converted(when, name, change, source, tmp_path, monkeypatch):
    step = getattr(export, when)

    def stepped(*args: object, **kwargs: object) -> object:
        change(source / name)
        return step(*args, **kwargs)

    monkeypatch.setattr(export, when, stepped)
    with pytest.raises(IntegrityError) as caught:
        vitconvert.convert(source, to="hf", output=tmp_path / "out", verify=False)
    told = "removed" if change is removed else "changed"
    assert str(caught.value) == (
        f"error: hash-mismatch\n  {name} was {told} since it was opened.\n"
        f"  file  {source / name}\n"
        "  What was read of it may be of two files, so nothing was written.\n"
        "  hint: run again when nobody writes there."
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_what_is_beside_may_change(source, tmp_path, monkeypatch):
    step = export.write_card

    def stepped(*args: object, **kwargs: object) -> None:
        longer(source / "README.md")
        step(*args, **kwargs)

    monkeypatch.setattr(export, "write_card", stepped)
    vitconvert.convert(source, to="hf", output=tmp_path / "out", verify=False)
    assert (tmp_path / "out" / "vitconvert.json").is_file()


def test_a_shard_that_changes_is_told(tmp_path, monkeypatch):
    shards = tmp_path / "shards"
    vitconvert.convert(DIGITS, to="hf", output=shards, max_shard_size="100KB", verify=False)
    first = min(shards.glob("model-*.safetensors"))
    step = export.write_card

    def stepped(*args: object, **kwargs: object) -> None:
        replaced(first)
        step(*args, **kwargs)

    monkeypatch.setattr(export, "write_card", stepped)
    with pytest.raises(VitConvertError, match=first.name):
        vitconvert.convert(shards, to="timm", output=tmp_path / "out", verify=False)
    assert not (tmp_path / "out").exists()


def test_an_address_tells_no_secret(source, tmp_path, monkeypatch):
    located = locate(source)
    address = "https://user:pass@example.org/vit.safetensors?token=secret#part"
    with_address = replace(located, reference=address, url=address)
    vitconvert.convert(with_address, to="timm", output=tmp_path / "out", verify=False)
    for name in ("vitconvert.json", "README.md", "model.safetensors"):
        text = (tmp_path / "out" / name).read_bytes()
        assert b"pass" not in text.replace(b"passed_over", b"")
        assert b"secret" not in text
    record = json.loads((tmp_path / "out" / "vitconvert.json").read_text())
    assert record["source"]["url"] == "https://example.org/vit.safetensors"
