from pathlib import Path

import pytest
from PIL import Image

from vitconvert.preprocessing.finding import find_images


@pytest.fixture
def folder(tmp_path):
    for name in ("b.JPG", "a.png", "note.txt", ".hidden.png", "c/d.webp", "c/e/f.jpeg", "[x].png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def names(folder: Path, *sources: str, recursive: bool = False) -> list[str]:
    found = find_images([str(folder / source) for source in sources], recursive=recursive)
    return [path.relative_to(folder).as_posix() for path in found if isinstance(path, Path)]


def test_a_folder_gives_its_images_by_name(folder):
    assert names(folder, ".") == ["[x].png", "a.png", "b.JPG"]


def test_folders_of_folders_only_when_told(folder):
    assert names(folder, ".", recursive=True) == [
        "[x].png",
        "a.png",
        "b.JPG",
        "c/d.webp",
        "c/e/f.jpeg",
    ]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.png", ["[x].png", "a.png"]),
        ("**/*.[wj]*", ["c/d.webp", "c/e/f.jpeg"]),
        ("note.*", ["note.txt"]),
        ("?", []),
        ("[x].png", ["[x].png"]),  # there is such a file
    ],
)
def test_a_pattern_gives_what_it_matches(folder, pattern, found):
    assert names(folder, pattern) == (found or [pattern])


def test_a_pattern_that_matches_a_folder_looks_into_it_when_told(folder):
    assert names(folder, "?", recursive=True) == ["c/d.webp", "c/e/f.jpeg"]


def test_what_leads_to_no_image_is_kept(folder):
    (folder / "empty").mkdir()
    assert names(folder, "gone.png", "empty", "*.gif", "note.txt") == [
        "gone.png",
        "empty",
        "*.gif",
        "note.txt",
    ]


def test_one_source_need_not_be_in_a_list(folder):
    image = Image.new("RGB", (2, 2))
    assert list(find_images(image)) == [image]
    assert list(find_images(str(folder / "a.png"))) == list(find_images(folder / "a.png"))


def test_sources_are_looked_at_as_they_are_needed(folder):
    found = find_images(iter([folder / "a.png", image := Image.new("RGB", (2, 2))]))
    assert next(found) == folder / "a.png"
    assert next(found) is image


def test_folders_that_link_to_themselves_are_looked_into_once(folder):
    for name in ("again", "c/once more", "c/e/and again"):
        (folder / name).symlink_to(folder)
    found = ["[x].png", "a.png", "b.JPG", "c/d.webp", "c/e/f.jpeg"]
    # By which of its names a folder is found first does not matter.
    assert sorted(Path(name).name for name in names(folder, ".", recursive=True)) == sorted(
        Path(name).name for name in found
    )
    assert len(names(folder, "**/*.[wj]*")) == 2


def test_a_pattern_may_end_in_any_folder(folder):
    assert names(folder, "c/**") == ["c/d.webp", "c/e/f.jpeg"]


def test_names_that_no_disk_can_hold_are_kept(folder):
    long = "x" * 5000
    assert [str(path) for path in find_images([long, f"{long}*"])] == [long, f"{long}*"]
