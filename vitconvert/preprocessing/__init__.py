"""From an image to the input of a model, as each project's own code computes it."""

from vitconvert.preprocessing.preprocessing import Preprocessing

__all__ = ["Preprocessing"]
