"""Steps that a target needs: named, allowed by the user, certified or measured.

Each is exact in real arithmetic and says why, but for those that are lossy and say so. What
rounding or the step itself makes of the numbers is measured by whoever takes it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from vitconvert.config import ViTConfig
from vitconvert.errors import NotRepresentable

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]

_ROUNDING = 5e-7  # four units in the last place of float32: powers differ so between devices


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step.

    Attributes:
        name: As it is allowed: `--allow NAME`.
        change: What it does, in words.
        alters: What it changes the values of, as canonical names with `{i}` for each block.
        applies: Whether a model can take it.
        becomes: The configuration after it.
        tensors: The tensors after it.
        free: Whether it leaves every number as it is, so that nobody need allow it.
        zero: Tensors that it leaves out, which are refused where they are not zero.
        guard: What else of the weights is checked before they are written, in words.
        lossy: Whether the function is another one after it, so that the change is told in numbers.
        narrows: Whether it leaves out the last of the outputs, and keeps the others.
    """

    name: str
    change: str
    alters: tuple[str, ...] = ()
    applies: Callable[[ViTConfig], object]
    becomes: Callable[[ViTConfig], ViTConfig]
    tensors: Callable[[Tensors, ViTConfig], Tensors] = lambda tensors, _: tensors
    free: bool = False
    zero: tuple[str, ...] = ()
    guard: str = ""
    lossy: bool = False
    narrows: bool = False


def _fold_class_position(tensors: Tensors, config: ViTConfig) -> Tensors:
    positions, count = tensors["pos_embed"], config.num_prefix_positions
    folded = {"pos_embed": positions[:, count:].contiguous()}
    first = 0
    for name in ("cls_token", "dist_token", "reg_token"):
        # Registers that come after the positions have none to fold.
        if name in tensors and first < count:
            last = first + tensors[name].shape[1]
            folded[name] = tensors[name] + positions[:, first:last]
            first = last
    return {**tensors, **folded}


def _zero_class_position(tensors: Tensors, config: ViTConfig) -> Tensors:
    import torch

    positions = tensors["pos_embed"]
    count = config.prefix_of_window - config.num_registers
    zeros = positions.new_zeros(1, count, positions.shape[-1])
    return {**tensors, "pos_embed": torch.cat([zeros, positions], dim=1)}


def _with_fitted_positions(config: ViTConfig) -> ViTConfig:
    rule = config.position_resampling
    return config.replace(
        position_embedding="learned",
        position_grid=(),
        position_square=False,
        position_resampling="bicubic_antialias" if rule in ("first", "tile") else rule,
        no_embed_class=True,
    )


def _fit_positions(tensors: Tensors, config: ViTConfig) -> Tensors:
    import torch

    from vitconvert.model.positions import positions_of

    kept = {name: t for name, t in tensors.items() if not name.startswith("positions.")}
    with torch.device("meta"):
        positions = positions_of(config)
    own = {n.removeprefix("positions."): t for n, t in tensors.items() if n not in kept}
    positions.load_state_dict(own, assign=True)
    with torch.no_grad():
        fitted = positions.fitted(config.grid_size)
    return tensors if fitted is None else {**kept, "pos_embed": fitted.contiguous()}


def _store_positions(tensors: Tensors, config: ViTConfig) -> Tensors:
    from vitconvert.model.positions import computed_positions

    like = next(iter(tensors.values()))
    return {**tensors, "pos_embed": computed_positions(config)[None].to(like.dtype)}


def key_bias_cancels(config: ViTConfig) -> bool:
    """Whether a bias of the keys adds the same number to every score of a query."""
    # A rotary embedding turns it by the position, a norm of q and k rescales it, and heads that are
    # differences have two softmaxes, for each of which it holds.
    normed = config.qk_norm or config.whole_qk_norm
    return config.joined_qkv and config.qkv_bias and config.rope == "none" and not normed


