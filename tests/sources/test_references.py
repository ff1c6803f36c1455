from pathlib import Path

import pytest

from vitconvert.errors import SourceError
from vitconvert.sources import references
from vitconvert.sources.references import (
    Collection,
    HubRepo,
    LocalPath,
    NamedDownload,
    TimmName,
    WebAddress,
    parse_reference,
)


def hub(repo: str, revision: str | None = None, file: str | None = None) -> HubRepo:
    return HubRepo(repo=repo, revision=revision, file=file)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("timm:vit_tiny_patch16_224", TimmName(name="vit_tiny_patch16_224")),
        ("timm:vit_tiny_patch16_224.augreg", TimmName(name="vit_tiny_patch16_224.augreg")),
        ("google/vit-base-patch16-224", hub("google/vit-base-patch16-224")),
        ("google/vit-base-patch16-224@v1.0", hub("google/vit-base-patch16-224", "v1.0")),
        ("hf:a/b", hub("a/b")),
        ("hf://a/b", hub("a/b")),
        ("hf://models/a/b@refs/pr/7", hub("a/b", "refs/pr/7")),
        ("hf-hub:a/b@refs/pr/7", hub("a/b", "refs/pr/7")),
        ("hf:a/b/sub/model.safetensors", hub("a/b", None, "sub/model.safetensors")),
        ("hf:a/b@main/x.npz", hub("a/b", "main", "x.npz")),
        ("https://huggingface.co/a/b", hub("a/b")),
        ("https://hf.co/a/b/tree/v2", hub("a/b", "v2")),
        ("https://huggingface.co/a/b/blob/main/x.bin", hub("a/b", "main", "x.bin")),
        ("https://huggingface.co/a/b/resolve/r/s/x.bin?download=true", hub("a/b", "r", "s/x.bin")),
        ("https://example.org/a/b.pth", WebAddress(url="https://example.org/a/b.pth")),
        ("google:ViT-B_16", NamedDownload(collection="google", name="ViT-B_16")),
        (
            "google:imagenet21k+imagenet2012/ViT-B_16",
            NamedDownload(collection="google", name="imagenet21k+imagenet2012/ViT-B_16"),
        ),
        ("torchvision:vit_b_16", NamedDownload(collection="torchvision", name="vit_b_16")),
        ("vit_b_16", NamedDownload(collection="torchvision", name="vit_b_16")),
        ("ViT-B_16", NamedDownload(collection="google", name="ViT-B_16")),
        ("dino_vits8", NamedDownload(collection="dino", name="dino_vits8")),
        ("vit_base_patch16_224", TimmName(name="vit_base_patch16_224")),
        ("vit_base_patch16_224.dino", TimmName(name="vit_base_patch16_224.dino")),
    ],
)
def test_every_kind_of_reference(text: str, meaning: object) -> None:
    assert parse_reference(text) == meaning


@pytest.mark.parametrize("text", ["weights.npz", "local-dir:.", ".", "~"])
def test_what_exists_is_a_path(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.npz").touch()
    assert isinstance(parse_reference(text), LocalPath)


def test_a_path_wins_over_a_repository_of_the_same_name_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "google/vit").mkdir(parents=True)
    assert parse_reference("google/vit") == LocalPath(path=Path("google/vit"))
    assert caplog.messages == [
        "google/vit is a path here; write hf:google/vit for the Hub repository"
    ]
    assert parse_reference("hf:google/vit") == hub("google/vit")
    caplog.clear()
    for place in (
        "google/vit/checkpoint-500",
        "runs/my--vit",
        "runs/vit.git",
        "runs/1.",
    ):
        (tmp_path / place).mkdir(parents=True)
        assert parse_reference(place) == LocalPath(path=Path(place))
    for place in ("out/vit", "trained/vit/checkpoint-500"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "model.safetensors").touch()
    for place in ("out/vit", "trained/vit"):
        assert parse_reference(place) == LocalPath(path=Path(place))
    assert caplog.messages == []  # names of no repository, and folders of weights
    (tmp_path / "google/vit.pth").touch()  # no repository is a file
    assert parse_reference("google/vit.pth") == LocalPath(path=Path("google/vit.pth"))
    assert caplog.messages == []


def test_error_a_name_that_several_projects_have(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Collection(base="https://example.org/", files={"vit_s": "s.pth"}, sha256_in_name=False)
    monkeypatch.setattr(references, "collections", lambda: {"theirs": one, "others": one})
    with pytest.raises(SourceError) as caught:
        parse_reference("vit_s")
    assert caught.value.fact == "Several libraries have a model vit_s."
    assert caught.value.hint == "write theirs:vit_s or others:vit_s."


MESSAGES = {
    "": """\
  The reference is empty.
  hint: give a path, timm:NAME or hf:ORG/REPO.""",
    "weihgts.npz": """\
  There is no file or directory weihgts.npz.
  hint: did you mean weights.npz?""",
    "./nowhere/model.safetensors": """\
  There is no file or directory ./nowhere/model.safetensors.
  hint: give the path of a file or directory, or hf:ORG/REPO for the Hub.""",
    "resnet50": """\
  There is no file or directory resnet50.
  hint: timm:resnet50 for a timm model, hf:ORG/REPO for the Hub.""",
    "torchvison:vit_b_16": """\
  torchvison:vit_b_16 is neither a path that exists nor a reference of a known kind.
  kinds  timm:, hf-hub:, hf:, local-dir:, https:, google:, torchvision:, dino:
  hint: did you mean torchvision:vit_b_16?""",
    "hf:vit": """\
  hf:vit names no Hub repository.
  hint: write hf:ORG/REPO, or hf:ORG/REPO/FILE""",
    "local-dir:gone": """\
  There is no file or directory gone.
  hint: timm:gone for a timm model, hf:ORG/REPO for the Hub.""",
    "link.safetensors": """\
  link.safetensors is a link to what is not there.
  link      link.safetensors
  leads to  ../../blobs/0a1b
  hint: in a cache of downloads, the download was not finished: get it again.""",
}


@pytest.mark.parametrize("text", MESSAGES)
def test_error_messages(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.npz").touch()
    (tmp_path / "link.safetensors").symlink_to("../../blobs/0a1b")
    with pytest.raises(SourceError) as caught:
        parse_reference(text)
    assert str(caught.value) == f"error: source-not-found\n{MESSAGES[text]}"
