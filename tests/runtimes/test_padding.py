"""A graph that takes pixels normalises inside: what is padded after that is refused."""

import pytest

import vitconvert
from tests.front_doors.hugging_face import DOORS
from vitconvert.errors import NotRepresentable


@pytest.mark.slow
def test_padding_after_normalising_stays_outside_of_the_graph(tmp_path):
    DOORS["SamModel"].write(tmp_path / "sam")
    how = {"to": "pt2", "output": tmp_path / "out.pt2"}
    with pytest.raises(NotRepresentable, match="pads after normalising"):
        vitconvert.export_model(tmp_path / "sam", **how, with_preprocessing=True)
    assert not (tmp_path / "out.pt2").exists()
