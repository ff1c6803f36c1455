"""Colours for numbers: from black over violet, red and orange to pale yellow, even for the eye.

The path is drawn in OKLab (Björn Ottosson, 2020, https://bottosson.github.io/posts/oklab/), where
distances are about as large as they look: lightness grows evenly, so that the picture stays right
in grey and for readers who are colour-blind, and the 256 colours are equally far apart.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

_FINE = 4096  # points of the path that the colours are chosen from
_DARK, _PALE = 0.13, 0.96  # lightness
_HUES = (285.0, 460.0)  # degrees: from violet over red and orange to yellow
_CHROMA = 0.17  # in the middle; less at the ends, where sRGB has less

# OKLab to cubic roots of cone responses, and these responses to linear sRGB.
_TO_ROOTS = np.array(
    [
        [1.0, 0.3963377774, 0.2158037573],
        [1.0, -0.1055613458, -0.0638541728],
        [1.0, -0.0894841775, -1.2914855480],
    ]
)
_TO_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


@cache
def palette() -> NDArray[np.uint8]:
    """256 colours, (256, 3), for the smallest number to the largest."""
    path = _path()
    steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
    length = np.concatenate([[0.0], np.cumsum(steps)])
    places = np.interp(np.linspace(0, length[-1], 256), length, np.arange(len(path)))
    chosen = path[np.rint(places).astype(int)]
    linear = (chosen @ _TO_ROOTS.T) ** 3 @ _TO_LINEAR.T
    return np.rint(255 * _encoded(linear.clip(0, 1))).astype(np.uint8)


def _path() -> NDArray[np.float64]:
    t = np.linspace(0, 1, _FINE)
    chroma = _CHROMA * np.sin(np.pi * (0.02 + 0.9 * t)) ** 0.75
    hue = np.radians(_HUES[0] + (_HUES[1] - _HUES[0]) * t)
    light = _DARK + (_PALE - _DARK) * t
    return np.stack([light, chroma * np.cos(hue), chroma * np.sin(hue)], axis=-1)


def _encoded(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    """As sRGB stores it: IEC 61966-2-1."""
    curve = 1.055 * np.maximum(linear, 0.0031308) ** (1 / 2.4) - 0.055
    return np.where(linear <= 0.0031308, 12.92 * linear, curve)
