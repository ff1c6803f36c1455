"""The features of images."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor, cat

from vitconvert.config import ViTConfig
from vitconvert.errors import ConflictingFact, UsageError, VitConvertError
from vitconvert.inference.batches import (
    Compute,
    Ready,
    check_fit,
    not_finite,
    run_in_batches,
)
from vitconvert.inference.options import POOLS, FeatureOptions
from vitconvert.inference.preparing import Output, Picture
from vitconvert.model import ViT


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """The features of one image, or the error that it gave."""

    path: Path | None  # None for an open image
    features: Tensor | None = None  # (D,), or (N, D) tokens; float32 on the CPU
    error: VitConvertError | None = None
    remarks: tuple[str, ...] = ()  # what of the file was left out

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "path": None if self.path is None else str(self.path),
            "features": None if self.features is None else self.features.tolist(),
            "error": None if self.error is None else self.error.to_dict(),
            "remarks": list(self.remarks),
        }


_POOLED = {
    "token": "class token",
    "avg": "mean of {}",
    "max": "maximum of {}",
    "avgmax": "mean and maximum of {}",
    "map": "attention pooling of {}",
    "token_avg": "class token and mean of the patches",
    "prefix_avg": "mean of the tokens in front of the patches",
    "none": "all tokens",
}


@dataclass(frozen=True, kw_only=True)
class Features:
    """What is taken of an image.

    Attributes:
        config: Of the model.
        computed: "features": what the classification head reads, (D,) for each image; timm's
            `forward_head(..., pre_logits=True)`. Of a model that pools nothing they are its
            tokens, (N, D), after patches were merged. "tokens": all tokens after the last block
            and the final norm, (N, D): class token and registers, then patches row by row; timm's
            `forward_features`. "projected": CLIP's projection of the pooled features. Divide it by
            its length to compare it with texts. It is `image_embeds` of
            `CLIPVisionModelWithProjection` (transformers 5.23) and `encode_image` (open_clip 3.3).
        layer: The block, from 1, whose output is taken as it is; None: after the final norm.
        pool: One of POOLS, in place of `computed`.
    """

    config: ViTConfig
    computed: str
    layer: int | None = None
    pool: str | None = None

    @classmethod
    def of(cls, config: ViTConfig, computed: str, options: FeatureOptions) -> "Features":
        """What the options mean for a model.

        Raises:
            UsageError: The model has no such layer, or the options contradict.
            ConflictingFact: It has no class token.
        """
        options.check(computed)
        layer, depth = options.layer, config.depth
        if layer is not None:
            if not 1 <= abs(layer) <= depth:
                raise UsageError(
                    "The model does not have this layer.",
                    evidence={"layer": layer, "layers": f"1 to {depth}, or -{depth} to -1"},
                )
            layer = layer if layer > 0 else depth + 1 + layer
        if options.pool in ("cls", "cls_mean") and not config.class_token:
            raise ConflictingFact(
                "The model has no class token.",
                evidence={"it pools by": config.pooling},
                hint="--pool mean, patches or tokens (in Python, pool='mean').",
            )
        if layer is None and options.pool in (None, "tokens"):
            return cls(config=config, computed="tokens" if options.pool else computed)
        return cls(config=config, computed=computed, layer=layer, pool=options.pool or "tokens")

    @property
    def shape(self) -> tuple[int, ...]:
        """What an image becomes: (D,), or (N, D) of tokens and of a model that pools nothing."""
        config, prefix = self.config, self.config.num_prefix_tokens
        tokens = prefix + config.num_patches
        if self.pool is not None or self.computed == "tokens":
            width = config.embed_dim if self.layer else config.neck_dim or config.embed_dim
            width *= 2 if self.pool == "cls_mean" else 1
            counts = {"cls": (), "mean": (), "cls_mean": (), "patches": (config.num_patches,)}
            return (*counts.get(self.pool or "tokens", (tokens,)), width)
        width = config.num_classes if self.computed == "projected" else config.feature_dim
        if config.pooling != "none":
            return (width,)
        down, across = (-(-side // (config.merge_size or 1)) for side in config.grid_size)
        return (prefix + down * across, width)

    def in_words(self, dtype: str = "float32") -> str:
        """Such as "features (768,) float32: class token after the final norm"."""
        config = self.config
        where = "the final norm" if config.final_norm else "the last block, without a norm"
        if self.layer is not None:
            where = f"block {self.layer} of {config.depth}, without the final norm"
        elif config.neck_dim:
            where = "the neck"
        what, then = POOLS["tokens"], ""
        if self.pool is not None:
            what = POOLS[self.pool]
        elif self.computed != "tokens":
            read = "all tokens" if config.pool_include_prefix else "the patches"
            what = _POOLED[config.pooling].format(read)
            if config.dist_head:
                what = "mean of class and distillation token"
            then = self._afterwards()
        return f"features {self.shape} {dtype}: {what} after {where}{then}"

    def _afterwards(self) -> str:
        config = self.config
        steps = {
            "patches merged": config.merge_size,
            "then normed": config.fc_norm or config.bare_fc_norm,
            "through the layer before the head": config.representation_size,
            "projected": self.computed == "projected",
        }
        return "".join(f", {step}" for step, taken in steps.items() if taken)

    def compute(self, model: ViT) -> Compute:
        """What gives them of a batch of images."""
        if self.pool is not None:
            return lambda batch: self._pooled(self._tokens(model, batch))
        if self.computed == "features":
            return lambda batch: _own(model, batch)
        return model if self.computed == "projected" else model.forward_features

    def _tokens(self, model: ViT, batch: Tensor) -> Tensor:
        if self.layer is None:
            return model.forward_features(batch)
        return next(islice(model.residual_stream(batch), self.layer, None))

    def _pooled(self, tokens: Tensor) -> Tensor:
        patches = tokens[:, self.config.num_prefix_tokens :]
        match self.pool:
            case "cls":
                return tokens[:, 0]
            case "mean":
                return patches.mean(dim=1)
            case "cls_mean":
                return cat([tokens[:, 0], patches.mean(dim=1)], dim=1)
        return patches if self.pool == "patches" else tokens


def _own(model: ViT, batch: Tensor) -> Tensor:
    """What the head reads, pooled as the model pools."""
    if not model.config.num_classes:
        features: Tensor = model(batch)  # here a fast model does not compute unused tokens
        return features
    tokens = model.forward_features(batch)
    return model.forward_head(tokens, pre_logits=True, grid=model.grid_of(batch))


def embed(running: Ready, pictures: Iterable[Picture], features: Features) -> Iterator[Embedding]:
    """The features of each image, in the order of the images, one at a time.

    Args:
        running: What computes.
        pictures: The images.
        features: Which they are, of this model.

    Raises:
        InputMismatch: The preprocessing does not make the images that the model reads.
        ConflictingFact: The model has no projection.
    """
    check_fit(running.model, running.preprocessing)
    if features.computed == "projected":
        _check_projection(running.model)
    outputs = run_in_batches(running, features.compute(running.model), pictures)
    return (_embedding(one, running.model) for one in outputs)


def _check_projection(model: ViT) -> None:
    config = model.config
    if not config.num_classes:
        raise ConflictingFact(
            "The model has no projection.",
            hint="leave out --projected (in Python, projected=True).",
        )
    # timm has no head without a bias: it writes CLIP's projection with a bias of zeros.
    if config.head_bias and model.get_parameter("head.bias").any():
        raise ConflictingFact(
            "The model's head has a bias, so it is a classifier and not a projection.",
            evidence={"classes": config.num_classes},
            hint="leave out --projected (in Python, projected=True).",
        )


def _embedding(found: Output, model: ViT) -> Embedding:
    path, features, remarks = found
    if isinstance(features, VitConvertError):
        return Embedding(path=path, error=features, remarks=remarks)
    if not features.isfinite().all():
        return Embedding(path=path, error=not_finite("features", model), remarks=remarks)
    return Embedding(path=path, features=features, remarks=remarks)
