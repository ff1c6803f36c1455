"""Stub."""

from vitconvert.errors import NotRepresentable
from vitconvert.loading import Reading
from vitconvert.parity.references.reference import Reference


def torchvision_reference(reading: Reading) -> Reference:
    """Not yet."""
    raise NotRepresentable("not yet.")
