from pathlib import Path

import pytest

from vitconvert.errors import UsageError
from vitconvert.sources import Located, locate


def test_a_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    path.touch()
    assert locate(path) == locate(str(path)) == Located(reference=str(path), weights=path)


@pytest.mark.parametrize("config", ["config.json", "open_clip_config.json"])
def test_a_directory_and_a_file_in_it_know_what_lies_beside(tmp_path: Path, config: str) -> None:
    weights = tmp_path / "model.safetensors"
    for name in (weights.name, config, "preprocessor_config.json", "vitconvert.json"):
        (tmp_path / name).touch()
    for reference, path in (
        (str(weights), weights),
        (str(tmp_path), tmp_path),
        (f"local-dir:{tmp_path}", tmp_path),
    ):
        assert locate(reference) == Located(
            reference=reference,
            weights=path,
            config=tmp_path / config,
            preprocessor=tmp_path / "preprocessor_config.json",
            own=tmp_path / "vitconvert.json",
        )


def test_error_revision_of_a_path(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        locate(tmp_path, revision="main")
    assert str(caught.value) == (
        f"error: usage\n  {tmp_path} has no revisions.\n"
        "  hint: leave out --revision, which is for repositories of the Hub."
    )
