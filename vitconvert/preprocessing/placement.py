"""Where in a photograph a model looks: resizing, cropping and padding undone."""

from dataclasses import dataclass

from vitconvert.preprocessing.backends import BACKENDS
from vitconvert.preprocessing.pixels import middle
from vitconvert.preprocessing.steps import Steps
from vitconvert.preprocessing.transform import size_resized
from vitconvert.preprocessing.values import Size


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the image that a model reads lies in the photograph; sizes are (height, width).

    Attributes:
        photograph: Its size, once it is turned upright, if the project does so.
        resized: The size of the whole photograph before it is cropped.
        offset: How many of these rows and columns are cut off at the top and at the left; negative
            where rows or columns are added.
        image_size: Of the image that is cut out.
    """

    photograph: Size
    resized: Size
    offset: tuple[int, int]
    image_size: Size

    def in_photograph(self, row: float, column: float) -> tuple[float, float]:
        """A place in the image, in pixels from its top left corner, in pixels of the photograph.

        It lies outside of the photograph where the image is padded.
        """
        y, x = (
            (place + offset) * whole / resized
            for place, offset, whole, resized in zip(
                (row, column), self.offset, self.photograph, self.resized, strict=True
            )
        )
        return y, x

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Top, left, bottom and right of the image, in pixels of the photograph."""
        return (*self.in_photograph(0, 0), *self.in_photograph(*self.image_size))


def placement(steps: Steps, photograph: Size) -> Placement:
    """Where the image that these steps make lies in a photograph of this size.

    The size is that of the photograph as the steps turn it: `image_files.size_of`.

    Raises:
        InputMismatch, UnsafeFile: The photograph cannot be resized.
    """
    resized = size_resized(steps, photograph)
    backend, (top, left) = BACKENDS[steps.backend], (0, 0)
    if steps.crop:
        top, left = (middle(*pair, backend) for pair in zip(resized, steps.image_size, strict=True))
    return Placement(
        photograph=photograph, resized=resized, offset=(top, left), image_size=steps.image_size
    )