def _drop_key_bias(tensors: Tensors, config: ViTConfig) -> Tensors:
    dropped = {}
    for name in (f"blocks.{block}.attn.qkv.bias" for block in range(config.depth)):
        bias = tensors[name].clone()
        bias.view(3, -1)[1] = 0
        dropped[name] = bias
    return {**tensors, **dropped}


def _qkv_bias_folds(config: ViTConfig) -> bool:
    return (
        key_bias_cancels(config)
        and config.block_order == "pre"
        and config.norm_bias
        and config.attention_proj
        and config.proj_bias
        and not config.attention_norm
        and not config.differential
        and config.num_heads * config.head_dim <= config.embed_dim
    )


def _fold_qkv_bias(tensors: Tensors, config: ViTConfig) -> Tensors:
    """Into the bias of the norm before, and of the projection after."""
    import torch

    folded = dict(tensors)
    for block in (f"blocks.{index}." for index in range(config.depth)):
        weight = tensors[f"{block}attn.qkv.weight"].double()
        query, _, value = weight.reshape(3, -1, config.embed_dim)
        bias = folded.pop(f"{block}attn.qkv.bias").double()
        query_bias, _, value_bias = bias.reshape(3, -1)
        # Queries: the norm's bias moves by d with W_q d = b_q. Keys: what W_k d adds, and their own
        # bias, softmax cancels. Values: attention weights sum to 1, so W_v d and b_v reach the
        # projection whole. Least squares, as a W_q of less than full rank has no inverse.
        shift = torch.linalg.lstsq(query, query_bias[:, None], driver="gelsd").solution[:, 0]
        after = tensors[f"{block}attn.proj.weight"].double() @ (value_bias - value @ shift)
        for name, change in ((f"{block}norm1.bias", shift), (f"{block}attn.proj.bias", after)):
            folded[name] = (tensors[name].double() + change).to(tensors[name].dtype)
    return folded


def _norms_one_token(config: ViTConfig) -> bool:
    # Where only one token is read behind the last norm, that may stand on either side of pooling.
    return config.pooling == "token" and not config.dist_token


def _rename(old: str, new: str, tensors: Tensors, _: ViTConfig) -> Tensors:
    return {
        new + name.removeprefix(old) if name.startswith(old) else name: tensor
        for name, tensor in tensors.items()
    }


