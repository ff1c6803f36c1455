"""Small checkpoints of every dialect, with every number random.

Those of timm, transformers, torchvision and vit-pytorch are the packages' own models. The others
are spelled here by hand from their projects' sources, without looking into weights_map/.
"""

import functools

from tests.tables.specimens.google import GOOGLE_LIKE
from tests.tables.specimens.lucidrains import OLD_LUCIDRAINS, VIT_PYTORCH
from tests.tables.specimens.own_grid import OWN_GRID
from tests.tables.specimens.packages import TORCHVISION, TRANSFORMERS
from tests.tables.specimens.specimen import Shapes
from tests.tables.specimens.timm import OLD_TIMM, TIMM, TIMM_KINDS
from tests.tables.specimens.windows import OF_WINDOWS, VITDETS

MODELS = {
    **TIMM,
    **TIMM_KINDS,
    **OWN_GRID,
    **OF_WINDOWS,
    **TRANSFORMERS,
    **TORCHVISION,
    **VIT_PYTORCH,
}
SPECIMENS = {**MODELS, **OLD_LUCIDRAINS, **OLD_TIMM, **VITDETS, **GOOGLE_LIKE}


@functools.cache
def shapes_of(name: str) -> Shapes:
    """The header of a specimen, which several tests look at."""
    return {key: tuple(tensor.shape) for key, tensor in SPECIMENS[name].tensors().items()}
