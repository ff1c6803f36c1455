import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.packages import timm
from vitconvert.errors import ConflictingFact
from vitconvert.labels import Labels, assumed_labels, stated_labels


def test_a_thousand_classes_are_assumed_to_be_timms_imagenet() -> None:
    labels = assumed_labels(1000)
    assert labels is not None
    assert list(labels) == timm.data.ImageNetInfo("imagenet-1k").label_descriptions()
    assert labels[0] == "tench, Tinca tinca"
    assert labels.assumed
    assert labels.origin == "ImageNet-1k, as timm orders it"


@pytest.mark.parametrize("num_classes", [0, 10, 999, 11821, 21841, 21843])
def test_no_other_head_gets_assumed_names(num_classes: int) -> None:
    assert assumed_labels(num_classes) is None


def test_the_checkpoints_own_names_and_where_they_are_from() -> None:
    names = {str(i): f"thing {i}" for i in reversed(range(1000))}
    labels = stated_labels(1000, names, origin="my/config.json")
    assert labels is not None
    assert (labels[0], labels[999]) == ("thing 0", "thing 999")
    assert not labels.assumed
    assert labels.origin == "my/config.json"


def test_keys_may_be_numbers_and_names_a_list() -> None:
    assert stated_labels(2, {1: "dog", 0: "cat"}) == ("cat", "dog")
    assert stated_labels(2, ["cat", "dog"]) == ("cat", "dog")


def test_timms_descriptions_replace_its_names() -> None:
    descriptions = {"n02": "dog, domestic dog"}
    assert stated_labels(2, ["n01", "n02"], descriptions=descriptions) == (
        "n01",
        "dog, domestic dog",
    )


def test_placeholders_are_no_names() -> None:
    placeholders = {i: f"LABEL_{i}" for i in range(1000)}
    assert stated_labels(1000, placeholders) is None
    assert stated_labels(10, {0: "LABEL_0", 1: "LABEL_1"}) is None  # transformers' default pair
    assert stated_labels(2, {0: "LABEL_0", 1: "dog"}) == ("LABEL_0", "dog")


def test_names_of_other_classes_are_refused() -> None:
    with pytest.raises(ConflictingFact) as caught:
        stated_labels(4, {"0": "cat", "1": "dog", "7": "cow"}, origin="config.json")
    assert str(caught.value) == (
        "error: conflicting-fact\n"
        "  The checkpoint names 3 classes, and its head has 4.\n"
        "  from     config.json\n"
        "  missing  2, 3\n"
        "  foreign  7\n"
        "  hint: correct the names of the classes in that file, or take them out of it."
    )


def test_labels_of_the_user_are_not_the_checkpoints() -> None:
    with pytest.raises(ConflictingFact) as caught:
        stated_labels(6, ["a", "b", "c"], origin="classes.txt, stated by you")
    assert caught.value.fact == "The labels name 3 classes, and the checkpoint's head has 6."
    assert caught.value.hint is not None and "a name for each class" in caught.value.hint


@pytest.mark.parametrize("stated", [{"id2label": 5}, {"id2label": "cat"}, {"descriptions": ["a"]}])
def test_names_that_are_none_are_refused(stated: dict[str, Any]) -> None:
    with pytest.raises(ConflictingFact, match="should be a list or a mapping of class names"):
        stated_labels(1, **{"id2label": ["cat"], **stated})


def test_labels_survive_copying_and_pickling() -> None:
    labels = Labels(["cat", "dog"], origin="here", assumed=True)
    for other in (copy.deepcopy(labels), pickle.loads(pickle.dumps(labels))):
        assert (other, other.origin, other.assumed) == (labels, "here", True)


def test_imagenet_is_read_without_importing_timm() -> None:
    program = (
        "import sys\n"
        "from vitconvert.labels import assumed_labels\n"
        "print(len(assumed_labels(1000)), 'timm' in sys.modules, 'torch' in sys.modules)"
    )
    root = Path(__file__).parents[1]
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert result.stdout == "1000 False False\n"
