"""Whether two models learn alike: gradients of one loss by the images and by every weight."""

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vitconvert.comparison import largest
from vitconvert.parity.differences import Divergence, LayerDifference
from vitconvert.parity.implementations import named_outputs
from vitconvert.parity.matching import Match, canonical_tensors

if TYPE_CHECKING:
    from vitconvert.model import ViT

IMAGES = "images"
# Of the largest magnitude. Sums over images and tokens round in another order in each program; a
# backward pass that is wrong differs in the first or second digit.
_ALLOWED = {"float32": 1e-3, "float64": 1e-9}
# Some gradients are zero but for rounding, such as that of the bias of k, which softmax does not
# see: they are measured by the others.
_SMALLEST_SCALE = 1e-3


def gradients_of(model: nn.Module, images: Tensor, *, seed: int) -> dict[str, Tensor]:
    """Gradients of a random weighted sum of the outputs, by the model's own names, and `IMAGES`.

    Args:
        model: It is not changed: a copy in the dtype of the images is used, in eval mode.
        images: (B, C, H, W)
        seed: Of the weights of the sum, which are the same for every model.
    """
    model = copy.deepcopy(model).to("cpu", images.dtype).eval().requires_grad_()
    inputs = images.detach().clone().requires_grad_()
    with torch.enable_grad():
        output = next(iter(named_outputs(model(inputs), "the module", detach=False).values()))
        generator = torch.Generator().manual_seed(seed)
        weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        loss = (output * weights.to(output.dtype)).sum()
        wanted = {IMAGES: inputs, **dict(model.named_parameters())}
        found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    pairs = zip(wanted.items(), found, strict=True)
    return {name: torch.zeros_like(x) if g is None else g for (name, x), g in pairs}


@dataclass(frozen=True)
class Backward:
    """How the backward passes of two models differ.

    Attributes:
        tensors: A difference for each weight by its canonical name, from the output to the images.
        divergence: The first that rounding does not explain.
    """

    tensors: tuple[LayerDifference, ...]
    divergence: Divergence | None


def compare_gradients(
    tested: nn.Module, vit: "ViT", match: Match, images: Tensor, *, seed: int
) -> Backward:
    """How the gradients of a module differ from those of vitconvert's ViT, backwards.

    Args:
        tested: Somebody's own module, matched by its tensors.
        vit: The model with the same weights.
        match: Of the two.
        images: In the dtype to compute in.
        seed: Of the loss.
    """
    own = gradients_of(tested, images, seed=seed)
    theirs = gradients_of(vit, images, seed=seed)
    ours = {IMAGES: own.pop(IMAGES)}
    if match.binding is not None:
        ours |= canonical_tensors(own, tested, match, vit.config)
    dtype = str(images.dtype).removeprefix("torch.")
    overall = max(largest(gradient) for gradient in theirs.values())
    found = [
        LayerDifference(
            layer=f"gradient of {name}",
            dtype=dtype,
            relative=largest(ours[name] - theirs[name])
            / max(largest(theirs[name]), _SMALLEST_SCALE * overall),
        )
        for name in [*reversed([n for n in theirs if n in ours and n != IMAGES]), IMAGES]
    ]
    wrong = next((d for d in found if not d.relative <= _ALLOWED[dtype]), None)
    if wrong is None:
        return Backward(tuple(found), None)
    cause = "the outputs agree, and the backward pass does not"
    divergence = Divergence(
        layer=wrong.layer, dtype=dtype, images="noise", relative=wrong.relative, cause=cause
    )
    return Backward(tuple(found), divergence)