def _periods(config: ViTConfig) -> "Tensor":
    from vitconvert.model.rope import dinov3_periods

    return dinov3_periods(config.head_dim // 4, config.rope_temperature)


def _compute_periods(tensors: Tensors, config: ViTConfig) -> Tensors:
    stored = tensors["rope.periods"].double()
    computed = _periods(config).double()
    if not (differ := float((stored / computed - 1).abs().max())) <= _ROUNDING:
        raise NotRepresentable(
            "The target computes the periods of the rotary embedding, and these are others.",
            evidence={"tensor": "rope.periods", "relative difference": f"{differ:.1e}"},
            meaning="Stored periods are often rounded to bfloat16, by up to 4e-3; computed ones "
            f"have temperature {config.rope_temperature:g}.",
            hint="the format of the source and vitconvert's own (--to vit) hold them.",
        )
    return {name: tensor for name, tensor in tensors.items() if name != "rope.periods"}


def _turn_pairs(tensors: Tensors, config: ViTConfig) -> Tensors:
    from vitconvert.model.rope import with_other_pairs

    of_heads = {n: with_other_pairs(t, config) for n, t in tensors.items() if ".attn.qkv." in n}
    return {**tensors, **of_heads}


def _with_zero_bias(layer: str, tensors: Tensors, _: ViTConfig) -> Tensors:
    weight = tensors[f"{layer}.weight"]
    return {**tensors, f"{layer}.bias": weight.new_zeros(len(weight))}


def _leave_out(name: str, fact: str, tensors: Tensors, _: ViTConfig) -> Tensors:
    from vitconvert.facts.materialise import require_zero

    require_zero(tensors[name], name, fact)
    return {other: tensor for other, tensor in tensors.items() if other != name}


STEPS: Mapping[str, Step] = {
    step.name: step
    for step in (
        Step(
            name="fold-class-position",
            change="the positions of class and other tokens were added to the tokens",
            alters=("cls_token", "dist_token", "reg_token", "pos_embed"),
            applies=lambda c: c.learned_positions and c.num_prefix_positions,
            becomes=lambda c: c.replace(no_embed_class=True),
            tensors=_fold_class_position,
        ),
        Step(
            name="zero-class-position",
            change="class and distillation token got positions of zero",
            alters=("pos_embed",),
            applies=lambda c: c.learned_positions and c.no_embed_class and c.class_token,
            # Registers stay without, as in DINOv2.
            becomes=lambda c: c.replace(no_embed_class=False, register_positions=False),
            tensors=_zero_class_position,
        ),
        Step(
            name="fit-positions",
            change="the positions, which have a grid of their own, were fitted to the image's grid",
            alters=("pos_embed",),
            applies=lambda c: c.own_grid,
            becomes=_with_fitted_positions,
            tensors=_fit_positions,
        ),
        Step(
            name="store-positions",
            change="the sinusoid of the positions, which was computed, was stored as a table",
            alters=("pos_embed",),
            # Those of a grid have classes that compute them, for any size of images.
            applies=lambda c: c.position_embedding == "sincos1d",
            becomes=lambda c: c.replace(position_embedding="learned"),
            tensors=_store_positions,
            free=True,
        ),
        Step(
            name="drop-key-bias",
            change="the bias of the keys, which softmax cancels, was set to zero",
            alters=("blocks.{i}.attn.qkv.bias",),
            applies=key_bias_cancels,
            becomes=lambda c: c,
            tensors=_drop_key_bias,
        ),
        Step(
            name="fold-qkv-bias",
            change="the bias of q, k and v was folded into norm1.bias and attn.proj.bias",
            alters=("blocks.{i}.norm1.bias", "blocks.{i}.attn.proj.bias"),
            applies=_qkv_bias_folds,
            becomes=lambda c: c.replace(qkv_bias=False),
            tensors=_fold_qkv_bias,
        ),
        Step(
            name="class-token-alone",
            change="the features are the class token's, without the mean of the patches",
            applies=lambda c: c.pooling == "token_avg" and not c.num_classes,
            becomes=lambda c: c.replace(pooling="token"),
            narrows=True,
        ),
        Step(
            name="norm-after-pooling",
            change="the norm of all tokens became one of the class token, the only one read",
            alters=("fc_norm.weight", "fc_norm.bias"),
            applies=lambda c: _norms_one_token(c) and c.final_norm and not c.fc_norm,
            becomes=lambda c: c.replace(
                final_norm=False, fc_norm=True, fc_norm_eps=c.final_norm_eps, final_norm_eps=None
            ),
            tensors=partial(_rename, "norm.", "fc_norm."),
            free=True,
        ),
        Step(
            name="norm-before-pooling",
            change="the norm of the class token became one of all tokens, of which it is read",
            alters=("norm.weight", "norm.bias"),
            applies=lambda c: _norms_one_token(c) and c.fc_norm and not c.final_norm,
            becomes=lambda c: c.replace(
                final_norm=True, fc_norm=False, final_norm_eps=c.fc_norm_eps, fc_norm_eps=None
            ),
            tensors=partial(_rename, "fc_norm.", "norm."),
            free=True,
        ),
        Step(
            name="token-as-register",
            change="the distillation token, which nothing reads, became a register",
            alters=("reg_token",),
            # DeiTForImageClassification reads the class token alone: the other is a register.
            applies=lambda c: (
                c.dist_token
                and not c.dist_head
                and not c.num_registers
                and c.pooling != "prefix_avg"
            ),
            becomes=lambda c: c.replace(dist_token=False, num_registers=1, register_positions=True),
            tensors=partial(_rename, "dist_token", "reg_token"),
            free=True,
        ),
        Step(
            name="register-as-token",
            change="the one register became a distillation token, which nothing reads",
            alters=("dist_token",),
            applies=lambda c: (
                c.class_token
                and not c.dist_token
                and c.num_registers == 1
                and (c.register_positions or not c.num_prefix_positions)
            ),
            becomes=lambda c: c.replace(dist_token=True, num_registers=0),
            tensors=partial(_rename, "reg_token", "dist_token"),
            free=True,
        ),
        Step(
            name="store-rope-periods",
            change="the periods of the rotary embedding, which were computed, were stored",
            alters=("rope.periods",),
            applies=lambda c: c.rope == "dinov3" and not c.rope_periods,
            becomes=lambda c: c.replace(rope_periods=True),
            tensors=lambda tensors, config: {**tensors, "rope.periods": _periods(config)},
            free=True,
        ),
        Step(
            name="compute-rope-periods",
            change="the stored periods of the rotary embedding, which are those that the target "
            "computes, were left out",
            applies=lambda c: c.rope_periods,
            becomes=lambda c: c.replace(rope_periods=False),
            tensors=_compute_periods,
            free=True,
            guard="rope.periods is what the target computes",
        ),
        Step(
            name="rotary-pairs",
            change="the channels of q and k were put in the order in which the target pairs them",
            alters=("blocks.{i}.attn.qkv.weight", "blocks.{i}.attn.qkv.bias"),
            applies=lambda c: c.free_pairs,
            becomes=lambda c: c.replace(rope_half=not c.rope_half),
            tensors=_turn_pairs,
            free=True,
        ),
        Step(
            name="all-tokens",
            change="the features are all tokens, of which the first is the class token that was "
            "pooled",
            applies=lambda c: (
                c.pooling == "token"
                and c.class_token
                and not (c.num_classes or c.representation_size or c.fc_norm or c.dist_head)
            ),
            becomes=lambda c: c.replace(pooling="none"),
            free=True,
        ),
        Step(
            name="zero-patch-bias",
            change="the projection of the patches, which has no bias, got one of zeros",
            alters=("patch_embed.proj.bias",),
            applies=lambda c: not c.patch_bias,
            becomes=lambda c: c.replace(patch_bias=True),
            tensors=partial(_with_zero_bias, "patch_embed.proj"),
            free=True,
        ),
        Step(
            name="drop-patch-bias",
            change="the bias of the patches' projection, which is zero, was left out",
            applies=lambda c: c.patch_bias,
            becomes=lambda c: c.replace(patch_bias=False),
            tensors=partial(
                _leave_out,
                "patch_embed.proj.bias",
                "The target's patches are projected without a bias, and these have one.",
            ),
            free=True,
            zero=("patch_embed.proj.bias",),
        ),
        Step(
            name="zero-head-bias",
            change="the head, a projection without bias, got a bias of zeros",
            alters=("head.bias",),
            applies=lambda c: c.num_classes and not c.head_bias,
            becomes=lambda c: c.replace(head_bias=True),
            tensors=partial(_with_zero_bias, "head"),
            free=True,
        ),
        Step(
            name="drop-head-bias",
            change="the bias of the head, which is zero, was left out",
            applies=lambda c: c.num_classes and c.head_bias and not c.dist_head,
            becomes=lambda c: c.replace(head_bias=False),
            tensors=partial(
                _leave_out,
                "head.bias",
                "The target's head is a projection without bias, and this one has a bias.",
            ),
            free=True,
            zero=("head.bias",),
        ),
    )
}
"""Every step, by name."""

NORM_EPS = "norm-eps"


def config_after(steps: Iterable[Step], config: ViTConfig) -> ViTConfig | None:
    """The configuration after steps, or None if one of them would change nothing of it."""
    for step in steps:
        before = config
        config = step.becomes(before) if step.applies(before) else before
        if config == before:
            return None
    return config


def replace_norm_eps(eps: float) -> Step:
    """The lossy step to norms with another eps: x / sqrt(var + eps) for every var."""
    return Step(
        name=NORM_EPS,
        change=f"the eps of all norms became {eps:g}",
        applies=lambda config: (
            config.norm_eps != eps or (config.fc_norm and config.fc_norm_eps not in (None, eps))
        ),
        becomes=lambda config: config.replace(norm_eps=eps, fc_norm_eps=None),
        lossy=True,
    )
