"""The text tower beside an image tower, found among the tensors that the ViT leaves.

It is not computed here. Its tensors and what is said of it are carried to where both have a place.
"""

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vitconvert.checkpoint.companions import Companions
from vitconvert.checkpoint.recognition import Reading
from vitconvert.checkpoint.weights import Weights
from vitconvert.config import TextConfig
from vitconvert.errors import NotRepresentable, VitConvertError, some
from vitconvert.facts.accounts import check_accounts, check_dtypes
from vitconvert.facts.plan import Plan, plan_reading
from vitconvert.facts.text_tower import DescribedText, derive_text
from vitconvert.formats import Container
from vitconvert.tables.binding import Binding, bind
from vitconvert.tables.detection import denied_by
from vitconvert.tables.dialects import text_tables_beside
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text tower whose header is proved: each of its tensors is used once.

    Attributes:
        config: What decides its function, besides the weights.
        binding: Its table, matched to the header.
        container: The open file.
        prefix: What stands before the names of the table.
        dtype: What its tensors are cast to on the way; None leaves them.
    """

    config: TextConfig
    binding: Binding
    container: Container
    prefix: str
    dtype: "torch.dtype | None" = None

    @property
    def table(self) -> Table:
        """How it is spelled."""
        return self.binding.table

    @property
    def described(self) -> DescribedText:
        """What a target is chosen by."""
        return DescribedText(config=self.config, table=self.table)

    @functools.cached_property
    def plan(self) -> Plan:
        """How tensors under our names are made from those of the file."""
        return plan_reading(self.binding, self.config)

    @property
    def keys(self) -> tuple[str, ...]:
        """Its tensors, as the file calls them."""
        links = (link for several in self.binding.links.values() for link in several)
        return tuple(dict.fromkeys(link.theirs for link in links if link.theirs))

    def to_dict(self) -> dict[str, Any]:
        """For `vitconvert.json` and `--json`."""
        return {"table": self.table.name, "tensors": len(self.keys), "config": vars(self.config)}

    def read(self, key: str) -> "torch.Tensor":
        """A tensor of the file, by its key in the table, cast if that is asked for.

        Raises:
            CorruptFile: The bytes of the tensor are damaged.
        """
        tensor = self.container.read(self.prefix + key)
        return tensor if self.dtype is None else tensor.to(self.dtype)


def text_found(reading: Reading) -> Reading:
    """Find the text tower of a file, or why it cannot be carried."""
    assert reading.weights is not None
    text, problem = _find_text(reading.weights, reading.companions)
    return replace(reading, text=text, text_problem=problem)


def _find_text(weights: Weights, companions: Companions) -> tuple[Text | None, str]:
    """The text tower, or None and a problem.

    It can where one table explains every tensor that the image tower leaves, and everything that
    decides its function is known. A file without one has neither.
    """
    tables = () if weights.tower.prefix else text_tables_beside(weights.table, weights.config)
    binding = weights.recognised.binding
    shapes = {key: binding.shapes[key] for key in binding.ignored}
    found = [tried for table in tables if (tried := bind(table, shapes)).links]
    fitting = next((tried for tried in found if tried.fits), None)
    if fitting is None:
        nearest = max(found, key=lambda tried: tried.explained, default=None)
        return None, _why_not(nearest) if nearest else ""
    if said := denied_by(fitting.table, companions.whole_config):
        title = fitting.table.title
        return None, f"config.json says {said}, whose texts may be read otherwise than by {title}"
    try:
        return _proved(fitting, weights, companions), ""
    except NotRepresentable as error:
        return None, error.in_one_line()
    except VitConvertError as error:
        return None, "; ".join((error.fact.rstrip("."), *error.details))


def _why_not(nearest: Binding) -> str:
    left = [*nearest.unexplained, *nearest.misfits, *nearest.misshapen]
    lacking = [" or ".join(group) for group in nearest.lacking]
    what = f"does not explain {some(left)}" if left else f"finds no {', '.join(lacking)}"
    return f"the table of {nearest.table.title} {what}"


def _proved(binding: Binding, weights: Weights, companions: Companions) -> Text:
    container, prefix = weights.container, weights.recognised.prefix
    config = derive_text(binding, companions.whole_config)
    file = str(container.path)
    check_accounts(binding, config, file)
    check_dtypes(binding, {k: container.manifest[prefix + k].dtype for k in binding.shapes}, file)
    return Text(config=config, binding=binding, container=container, prefix=prefix)
