"""Padding at the right and below: which targets have it, and where it lies in the original."""

import pytest

from vitconvert.errors import NotRepresentable
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.transform import placement
from vitconvert.tables.dialects import builtin_tables

STATED = {
    "image_processor_type": "SamImageProcessor",
    "size": {"longest_edge": 48},
    "pad_size": {"height": 48, "width": 48},
}
PADDED = Preprocessing.from_huggingface(STATED)


@pytest.mark.parametrize("target", ["to_timm", "to_openclip", "to_keras_hub"])
def test_targets_without_padding_refuse_it(target):
    with pytest.raises(NotRepresentable, match=r"pad|resizing"):
        getattr(PADDED, target)()


def test_transformers_writes_it_again():
    again = PADDED.to_huggingface()
    assert again["image_processor_type"] == "SamImageProcessor"
    assert (again["size"], again["pad_size"]) == (STATED["size"], STATED["pad_size"])


def test_the_image_lies_at_the_top_left():
    place = placement(PADDED, (60, 120))
    assert (place.resized, place.offset) == ((24, 48), (0, 0))
    assert place.in_original(24, 48) == (60, 120)


def test_another_size_is_padded_to_a_side_that_fits():
    assert PADDED.at_size((96, 96)).resize_size == (96, 96)
    assert PADDED.at_size((96, 64)).resize_size == (64, 64)


def test_segment_anything_states_it_in_its_table():
    own = Preprocessing.from_dialect(builtin_tables()["sam"].preprocessing, image_size=(64, 64))
    assert (own.resize, own.resize_size, own.pad, own.crop) == ("longest", (64, 64), True, False)
    assert (own.rescale_factor, own.mean) == (None, (123.675, 116.28, 103.53))
    assert not builtin_tables()["mmpretrain_sam"].preprocessing
