"""The attention of each token of a model in one image: by head, block and rollout.

Letters: H heads, N tokens (prefix tokens, then patches row by row). Everything is counted from 0.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, UsageError, VitConvertError
from vitconvert.inference.batches import check_fit
from vitconvert.inference.predict import Candidate, check_classifier, prediction, warn_of_names
from vitconvert.model import ViT
from vitconvert.model.attention_maps import each_attention
from vitconvert.model.inputs import chosen_layers
from vitconvert.pages import framed
from vitconvert.pictures.overlay import coloured, overlaid, raw_map
from vitconvert.pictures.page import Panel, Plane, chosen_heads, page, planes_by_head
from vitconvert.pictures.seen import (
    CLASS,
    MEAN,
    PATCH,
    POOLING,
    MapsOfImage,
    Query,
    SeenImage,
    Unseen,
    prefix_names,
    query_name,
    read_image,
    tokens_of,
)
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.finding import ImageSource, find_images
from vitconvert.settings import plain_arithmetic

MOST_BYTES = 2**31  # of the attention of one image: all of a ViT-H at 224 pixels has 800 MiB
ROLLOUT: Literal["rollout"] = "rollout"

Layer = int | Literal["rollout"]


@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionMaps(MapsOfImage):
    """The attention of a model in one image.

    A map is asked for by a layer (a block, or "rollout"), a head (None: the mean over all), both
    negative from the end, and a query: "class", "distillation", "register:0", "patch:ROW,COLUMN" or
    (row, column), "mean" over all patches, or "pooling", the query of map pooling. By default,
    the class token; without one, the pooling's query, or the mean.

    Attributes:
        photograph, prefix: What the model saw, and names of the tokens before the patches.
        depth: Blocks of the model.
        attention: Block -> (H, N, N), where rows attend to columns. Rows add up to 1, but for
            differential attention.
        pooling: Map pooling's own attention, (H, N), if the model pools so.
        flow: (N, N), how much of each final token (row) comes from each first token (column):
            attention rollout.
        top: The likeliest classes, if the model is a classifier.
    """

    depth: int
    attention: Mapping[int, Tensor]
    pooling: Tensor | None
    flow: Tensor
    top: tuple[Candidate, ...] = ()

    def query(self, query: Query = None) -> str:
        """The name of a query, or of the default."""
        whole = MEAN if self.pooling is None else POOLING
        return query_name(query, CLASS if CLASS in self.prefix else whole)

    def weights(self, layer: Layer = -1, head: int | None = None, query: Query = None) -> Tensor:
        """How much a query attends to each token, (N,).

        Raises:
            UsageError: There is no such block, head or token, or this block was not kept.
        """
        name = self.query(query)
        if layer == ROLLOUT and head is not None:
            raise UsageError("A rollout takes the mean over heads, so it has no single heads.")
        if name == POOLING:
            if self.pooling is None:
                raise UsageError(
                    "This model has no map pooling, so there is no query for the whole image.",
                    hint='"mean" is the mean over all patches.',
                )
            pooling = self.pooling
            return pooling.mean(0) @ self.flow if layer == ROLLOUT else _of_head(pooling, head)
        tokens = tokens_of(name, self.prefix, self.grid)
        rows = self.flow if layer == ROLLOUT else _of_head(self._block(layer), head)
        return rows[tokens].mean(0)

    def map(self, layer: Layer = -1, head: int | None = None, query: Query = None) -> Tensor:
        """How much a query attends to each patch, (rows, columns); see `weights`."""
        return self.weights(layer, head, query)[len(self.prefix) :].reshape(self.grid)

    def rollout(self, query: Query = None) -> Tensor:
        """How much of each patch reaches a query's token through all blocks, (rows, columns).

        Abnar and Zuidema, "Quantifying Attention Flow in Transformers",
        https://arxiv.org/abs/2005.00928: in each block, half is the mean over heads, and half the
        token itself; rows are made to add up to 1, and blocks multiplied. A negative weight of
        differential attention counts as none.
        """
        return self.map(ROLLOUT, None, query)

    def prefix_shares(
        self, layer: Layer = -1, head: int | None = None, query: Query = None
    ) -> dict[str, float]:
        """How much a query attends to each token before the patches, by its name."""
        found = self.weights(layer, head, query)[: len(self.prefix)]
        return dict(zip(self.prefix, found.tolist(), strict=True))

    def picture(
        self,
        layer: Layer = -1,
        head: int | None = None,
        query: Query = None,
        *,
        raw: bool = False,
    ) -> Image.Image:
        """A map in colours over the image, at the image's own size.

        The 2nd percentile of the map is black, the 98th pale yellow, and violet, red and orange
        lie between. What was cropped away is dark.

        Args:
            layer, head, query: As for `weights`.
            raw: The map alone, each patch flat, as grey levels; transparent where the model saw
                nothing ("LA").

        Raises:
            UsageError: As for `weights`.
            VitConvertError: The file can no longer be read, or has changed.
        """
        values, place = self.map(layer, head, query), self.photograph.placement
        if raw:
            return raw_map(values, place)
        return overlaid(self.photograph.picture(), coloured(values), place)

    def to_dict(
        self, layer: Layer = -1, head: int | None = None, query: Query = None
    ) -> dict[str, Any]:
        """The numbers of a map, as JSON types."""
        values = self.map(layer, head, query)
        row, column = divmod(int(values.argmax()), self.grid[1])
        pooling = self.pooling if self.query(query) == POOLING else None
        heads = 1 if head is None else len(self._block(layer) if pooling is None else pooling)
        return {
            "layer": layer if layer == ROLLOUT else int(layer) % self.depth,
            "head": "mean" if head is None else head % heads,
            "query": self.query(query),
            "smallest": float(values.min()),
            "largest": float(values.max()),
            "largest_patch": [row, column],
            "patches": float(values.sum()),
            "prefix": self.prefix_shares(layer, head, query),
        }

    def planes(self, heads: Sequence[int] | None = None) -> Iterator[Plane]:
        """All maps for a page: the mean over heads, and these heads (None: every one).

        Raises:
            UsageError: The model has not all of these heads.
        """
        for layer, attention in self.attention.items():
            yield from planes_by_head("attention", layer, attention, heads)
        flow = self.flow
        if self.pooling is not None:
            flow = torch.cat([flow, self.pooling.mean(0, keepdim=True) @ flow])
            yield from planes_by_head(POOLING, 0, self.pooling[:, None], None)
        yield Plane(what=ROLLOUT, rows=flow)

    def first_query(self, query: Query = None) -> str | tuple[int, int]:
        """A query by name, or by row and column if it is a patch.

        Raises:
            UsageError: The model has no such token.
        """
        name = self.query(query)
        self.weights(ROLLOUT, None, name)  # which refuses what there is not
        if not name.startswith(PATCH):
            return name
        (token,) = tokens_of(name, self.prefix, self.grid)
        row, column = divmod(token - len(self.prefix), self.grid[1])
        return row, column

    def to_html(self) -> str:
        """A page that needs nothing else: hover or click a patch and see what it attends to."""
        planes, query = list(self.planes()), self.first_query()
        seen, prefix = self.photograph, self.prefix
        said = self.classes
        return page([Panel(photograph=seen, prefix=prefix, planes=planes, query=query, said=said)])

    @property
    def classes(self) -> str:
        """The likeliest classes with their scores, in words; "" of no classifier."""
        return ", ".join(f"{c.label or f'class {c.index}'} {c.in_words(1)}" for c in self.top)

    def _repr_html_(self) -> str:
        return framed(self.to_html(), height="44rem", scripts=True)

    def _repr_png_(self) -> bytes:
        return self.picture()._repr_png_() or b""

    def _block(self, layer: Layer) -> Tensor:
        if not isinstance(layer, Integral) or not -self.depth <= layer < self.depth:
            raise UsageError(
                f"The model has no block {layer!r}.",
                evidence={"blocks": f"0 to {self.depth - 1}, or {ROLLOUT!r}"},
            )
        if layer % self.depth not in self.attention:
            raise UsageError(
                f"The attention of block {layer % self.depth} was not kept.",
                evidence={"kept": ", ".join(map(str, self.attention))},
                hint="`layers` chooses what is kept; None keeps all.",
            )
        return self.attention[layer % self.depth]


def _of_head(attention: Tensor, head: int | None) -> Tensor:
    if head is None:
        return attention.mean(0)
    return attention[chosen_heads([head], len(attention))[0]]


def attention_maps(
    model: ViT,
    images: ImageSource | Iterable[ImageSource],
    preprocessing: Preprocessing,
    *,
    layers: int | Sequence[int] | None = None,
    recursive: bool = False,
    labels: Sequence[str] | None = None,
    max_pixels: int | None = None,
) -> Iterator[AttentionMaps | Unseen]:
    """The attention of a model in each image, one at a time.

    Args:
        images: Files, folders, patterns and open images.
        layers: The blocks to keep: how many of the last, or which; all by default. The rollout is
            over all in any case.
        recursive: Look into subfolders too.
        labels: Names of the classes.
        max_pixels: The most of an image that the user allows.

    Raises:
        UsageError: There are no such blocks, or they would take more than 2 GiB.
        InputMismatch: The preprocessing does not make the images that the model reads.
    """
    model.config.require_images("A map of attention over an image")
    config = check_fit(model, preprocessing)
    kept = chosen_layers(layers, config.depth)
    heads = config.num_heads * (config.branches if config.parallel_branches else 1)
    tokens = config.num_prefix_tokens + config.num_patches
    needed = 4 * heads * len(kept) * tokens**2
    if needed > MOST_BYTES:
        raise UsageError(
            f"The attention of {len(kept)} blocks has {needed:,} bytes.",
            evidence={"tokens": tokens, "heads": heads},
            hint="keep fewer: --layers last (in Python, layers=1), or make the images smaller "
            "with --image-size.",
        )

    named = _is_classifier(config, labels)
    if named:
        warn_of_names(labels, config.num_classes)

    def read(source: Path | Image.Image) -> AttentionMaps | Unseen:
        try:
            seen, image = read_image(source, preprocessing, config, max_pixels=max_pixels)
            found = _attention(model, config, seen, image, kept)
            return replace(found, top=_classes(model, image, labels) if named else ())
        except VitConvertError as error:
            return Unseen.of(source, error)

    return map(read, find_images(images, recursive=recursive))


def _is_classifier(config: ViTConfig, labels: Sequence[str] | None) -> bool:
    try:
        check_classifier(config, labels)
    except ConflictingFact:
        return False
    return True


@plain_arithmetic()
def _classes(model: ViT, image: Tensor, labels: Sequence[str] | None) -> tuple[Candidate, ...]:
    """The three likeliest classes of an image (1, C, H, W)."""
    (logits,) = model(image.to(next(model.parameters()))).float().cpu()
    return prediction(None, logits, model, topk=3, labels=labels).top


@plain_arithmetic()
def _attention(
    model: ViT, config: ViTConfig, seen: SeenImage, image: Tensor, kept: Sequence[int]
) -> AttentionMaps:
    """The attention in an image (1, C, H, W) of a configuration, of which some blocks are kept.

    Raises:
        VitConvertError: Some of it is not finite.
    """
    image = image.to(next(model.parameters()))
    attention: dict[int, Tensor] = {}
    tokens = config.num_prefix_tokens + config.num_patches
    flow = itself = torch.eye(tokens, dtype=torch.float32)
    for layer, (weights,) in each_attention(model, image):
        found = weights.float().cpu()
        # Half is what passes the block by: Abnar and Zuidema, section 3.
        mixed = 0.5 * found.mean(0).clamp(min=0) + 0.5 * itself
        flow = mixed / mixed.sum(-1, keepdim=True) @ flow
        if layer in kept:
            attention[layer] = found
    pooling = None
    if model.attn_pool is not None:
        # The prefix tokens that map pooling does not read get no attention.
        skipped = 0 if config.pool_include_prefix else config.num_prefix_tokens
        read = model.forward_features(image)[:, skipped:]
        (weights,) = model.attn_pool.probabilities(read)
        pooling = torch.nn.functional.pad(weights.float().cpu(), (skipped, 0))
    if not (flow.isfinite().all() and all(found.isfinite().all() for found in attention.values())):
        raise VitConvertError(
            "The attention is not finite.", evidence={"image": seen.path or "in memory"}
        )
    return AttentionMaps(
        photograph=seen,
        prefix=prefix_names(config),
        depth=config.depth,
        attention=attention,
        pooling=pooling,
        flow=flow,
    )
