"""Why a model differs: known mistakes are undone one at a time until the two agree.

Each candidate is vitconvert's model with one thing changed, in its configuration or in the weights
of the first layer that differs. It explains the difference if this layer then agrees with the
reference; all layers before it agree already.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from vitconvert.comparison import relative_difference
from vitconvert.config import ViTConfig
from vitconvert.config.vocabularies import ACTIVATIONS, POOLINGS, STANDARDISED_STEMS
from vitconvert.errors import ConflictingFact
from vitconvert.model import ViT
from vitconvert.parity.implementations import Implementation, View, of_vit
from vitconvert.parity.report import UNKNOWN
from vitconvert.programs.taps import BRANCH, OUTPUT, block_of

_EPSILONS = (1e-12, 1e-6, 1e-5, 1e-3)  # defaults of transformers, of timm and JAX, torch, Keras
# Orders of norms in a block that has the same tensors, in words.
_ORDERS = {
    "pre": "of what each branch reads (pre-LN)",
    "post_norm": "of each sum (post-LN)",
    "res_post_norm": "of what each branch gives",
}

Weights = Mapping[str, Tensor]
Setting = tuple[str, Mapping[str, object]]  # a mistake in words, and the fields that undo it
Rearrangement = tuple[str, Weights]  # the same with the weights that undo it


@dataclass(frozen=True, kw_only=True)
class Case:
    """vitconvert's model as one side, images, and the other side's layers for them.

    Attributes:
        side: Of `of_vit`.
        images: In the dtype of the comparison.
        theirs: The other's layers.
        limit: The largest relative difference that counts as agreement.
        view: The other's.
    """

    side: Implementation
    images: Tensor
    theirs: Mapping[str, Tensor]
    limit: float
    view: View

    @property
    def model(self) -> ViT:
        """The model that differs."""
        assert self.side.vit is not None
        return self.side.vit

    def layers_of(self, model: ViT) -> Mapping[str, Tensor]:
        """The layers of a changed model for the images."""
        side = of_vit(model, name="", reads=self.side.reads, taps=self.side.taps)
        return side.prepare(self.images.dtype)(self.images).through(self.view).layers


def diagnose(case: Case, layer: str) -> tuple[str, Mapping[str, object]]:
    """The mistake that explains why a layer differs, in words, or "unknown".

    Returns:
        The words, and the fields of the configuration that undo it, if it lies there.
    """
    config, weights = case.model.config, case.model.state_dict()
    if broken := [name for name, tensor in weights.items() if not tensor.isfinite().all()]:
        others = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        return f"the weights themselves are NaN or infinite, in {broken[0]}{others}", {}
    part = layer.split(".")[-1].removesuffix(BRANCH)  # of a block or of the model
    # Where no block is seen, the mistake may lie in any.
    unseen = not any(block_of(seen) is not None for seen in case.theirs)
    for cause, changes in _settings(config, part, blocks=unseen):
        try:
            changed = config.replace(**changes)
        except ConflictingFact:
            continue  # no such model
        if _agrees(case, layer, changed, weights):
            return cause, changes
    rearrangements = list(_rearrangements(config, weights, part, block_of(layer)))
    for cause, rearranged in rearrangements:
        if _agrees(case, layer, config, {**weights, **rearranged}):
            return cause, {}
    # What a tutorial that many copied does together: q, k and v by head, and its own scale.
    for scale, changes in _scales(config) if part == "attn" else ():
        for cause, rearranged in rearrangements:
            if _agrees(case, layer, config.replace(**changes), {**weights, **rearranged}):
                return f"{cause}; and {scale}", changes
    return _pattern(case) if layer == "embedding" else UNKNOWN, {}


def _agrees(case: Case, layer: str, config: ViTConfig, weights: Weights) -> bool:
    """Whether a layer equals theirs in a model that is changed so.

    The blocks after the layer are left out: they cannot matter, and there are many candidates.
    """
    last = {"patch_embed": 0, "embedding": 0}.get(layer, block_of(layer))
    if last is not None:
        weights = {name: x for name, x in weights.items() if (block_of(name) or 0) <= last}
        config = config.replace(depth=last + 1, kv_heads=config.kv_heads[: last + 1])
    model = ViT(config, device="meta")
    try:
        wanted = {name: weights[name] for name in model.state_dict()}
    except KeyError:
        return False  # a model with other tensors
    if any(wanted[name].shape != x.shape for name, x in model.state_dict().items()):
        return False  # with tables of positions for other windows
    model.load_state_dict(wanted, strict=True, assign=True)
    ours = case.layers_of(model.eval())
    return layer in ours and relative_difference(ours[layer], case.theirs[layer]) <= case.limit


def _pattern(case: Case) -> str:
    """The pattern of the tokens that differ, where no candidate explains the embedding."""
    ours = case.layers_of(case.model)["embedding"]
    theirs = case.theirs["embedding"]
    if theirs.ndim < 3:
        return UNKNOWN  # a digest shows no tokens
    prefix = case.model.config.num_prefix_tokens
    if relative_difference(ours[:, prefix:], theirs[:, prefix:]) <= case.limit:
        return "cls_token, another prefix token or its position: the patches agree"
    apart = ours - theirs
    varies = (apart - apart[:1]).abs().max() > case.limit * theirs.abs().max()
    if len(apart) > 1 and not varies:
        return "pos_embed has other values: another table, or one resampled by another rule"
    return UNKNOWN


def _settings(config: ViTConfig, part: str, *, blocks: bool) -> Iterator[Setting]:
    """Other values of what tensors cannot tell, the likely ones before the exotic.

    Args:
        config: Of the model that differs.
        part: The layer that differs, of a block or of the model.
        blocks: Whether the parts of the blocks count, whatever the layer is.
    """
    last = part in ("features", OUTPUT)
    for eps in _EPSILONS:
        if eps != config.norm_eps:
            yield f"norm_eps is {eps:g}, not {config.norm_eps:g}", {"norm_eps": eps}
    final_eps = config.final_norm_eps or config.norm_eps
    for eps in _EPSILONS if config.final_norm and (last or part == "norm") else ():
        if eps != final_eps:
            yield f"final_norm_eps is {eps:g}, not {final_eps:g}", {"final_norm_eps": eps}
    if blocks or part in ("embedding", "attn", "mlp"):
        yield from _orders(config)
    if last or part == "mlp":
        yield from _words("activation", config.activation, ACTIVATIONS)
    if blocks or part == "mlp":
        yield from _activations_after_fc2(config)
    if blocks or part == "attn":
        yield from _attentions(config)
    if part == "patch_embed" and config.standardised_stem:
        yield from _words("stem_style", config.stem_style, STANDARDISED_STEMS)
    if last:
        if config.final_norm:
            yield "there is no final norm", {"final_norm": False}
        yield from _poolings(config)
        word = "representation_activation"
        yield from _words(word, config.representation_activation, ACTIVATIONS)


def _words(field: str, stated: str, vocabulary: Iterable[str]) -> Iterator[Setting]:
    for word in vocabulary:
        if word != stated:
            yield f"{field} is {word}, not {stated}", {field: word}


def _orders(config: ViTConfig) -> Iterator[Setting]:
    for order, words in _ORDERS.items() if config.block_order in _ORDERS else ():
        if order != config.block_order:
            cause = f"block_order is {order}, not {config.block_order}: the norms are {words}"
            yield cause, {"block_order": order}


def _activations_after_fc2(config: ViTConfig) -> Iterator[Setting]:
    stated = config.mlp_out_activation
    words = "there is no activation after fc2" if stated else "there is an activation after fc2 too"
    for activation in (config.activation, *ACTIVATIONS):
        changes = {"mlp_out_activation": not stated, "activation": activation}
        other = f", and activation is {activation}" if activation != config.activation else ""
        yield f"{words}{other}", changes


def _attentions(config: ViTConfig) -> Iterator[Setting]:
    """Other numbers of heads, and other scales."""
    inner = config.num_heads * config.head_dim
    # The largest ViT that was published has 48: https://arxiv.org/abs/2302.05442.
    for heads in range(1, min(inner, 64) + 1):
        if inner % heads == 0 and heads != config.num_heads and not config.qk_norm:
            pool_heads = config.pool_heads or config.num_heads
            changes = {
                "num_heads": heads,
                "head_dim": inner // heads,
                "pool_heads": pool_heads if config.map_pooling else 0,
            }
            yield f"num_heads is {heads}, not {config.num_heads}", changes
    yield from _scales(config)


def _scales(config: ViTConfig) -> Iterator[Setting]:
    """Other scales of the products of q and k, or of the probabilities."""
    stated, after = config.attention_scale or config.head_dim**-0.5, config.post_softmax_scale
    scales = {
        "head_dim ** -0.5": config.head_dim**-0.5,
        "embed_dim ** -0.5": config.embed_dim**-0.5,
        "1": 1.0,
        # muP: Yang et al., https://arxiv.org/abs/2203.03466
        "1 / head_dim": 1 / config.head_dim,
    }
    for words, scale in scales.items():
        if scale != stated:
            yield f"attention_scale is {words}, not {stated:.6g}", {"attention_scale": scale}
    for words, scale in scales.items():
        if scale != after:
            # Scaled there alone, or by what is already known before too.
            for before in dict.fromkeys((1.0, stated)):
                cause = (
                    f"the probabilities are scaled after the softmax: post_softmax_scale is {words}"
                    f", not {after:.6g}, and attention_scale is {before:.6g}"
                )
                yield cause, {"attention_scale": before, "post_softmax_scale": scale}


def _poolings(config: ViTConfig) -> Iterator[Setting]:
    stated = config.pooling
    for pooling in POOLINGS:
        if pooling in ("map", "none", "token_avg") or config.map_pooling or stated == "none":
            continue
        for prefix in (False, True):
            changes = {"pooling": pooling, "pool_include_prefix": prefix}
            if pooling != stated:
                words = " over all tokens" if prefix and config.num_prefix_tokens else ""
                yield f"pooling is {pooling}{words}, not {stated}", changes
            elif prefix != config.pool_include_prefix:
                yield f"pool_include_prefix is {prefix}, not {not prefix}", changes


def _rearrangements(
    config: ViTConfig, weights: Weights, part: str, number: int | None
) -> Iterator[Rearrangement]:
    """Weights laid out in another way, in places where shapes would not show it."""
    block = f"blocks.{number}"
    match part:
        case "patch_embed":
            yield from _patches(weights)
        case "embedding":
            yield from _positions(config, weights)
        case "attn":
            if config.joined_qkv:
                yield from _qkv(config, weights, f"{block}.attn.qkv")
            yield from _transposed(weights, f"{block}.attn.proj.weight")
            yield from _joined_heads(config, weights, f"{block}.attn.proj.weight")
            yield from _exchanged(weights, f"{block}.norm1", f"{block}.norm2")
        case "mlp":
            yield from _transposed(weights, f"{block}.mlp.fc1.weight")
            yield from _transposed(weights, f"{block}.mlp.fc2.weight")
        case _:
            yield from _transposed(weights, "pre_logits.fc.weight")
            yield from _transposed(weights, "head.weight")
            yield from _exchanged(weights, "head", "head_dist")


def _patches(weights: Weights) -> Iterator[Rearrangement]:
    name = "patch_embed.proj.weight"
    kernel = weights[name]
    width, channels, down, across = kernel.shape
    if down == across:
        yield f"{name} has rows and columns of a patch exchanged", {name: kernel.mT}
    if channels > 1:
        # OpenCV and Caffe read BGR; TensorFlow and JAX have channels last.
        yield f"{name} has its channels in reverse (BGR)", {name: kernel.flip(1)}
        last = kernel.reshape(width, down, across, channels).permute(0, 3, 1, 2)
        yield f"{name} has its channels last", {name: last}


def _positions(config: ViTConfig, weights: Weights) -> Iterator[Rearrangement]:
    if not config.learned_positions:
        return
    name = "pos_embed"
    table, prefix = weights[name], config.num_prefix_positions
    before, grid = table[:, :prefix], table[:, prefix:]
    down, across = config.grid_size
    turned = grid.reshape(1, across, down, -1).transpose(1, 2).flatten(1, 2)
    yield f"{name} is column by column, not row by row", {name: torch.cat((before, turned), 1)}
    for step, where in ((1, "previous"), (-1, "next")):
        moved = torch.cat((before, grid.roll(step, 1)), 1)
        yield f"{name} is off by one: each patch has that of the {where} one", {name: moved}
    if prefix:
        yield f"{name} has the class position last, not first", {name: table.roll(prefix, 1)}
        yield f"{name} has the class position first, not last", {name: table.roll(-prefix, 1)}
        zero = torch.cat((before * 0, grid), 1)
        yield f"{name} has a class position where the reference has none", {name: zero}


def _qkv(config: ViTConfig, weights: Weights, name: str) -> Iterator[Rearrangement]:
    both = [key for key in (f"{name}.weight", f"{name}.bias") if key in weights]
    parts = {key: weights[key].chunk(3) for key in both}
    for thirds in permutations(range(3)):
        if thirds != (0, 1, 2):
            # The third that we take for q is really the one that is put in its place here.
            words = ", ".join("qkv"[thirds.index(i)] for i in range(3))
            changed = {key: torch.cat([parts[key][i] for i in thirds]) for key in both}
            yield f"the thirds of {name} are {words}, not q, k, v", changed
    sizes = {"qkv": 3, "head": config.num_heads, "dim": config.head_dim}
    # The first two are Megatron-LM's, of its checkpoint versions 2 and 1:
    # transformers, convert_megatron_gpt2_checkpoint.py, fix_query_key_value_ordering.
    for order in (("head", "qkv", "dim"), ("head", "dim", "qkv"), ("qkv", "dim", "head")):
        back = [order.index(axis) for axis in sizes]
        changed = {}
        for key in both:
            split = weights[key].reshape(*(sizes[a] for a in order), *weights[key].shape[1:])
            changed[key] = split.permute(*back, *range(3, split.ndim)).flatten(0, 2)
        yield f"the rows of {name} are ({' '.join(order)}), not (qkv head dim)", changed
    weight = f"{name}.weight"
    rows, columns = parts[weight][0].shape
    if rows == columns:
        turned = [part.mT for part in parts[weight]]
        yield f"q, k and v in {weight} are transposed", {weight: torch.cat(turned)}
        for i, letter in enumerate("qkv"):
            mended = [turned[j] if j == i else part for j, part in enumerate(parts[weight])]
            yield f"{letter} in {weight} is transposed", {weight: torch.cat(mended)}


def _joined_heads(config: ViTConfig, weights: Weights, name: str) -> Iterator[Rearrangement]:
    """Other orders in which the heads' outputs are joined before the projection reads them."""
    if name not in weights or weights[name].shape[1] != config.num_heads * config.head_dim:
        return
    heads, dim = config.num_heads, config.head_dim
    columns = weights[name].reshape(-1, heads, dim)
    by_channel = weights[name].reshape(-1, dim, heads).transpose(1, 2)
    yield "the heads are joined (dim head), not (head dim)", {name: by_channel.flatten(1)}
    yield "the heads are joined in reverse", {name: columns.flip(1).flatten(1)}


def _transposed(weights: Weights, name: str) -> Iterator[Rearrangement]:
    if name in weights and weights[name].shape[0] == weights[name].shape[1]:
        yield f"{name} is transposed", {name: weights[name].mT}


def _exchanged(weights: Weights, first: str, second: str) -> Iterator[Rearrangement]:
    pairs = {
        f"{first}.{p}": f"{second}.{p}" for p in ("weight", "bias") if f"{first}.{p}" in weights
    }
    if pairs and all(name in weights for name in pairs.values()):
        changed = {one: weights[other] for one, other in pairs.items()}
        changed |= {other: weights[one] for one, other in pairs.items()}
        yield f"{first} and {second} are exchanged", changed
