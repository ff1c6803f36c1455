"""One image as one model sees it, and which of its maps are asked for: `--query patch:7,3`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from PIL import Image

from vitconvert.errors import UsageError
from vitconvert.pictures.features import FeatureMaps, component_pixels
from vitconvert.pictures.maps import ROLLOUT, AttentionMaps, Layer
from vitconvert.pictures.page import Panel, chosen_heads
from vitconvert.pictures.seen import PATCH, POOLING, Query, query_name


@dataclass(frozen=True, kw_only=True)
class View:
    """Maps and features of the same image and model.

    Attributes:
        maps: What the model attends to.
        features: None if they were not asked for.
        model: Its name, where several are compared.
    """

    maps: AttentionMaps
    features: FeatureMaps | None = None
    model: str = ""
    error: ClassVar[None] = None

    def panel(self, heads: Sequence[int] | None = None, query: Query = None) -> Panel:
        """All of it for a page.

        Args:
            heads: Which to show besides the mean over all; None: every one.
            query: What attends at first.

        Raises:
            UsageError: The model has not these heads, or not this token.
        """
        planes = list(self.maps.planes(heads))
        if self.features is not None:
            planes += self.features.planes()
        return Panel(
            photograph=self.maps.photograph,
            prefix=self.maps.prefix,
            planes=planes,
            query=self.maps.first_query(query),
            components=component_pixels(self.features).tobytes() if self.features else b"",
            model=self.model,
            said=self.maps.classes,
        )


Shown = tuple[str, Callable[[], Image.Image]]
"""One picture of an image: its title, and what draws it."""


@dataclass(frozen=True, kw_only=True)
class ViewChoice:
    """Which maps of each image.

    Attributes:
        layers: Which blocks: how many of the last, or their numbers; None: all.
        heads: Their numbers; (): the mean alone; None: the mean and each.
        query, rollout, raw: As for `AttentionMaps`.
    """

    layers: int | list[int] | None = 1
    heads: tuple[int, ...] | None = ()
    query: Query = None
    rollout: bool = False
    raw: bool = False

    @classmethod
    def parse(
        cls, *, layers: str | None, heads: str | None, query: str | None, rollout: bool, raw: bool
    ) -> Self:
        """The options of the command line.

        Raises:
            UsageError: One of them makes no sense.
        """
        if rollout and (layers or heads):
            raise UsageError("A rollout is over all blocks and heads: leave out --layers, --heads.")
        words: dict[str, int | None] = {"last": 1, "all": None}
        kept = words[layers] if layers in words else _numbers(layers, "--layers", "last, all")
        chosen: list[int] | None = [] if heads in (None, "mean") else None
        if chosen is None and heads != "all":
            chosen = _numbers(heads, "--heads", "mean, all")
        return cls(
            layers=1 if layers is None else kept,
            heads=None if chosen is None else tuple(chosen),
            query=None if query is None else query_name(query, ""),
            rollout=rollout,
            raw=raw,
        )

    def pictures(self, view: View) -> Iterator[Shown]:
        """The pictures of one image."""
        for layer, head in self._maps(view.maps):
            title = self._title(view.maps, layer, head)
            draw = partial(view.maps.picture, layer, head, self.query, raw=self.raw)
            yield title, draw
        if (features := view.features) is not None:
            kinds = {"components": "components", "norms": "norms"}
            if isinstance(self.query, str) and self.query.startswith(PATCH):
                kinds["similarity"] = f"similarity, {self.query}"
            for kind, title in kinds.items():
                draw = partial(features.picture, kind, self.query, raw=self.raw)
                yield title, draw

    def to_dict(self, view: View) -> dict[str, Any]:
        """The numbers that they show, as JSON types."""
        photograph = view.maps.photograph
        return {
            "path": None if view.maps.path is None else str(view.maps.path),
            "model": view.model or None,
            "size": list(photograph.placement.original),
            "grid": list(view.maps.grid),
            "seen": list(photograph.placement.box),
            "maps": [view.maps.to_dict(*at, self.query) for at in self._maps(view.maps)],
            "features": None if view.features is None else view.features.to_dict(),
            "error": None,
        }

    def summary(self, view: View) -> Iterator[str]:
        """The same in a few lines."""
        rows, columns = view.maps.grid
        model = f"  {view.model}" if view.model else ""
        yield f"{view.maps.path or 'in memory'}{model}"
        yield f"  {rows}x{columns} patches{_unseen(view.maps)}"
        for layer, head in self._maps(view.maps):
            shown = view.maps.to_dict(layer, head, self.query)
            shares = "".join(f", {name} {share:.1%}" for name, share in shown["prefix"].items())
            row, column = shown["largest_patch"]
            title = self._title(view.maps, layer, head)
            yield (
                f"  {title}: patches {shown['patches']:.1%}{shares}; "
                f"largest {shown['largest']:.2%}, patch:{row},{column}"
            )
        if view.features is not None:
            norms = view.features.to_dict()["norms"]
            many = f"{len(norms['outliers'])} above 3 times the median"
            lengths = f"median {norms['median']:.4g}, largest {norms['largest']:.4g}"
            yield f"  norms of patches: {lengths}, {many}"

    def _maps(self, maps: AttentionMaps) -> Iterator[tuple[Layer, int | None]]:
        if self.rollout:
            yield ROLLOUT, None
            return
        heads: list[int | None] = [None]
        if maps.query(self.query) == POOLING and maps.pooling is not None:
            layers, count = [maps.depth - 1], len(maps.pooling)
        else:
            layers = sorted(maps.attention)  # a page keeps all of them
            if isinstance(self.layers, int):
                layers = layers[-self.layers :]
            elif self.layers is not None:
                layers = sorted({layer % maps.depth for layer in self.layers})
            count = len(maps.attention[layers[0]])
        if self.heads != ():
            shown = chosen_heads(self.heads, count)
            heads = [None, *shown] if self.heads is None else [*shown]
        yield from ((layer, head) for layer in layers for head in heads)

    def _title(self, maps: AttentionMaps, layer: Layer, head: int | None) -> str:
        query = maps.query(self.query)
        if layer == ROLLOUT:
            return f"rollout, {query}"
        part = "mean" if head is None else f"head {head}"
        return f"pooling, {part}" if query == POOLING else f"block {layer}, {part}, {query}"


def _numbers(text: str | None, option: str, words: str) -> list[int]:
    parts = [part.strip() for part in (text or "").split(",")]
    whole = all(part.removeprefix("-").isdecimal() and len(part) < 6 for part in parts)
    if text is not None and not whole:
        raise UsageError(f"{option} {text} is not one of {words}, nor numbers such as 3,5.")
    return [int(part) for part in parts] if text is not None else []


def _unseen(maps: AttentionMaps) -> str:
    """How much of the image the model did not see."""
    place = maps.photograph.placement
    top, left, bottom, right = place.box
    height, width = place.original
    rows = min(bottom, height) - max(top, 0)
    columns = min(right, width) - max(left, 0)
    share = max(rows, 0) * max(columns, 0) / (height * width)
    return "" if share > 0.9995 else f"; {1 - share:.1%} of the image is cropped off"
