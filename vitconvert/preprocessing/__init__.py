"""What an image becomes before a model reads it, as each project's own code makes it."""

from vitconvert.preprocessing.preprocessing import Preprocessing

__all__ = ["Preprocessing"]
