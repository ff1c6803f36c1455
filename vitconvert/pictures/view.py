"""One photograph as one model sees it: what it attends to, and, if wanted, its features."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from vitconvert.pictures.features import FeatureMaps, component_pixels
from vitconvert.pictures.maps import AttentionMaps
from vitconvert.pictures.page import Panel
from vitconvert.pictures.tokens import Query


@dataclass(frozen=True, kw_only=True)
class View:
    """Maps and features of the same photograph and model.

    Attributes:
        maps: What the model attends to.
        features: None if nobody asked for them.
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
        )
