"""The tensors of a checkpoint, under the names of its dialect and under ours."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vitconvert.config import TextConfig, ViTConfig
from vitconvert.documents import JsonDict
from vitconvert.facts.plan import Plan, plan_reading
from vitconvert.formats import Container, TensorInfo
from vitconvert.tables.binding import Binding
from vitconvert.tables.detection import Recognised
from vitconvert.tables.parts import WHOLE, Tower
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Weights:
    """An open file of weights, whose header is explained; tensors are read on demand.

    Attributes:
        container: The open file.
        recognised: The dialect's table, matched to the header.
        config: The configuration that follows from the header and from what is stated.
        tower: Where in a larger model the tensors stand.
        head: What the file calls a head of the user's own, where it has one.
    """

    container: Container
    recognised: Recognised
    config: ViTConfig
    tower: Tower = WHOLE
    head: str = ""

    @property
    def table(self) -> Table:
        """The dialect."""
        return self.recognised.table

    @functools.cached_property
    def plan(self) -> Plan:
        """How canonical tensors are made from those of the file."""
        return plan_reading(self.recognised.binding, self.config)

    @functools.cached_property
    def tensors(self) -> "LazyTensors":
        """All tensors under canonical names."""
        return LazyTensors(self)

    def read(self, key: str) -> "torch.Tensor":
        """A tensor of the file, by its key in the dialect.

        Raises:
            CorruptFile: The bytes of the tensor are damaged.
        """
        return self.container.read(self.recognised.prefix + key)

    @functools.cached_property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Dtype and shape of each canonical tensor, from the header alone."""
        manifest, prefix = self.container.manifest, self.recognised.prefix
        infos = {}
        for assembly in self.plan.assemblies:
            sources = (prefix + piece.source for piece in assembly.pieces if piece.source)
            # torch's name, or those of all parts where they differ.
            dtype = " and ".join(sorted({manifest[source].dtype for source in sources}))
            infos[assembly.target] = TensorInfo(dtype=dtype, shape=self.plan.shape(assembly))
        return infos

    def read_canonical(self, name: str) -> "torch.Tensor":
        """Read one canonical tensor, and do not keep it."""
        (assembly,) = (a for a in self.plan.assemblies if a.target == name)
        return self._materialise(replace(self.plan, assemblies=(assembly,), constants={}))[name]

    def check_constants(self) -> None:
        """Check that tensors which are ignored as constants have the expected values.

        Raises:
            NotRepresentable: One has not.
        """
        self._materialise(replace(self.plan, assemblies=()))

    def _materialise(self, plan: Plan) -> "dict[str, torch.Tensor]":
        from vitconvert.facts.materialise import materialise

        return materialise(plan, self.read)


class LazyTensors(Mapping[str, "torch.Tensor"]):
    """Tensors under canonical names, all of them read when the first is used.

    They are on the CPU, in the dtype of the file, and views on the mapped file where the layouts
    are the same.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    @functools.cached_property
    def _read(self) -> "dict[str, torch.Tensor]":
        return self._weights._materialise(self._weights.plan)

    def __getitem__(self, name: str) -> "torch.Tensor":
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._weights.infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights.infos)

    def __len__(self) -> int:
        return len(self._weights.plan.assemblies)

    def __repr__(self) -> str:
        return f"<{len(self)} tensors of {self._weights.container.path.name}>"


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

    @functools.cached_property
    def plan(self) -> Plan:
        """How tensors under our names are made from those of the file."""
        return plan_reading(self.binding, self.config)

    @property
    def keys(self) -> tuple[str, ...]:
        """Its tensors, as the file calls them."""
        links = (link for several in self.binding.links.values() for link in several)
        return tuple(dict.fromkeys(link.theirs for link in links if link.theirs))

    def to_dict(self) -> JsonDict:
        """For `vitconvert.json` and `--json`."""
        return {"table": self.table.name, "tensors": len(self.keys), "config": vars(self.config)}

    def read(self, key: str) -> "torch.Tensor":
        """A tensor of the file, by its key in the table, cast if that is asked for.

        Raises:
            CorruptFile: The bytes of the tensor are damaged.
        """
        tensor = self.container.read(self.prefix + key)
        return tensor if self.dtype is None else tensor.to(self.dtype)
