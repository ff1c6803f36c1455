"""Images that models are compared on."""

import numpy as np
import pytest

from vitconvert.preprocessing.sample_images import sample_images


def test_images_are_the_same_for_the_same_seed_only():
    one, again, other = (
        sample_images(batch=2, channels=4, size=(32, 24), seed=seed) for seed in (0, 0, 1)
    )
    for kind in ("noise", "photograph"):
        assert one[kind].shape == (2, 4, 32, 24)
        assert np.array_equal(one[kind], again[kind])
        assert not np.array_equal(one[kind], other[kind])


def test_photograph_is_normalised_and_smooth():
    images = sample_images(
        batch=3, channels=3, size=(64, 48), seed=0, mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.4)
    )
    pixels = images["photograph"] * np.reshape((0.2, 0.2, 0.4), (3, 1, 1))
    pixels = pixels + np.reshape((0.4, 0.5, 0.6), (3, 1, 1))
    assert pixels.min() == pytest.approx(0, abs=1e-12)
    assert pixels.max() == pytest.approx(1)
    steps = {kind: np.abs(np.diff(x)).mean() / x.std() for kind, x in images.items()}
    assert steps["photograph"] < steps["noise"] / 2
