"""MMPretrain's configurations as data; its own code is asked in `tests/front_doors`."""

import pytest

from vitconvert.errors import ConflictingFact, MissingFact, NotRepresentable
from vitconvert.preprocessing import Preprocessing

IMAGES = "data_preprocessor = dict(mean=[127.5, 120, 110], std=[60, 61.5, 62], to_rgb=True)\n"
EDGE = "dict(type='ResizeEdge', scale=57, edge='short', backend='pillow')"
CROP = "dict(type='CenterCrop', crop_size=48)"


def read(*steps, images=IMAGES, more=""):
    text = f"{images}test_pipeline = [{', '.join(steps)}]\n{more}"
    return Preprocessing.from_mmpretrain(text, image_size=(48, 48))


def test_a_pipeline_is_read_without_running_it(tmp_path):
    left = tmp_path / "left"
    found = read(EDGE, CROP, more=f"x = open({str(left)!r}, 'w')\nimport os\n")
    assert not left.exists()
    assert (found.resize, found.resize_size, found.image_size) == ("shortest", (57, 57), (48, 48))
    assert (found.mean, found.std) == ((127.5, 120.0, 110.0), (60.0, 61.5, 62.0))
    assert (found.crop, found.rescale_factor, found.backend) == (True, None, "mmpretrain")


def test_the_models_own_normalising_and_the_tests_own_pipeline_come_first():
    own = "model = dict(data_preprocessor=dict(to_rgb=True))\n"
    own += "test_dataloader = dict(dataset=dict(pipeline=["
    own += "dict(type='Resize', scale=(48, 32), backend='pillow', interpolation='bicubic')]))\n"
    found = read(EDGE, CROP, more=own)
    assert (found.normalize, found.resize, found.image_size) == (False, "squash", (32, 48))
    assert found.interpolation == "bicubic"


@pytest.mark.parametrize(
    ("text", "error", "fact"),
    [
        (f"{IMAGES}test_pipeline = [dict(type='ResizeEdge', scale=57), {CROP}]", NotRepresentable,
         "ResizeEdge of MMPretrain with backend = 'cv2' is not supported"),
        (f"{IMAGES}test_pipeline = [{EDGE}, dict(type='TenCrop')]", NotRepresentable,
         "TenCrop in MMPretrain's pipeline is not supported"),
        (f"{IMAGES}test_pipeline = [{EDGE}, dict(type='CenterCrop', crop_size=60)]",
         NotRepresentable, "crops nothing of images that are smaller"),
        (f"data_preprocessor = dict()\ntest_pipeline = [{EDGE}]", NotRepresentable,
         "blue, green and red"),
        (IMAGES, MissingFact, "states no test_pipeline"),
        (f"{IMAGES}test_pipeline = [7]", ConflictingFact, "A step of the pipeline is 7"),
        (f"{IMAGES}test_pipeline = [{EDGE}, dict(type='CenterCrop', crop_size='x')]",
         ConflictingFact, "crop_size = 'x'"),
        ("_base_ = ['a.py']", NotRepresentable, "inherits from other files"),
        ("a = (", NotRepresentable, "cannot be read as data"),
        ("a = " + "(" * 5000 + ")" * 5000, NotRepresentable, "cannot be read as data"),
        ("a = " + "-" * 50_000 + "1", NotRepresentable, "cannot be read as data"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused(text, error, fact):
    with pytest.raises(error, match=fact):
        Preprocessing.from_mmpretrain(text, image_size=(48, 48))
