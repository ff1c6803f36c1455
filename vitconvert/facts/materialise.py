"""Carrying out a plan in memory: views where the layouts are the same, copies elsewhere."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from math import prod

import torch
from torch import Tensor

from vitconvert.errors import NotRepresentable
from vitconvert.facts.plan import Assembly, Picks, Piece, Plan
from vitconvert.tables.axes import Axes
from vitconvert.tables.tensor_sections import Constant

Read = Callable[[str], Tensor]


def materialise(plan: Plan, read: Read) -> dict[str, Tensor]:
    """Assemble every target tensor.

    Args:
        plan: From `plan_reading` or `plan_writing`.
        read: Gives a source tensor by name. What it gives is never written to, and may be
            shared by the result.

    Raises:
        NotRepresentable: A step that the target leaves out, because it is always zero there, is
            not zero here; or a tensor that is ignored, because it is always the same, is not; or
            tensors differ that are one in the target.
    """
    for source, constant in plan.constants.items():
        _require_constant(source, constant, plan, read)
    for piece in plan.zeros:
        fact = "The target leaves out a part that is not zero in these weights."
        require_zero(_taken(piece, plan, read)[0], piece.taken, fact)
    made = {assembly.target: _assemble(assembly, plan, read) for assembly in plan.assemblies}
    for assembly in plan.shared:
        _require_shared(assembly, plan, made, read)
    return made


def _assemble(assembly: Assembly, plan: Plan, read: Read) -> Tensor:
    shape, pieces = plan.shape(assembly), assembly.pieces
    if not pieces:
        said: torch.dtype | None = getattr(torch, assembly.dtype) if assembly.dtype else None
        return _filled(assembly, plan, said or _any_dtype(plan, read))
    if assembly.axes.frames:
        image = replace(assembly, axes=assembly.axes.one_frame)
        return _for_frames(_assemble(image, plan, read), assembly.axes)
    if turned := assembly.axes.turned:
        upright = replace(assembly, axes=assembly.axes.upright)
        return _assemble(upright, plan, read).roll([-1] * len(turned), turned)
    if len(pieces) == 1 and not pieces[0].put and not assembly.axes.origins:
        # Kernels must lie in memory as the source project's would, for sums to round alike.
        return _axiswise(pieces[0], assembly.axes, plan, read).reshape(shape).contiguous()
    steps = []
    for piece in pieces:
        if piece.source is not None:
            steps.append((piece.put, _axiswise(piece, assembly.axes, plan, read)))
    # One dtype for all pieces, into which each of them fits.
    dtype = reduce(torch.promote_types, (tensor.dtype for _, tensor in steps))
    whole = torch.zeros(shape, dtype=dtype, device=steps[0][1].device)
    places = _axis_by_axis(whole, assembly.axes, plan)
    for put, tensor in steps:
        _select(places, list(assembly.axes.names), put)[0].copy_(tensor)
    return whole


def _filled(assembly: Assembly, plan: Plan, dtype: torch.dtype) -> Tensor:
    steps = len(assembly.fill)
    rows = torch.tensor(assembly.fill, dtype=dtype).view(steps, 1)
    shape = plan.shape(assembly)
    return rows.expand(steps, prod(shape) // steps).reshape(shape)


def _any_dtype(plan: Plan, read: Read) -> torch.dtype:
    """A tensor that plays no part has the dtype of the others."""
    pieces = (piece for assembly in plan.assemblies for piece in assembly.pieces)
    return next(read(piece.source).dtype for piece in pieces if piece.source)


def _axiswise(piece: Piece, target: Axes, plan: Plan, read: Read) -> Tensor:
    """The part that a piece takes: a dimension for each axis, in the order of the target."""
    taken, names = _taken(piece, plan, read)
    filled = [axis for axis in target.names if axis not in dict(piece.put)]
    return taken.permute([names.index(axis) for axis in filled])


def _taken(piece: Piece, plan: Plan, read: Read) -> tuple[Tensor, list[str]]:
    assert piece.source is not None
    tensor = _axis_by_axis(_of_an_image(read(piece.source), piece.axes), piece.axes, plan)
    return _select(tensor, list(piece.axes.names), piece.take)


def _of_an_image(tensor: Tensor, axes: Axes) -> Tensor:
    """The sum over frames, which an image fills alike; rounded once, as timm does it.

    timm 1.0.31, `qwen3_vit.checkpoint_filter_fn_encoder`. Likewise, a row in front is added to all
    others, and a last row that is ours of the class token comes first.
    """
    for place, _ in axes.frames:
        # One after another, because torch's sum of negative zeros is a positive one.
        whole = reduce(torch.add, tensor.double().unbind(place))
        tensor = whole.to(tensor.dtype).unsqueeze(place)
    for place in axes.shared:
        front, others = tensor.tensor_split([1], dim=place)
        tensor = torch.cat((front, (others.double() + front.double()).to(tensor.dtype)), dim=place)
    return tensor.roll([1] * len(axes.turned), axes.turned) if axes.turned else tensor


def _for_frames(tensor: Tensor, axes: Axes) -> Tensor:
    """Equal parts for all frames, of which the sum has the bits of the tensor."""
    for place, count in axes.frames:
        whole = tensor.double()
        part = (whole / count).to(tensor.dtype)
        # The smallest numbers of a dtype have no half: the last part is what the others leave.
        left = (whole - part.double() * (count - 1)).to(tensor.dtype)
        last = torch.where(part.double() * count == whole, part, left)
        tensor = torch.cat([*[part] * (count - 1), last], dim=place)
    return tensor


def _axis_by_axis(tensor: Tensor, axes: Axes, plan: Plan) -> Tensor:
    """A dimension for each axis, without rows in front of one or beyond; a view of new tensors."""
    for place, dim in enumerate(axes.dims):
        if dim.before or dim.surplus:
            tensor = tensor.narrow(place, dim.before, plan.sizes[dim.axes[0]])
    return tensor.reshape([plan.sizes[axis] for axis in axes.names])


def _select(tensor: Tensor, names: list[str], picks: Picks) -> tuple[Tensor, list[str]]:
    """One step along each of some axes, and the axes that remain."""
    for axis, step in picks:
        tensor = tensor.select(names.index(axis), step)
        names.remove(axis)
    return tensor, names


def _require_constant(source: str, constant: Constant, plan: Plan, read: Read) -> None:
    tensor = read(source).reshape([plan.sizes[axis] for axis in constant.axes.names])
    wanted = torch.tensor(constant.along(plan.sizes), dtype=tensor.dtype)
    other = tensor[tensor != wanted.view(-1, *[1] * (tensor.ndim - 1))]
    if len(other):
        raise NotRepresentable(
            "A tensor that is ignored because it is always the same is another one here.",
            evidence={
                "row": constant.text,
                "tensor": source,
                "different": f"{len(other)} of {tensor.numel()} values, the first {other[0]:.3g}",
            },
        )


def _require_shared(assembly: Assembly, plan: Plan, made: Mapping[str, Tensor], read: Read) -> None:
    """Several of ours that are one tensor of theirs must be equal."""
    first = next(one for one in plan.assemblies if one.target == assembly.target)
    if not torch.equal(_assemble(assembly, plan, read), made[assembly.target]):
        raise NotRepresentable(
            "The target has one tensor in place of several, which differ in these weights.",
            evidence={
                "target": assembly.target,
                "one": ", ".join(map(str, first.pieces)),
                "another": ", ".join(map(str, assembly.pieces)),
            },
        )


def require_zero(tensor: Tensor, name: str, fact: str) -> None:
    """Raise NotRepresentable, with a fact about what leaves the tensor out, if it is not zero."""
    numbers = tensor.double()  # torch counts no zeros of eight bits
    if count := numbers.count_nonzero():
        raise NotRepresentable(
            fact,
            evidence={
                "tensor": name,
                "not zero": f"{count} of {numbers.numel()} values",
                "largest": f"{numbers.abs().max():.3g}",
            },
        )
