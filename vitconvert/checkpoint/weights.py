"""The tensors of a checkpoint, under the names of its dialect and under ours."""

import functools
import glob
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vitconvert.config import Config, TextConfig, ViTConfig
from vitconvert.documents import JsonDict
from vitconvert.facts.plan import Plan, plan_reading
from vitconvert.formats import Container, TensorInfo
from vitconvert.settings import plain_arithmetic
from vitconvert.tables.detection import Recognised
from vitconvert.tables.parts import WHOLE, Tower
from vitconvert.tables.table import Table

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Tensors of an open file that a table explains; they are read on demand.

    Attributes:
        container: The open file.
        recognised: The table, matched to the header.
        config: What decides their function, by the header and by what is stated.
    """

    container: Container
    recognised: Recognised
    config: Config

    @property
    def table(self) -> Table:
        """How they are spelled."""
        return self.recognised.table

    @property
    def prefix(self) -> str:
        """What stands before the names of the table."""
        return self.recognised.prefix

    @functools.cached_property
    def plan(self) -> Plan:
        """How tensors under our names are made from those of the file."""
        return plan_reading(self.recognised.binding, self.config)

    @functools.cached_property
    def tensors(self) -> "LazyTensors":
        """All tensors under our names."""
        return LazyTensors(self)

    def read(self, key: str) -> "torch.Tensor":
        """A tensor of the file, by its key in the table.

        Raises:
            CorruptFile: The bytes of the tensor are damaged.
        """
        return self.container.read(self.prefix + key)

    @functools.cached_property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Dtype and shape of each tensor under our names, from the header alone."""
        infos = {}
        for assembly in self.plan.assemblies:
            sources = (self.prefix + piece.source for piece in assembly.pieces if piece.source)
            # torch's name, or those of all parts where they differ.
            dtype = " and ".join(sorted({self.container.manifest[name].dtype for name in sources}))
            infos[assembly.target] = TensorInfo(dtype=dtype, shape=self.plan.shape(assembly))
        return infos

    def _materialise(self, plan: Plan) -> "dict[str, torch.Tensor]":
        from vitconvert.facts.materialise import materialise

        with plain_arithmetic():
            return materialise(plan, self.read)


@dataclass(frozen=True, kw_only=True)
class Weights(Explained):
    """The ViT in an open file, whose header is explained.

    Attributes:
        config: Its configuration.
        tower: Where in a larger model the tensors stand.
        head: What the file calls a head of the user's own, where it has one.
    """

    config: ViTConfig
    tower: Tower = WHOLE
    head: str = ""

    @property
    def head_patterns(self) -> tuple[str, ...]:
        """What `--ignore` takes for the layer before the head, if it has one, and for the head."""
        binding, prefix = self.recognised.binding, self.tower.prefix + self.prefix
        if not self.config.representation_size:
            return ()
        linked = [
            link
            for layer in ("pre_logits.", "head.")
            for ours, links in binding.links.items()
            if ours.startswith(layer)
            for link in links
        ]
        keys = [link.theirs for link in linked if link.theirs is not None]
        found: dict[str, None] = {}
        for key in keys:
            module = key[: max(key.rfind("."), key.rfind("/")) + 1]
            alone = module and all(k in keys for k in binding.shapes if k.startswith(module))
            pattern = f"{glob.escape(module)}*" if alone else glob.escape(key)
            found[glob.escape(prefix) + pattern] = None
        return tuple(found)

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


class LazyTensors(Mapping[str, "torch.Tensor"]):
    """Tensors under our names, all of them read when the first is used.

    They are on the CPU, in the dtype of the file, and views on the mapped file where the layouts
    are the same.
    """

    def __init__(self, file: Explained) -> None:
        self._file = file

    @functools.cached_property
    def _read(self) -> "dict[str, torch.Tensor]":
        return self._file._materialise(self._file.plan)

    def __getitem__(self, name: str) -> "torch.Tensor":
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._file.infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.infos)

    def __len__(self) -> int:
        return len(self._file.plan.assemblies)

    def __repr__(self) -> str:
        return f"<{len(self)} tensors of {self._file.container.path.name}>"


@dataclass(frozen=True, kw_only=True)
class Text(Explained):
    """A text encoder whose header is verified: each of its tensors is used once.

    Attributes:
        config: Its configuration.
        dtype: What its tensors are cast to on the way; None leaves them.
    """

    config: TextConfig
    dtype: "torch.dtype | None" = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Its tensors, as the file calls them."""
        links = (link for several in self.recognised.binding.links.values() for link in several)
        return tuple(dict.fromkeys(link.theirs for link in links if link.theirs))

    def to_dict(self) -> JsonDict:
        """For `vitconvert.json` and `--json`."""
        return {"table": self.table.name, "tensors": len(self.keys), "config": vars(self.config)}

    def read(self, key: str) -> "torch.Tensor":
        """A tensor of the file, by its key in the table, cast if that is asked for.

        Raises:
            CorruptFile: The bytes of the tensor are damaged.
        """
        tensor = super().read(key)
        return tensor if self.dtype is None else tensor.to(self.dtype)
