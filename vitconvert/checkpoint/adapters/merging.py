"""A model's file with an adapter merged into it, tensor by tensor, when they are read.

The adapter's names and the file's are two spellings. Each tensor that the adapter changes is made
of the file's in the adapter's own layout, merged there as PEFT does, and laid back: two plans, and
the arithmetic of `changes` between them.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vitconvert.checkpoint.adapters.changes import Change, Factors, LowRank
from vitconvert.checkpoint.adapters.config import LORA, MERGED, AdapterConfig
from vitconvert.checkpoint.adapters.placement import (
    HEAD,
    AdapterPlacement,
    Wanted,
    place,
    weight_of,
)
from vitconvert.checkpoint.weights import Weights
from vitconvert.errors import MissingFact, TensorMismatch
from vitconvert.facts.plan import Plan, compose, plan_back, plan_overlay
from vitconvert.formats import Container, TensorInfo
from vitconvert.tables.binding import Link, links_of
from vitconvert.tables.canonical import instance
from vitconvert.tables.detection import common_prefix
from vitconvert.tables.parts import FoundViT
from vitconvert.tables.towers import tower_prefixes
from vitconvert.version import LIBRARY

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

_MERGED = "adapter: "  # before the adapter's names in plans, where the file may have the same
_LIBRARIES = ("timm", "transformers", LIBRARY)  # whose classes are known
_KEPT = 4  # merged tensors: one for q, k and v may be read for three


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter whose header adds up.

    Attributes:
        container: Its file.
        files: Every file of it that is read.
        config: What its adapter_config.json, or the user, says.
        name: What it is called in records: a repository, or the last name of a path.
        wanted: The tensors of the model that it changes or replaces, as it spells them.
        changes: Those that it changes, and by what.
        biases: Names of biases that a number is added to -> its tensor, and the scale.
        saved: Those that it replaces -> name in its file.
    """

    container: Container
    files: tuple[Path, ...]
    config: AdapterConfig
    name: str
    wanted: Mapping[str, Wanted]
    changes: Mapping[str, Change]
    biases: Mapping[str, tuple[str, float]]
    saved: Mapping[str, str]

    @property
    def kind(self) -> str:
        """Its kind, in records and messages."""
        if self.config.kind != LORA:
            return MERGED[self.config.kind]
        dora = any(isinstance(c, LowRank) and c.magnitude for c in self.changes.values())
        return "DoRA" if dora else "rsLoRA" if self.config.rslora else "LoRA"

    def renamed(self, names: Mapping[str, str]) -> "Adapter":
        """The same, where some of the model's tensors have other names: old -> new."""

        def spelled(by_name: Mapping[str, T]) -> dict[str, T]:
            return {names.get(name, name): value for name, value in by_name.items()}

        return replace(
            self,
            wanted=spelled(self.wanted),
            changes=spelled(self.changes),
            biases=spelled(self.biases),
            saved=spelled(self.saved),
        )


@dataclass(frozen=True, kw_only=True)
class Merge:
    """An adapter and its place in a file of weights.

    Attributes:
        base: The file, explained and verified.
        adapter: What is merged into it.
        placement: Where its tensors belong.
        effects: Name of a tensor in the adapter -> its largest change and the error of rounding,
            over its largest weight; as far as tensors were merged.
    """

    base: Weights
    adapter: Adapter
    placement: AdapterPlacement
    effects: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The merge in one sentence, from headers alone."""
        adapter = self.adapter
        changes = {
            name: one for name, one in adapter.changes.items() if name in self.placement.links
        }
        sums = [one for one in adapter.changes.values() if not isinstance(one, Factors)]
        parts = []
        if sums:
            ranks = sorted({one.rank for one in sums})
            scales = sorted({f"{one.scale:g}" for one in sums}, key=float)
            parts += [f"rank {' and '.join(map(str, ranks))}", f"scale {' and '.join(scales)}"]
        if changes:
            parts.append(_count({name.rpartition(".")[0] for name in changes}, "module"))
        if saved := [name for name in adapter.saved if name in self.placement.links]:
            parts.append(f"{_count(saved, 'tensor')} replaced: {', '.join(saved[:4])}")
        if self.placement.ignored:
            reasons = ", ".join(sorted(set(self.placement.ignored.values())))
            parts.append(f"{_count(self.placement.ignored, 'tensor')} not of it: {reasons}")
        if adapter.config.base:
            # Of a path, the last name: the others would tell of a machine.
            is_repository = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", adapter.config.base)
            names = re.split(r"[/\\]", adapter.config.base.rstrip("/\\"))
            parts.append(f"trained for {adapter.config.base if is_repository else names[-1]}")
        return f"merged the {adapter.kind} adapter {adapter.name}: {', '.join(parts)}"

    def measured(self) -> str:
        """The effect on the numbers, in one sentence; reads all of the adapter."""
        for name in self.placement.links:
            self.merged(name)
        change = max(change for change, _ in self.effects.values())
        rounding = max(rounding for _, rounding in self.effects.values())
        return (
            f"the adapter changes a weight by up to {change:.1e} of the largest of its tensor; "
            f"rounding once errs by up to {rounding:.1e}"
        )

    @functools.cached_property
    def touched(self) -> frozenset[str]:
        """Canonical names of all tensors that are changed or replaced."""
        return frozenset(link.ours for links in self.placement.links.values() for link in links)

    @functools.cached_property
    def _links(self) -> Mapping[str, tuple[Link, ...]]:
        """Name in the adapter -> its parts, without a head that replaces the file's."""
        links = self.placement.links.items()
        return {name: several for name, several in links if name not in self.placement.heads}

    @functools.cached_property
    def _there(self) -> Plan:
        """From the file to the adapter's layout."""
        return compose(self.base.plan, plan_back(self._links, self.base.plan.sizes))

    @functools.cached_property
    def _back(self) -> Plan:
        """From the adapter's layout, and what it leaves of the file, to the file."""
        laid = plan_overlay(self.base.plan, self._renamed(self._links))
        ours = {link.ours for links in self._links.values() for link in links}
        back: dict[str, list[Link]] = defaultdict(list)
        touched = set()
        for name, links in self.base.recognised.binding.links.items():
            for link in links:
                if link.theirs is not None:
                    back[link.theirs].append(link)
                    if name in ours:
                        touched.add(link.theirs)
                    continue
                for key, changing in self._links.items():
                    factors = isinstance(self.adapter.changes.get(key), Factors)
                    if factors and self.adapter.config.library == LIBRARY:
                        continue  # zero stays zero
                    steps = {one.our_step for one in changing if one.ours == name}
                    if factors and steps & {None, link.our_step}:
                        raise _unknown_bias(self.adapter, key)
                    if steps & {None, link.our_step}:
                        raise TensorMismatch(
                            "The adapter changes a tensor that the model's file does not have.",
                            evidence={"adapter": key, "model": f"{name}[{link.our_step}] is zero"},
                            hint="is the adapter for another model?",
                        )
        return compose(laid, plan_back({key: back[key] for key in touched}, laid.sizes))

    def _renamed(self, names: Iterable[str]) -> Iterator[Link]:
        for name in names:
            for link in self.placement.links[name]:
                yield link._replace(theirs=_MERGED + name)

    @functools.cached_property
    def merged(self) -> "Callable[[str], Tensor]":
        """Gives a tensor by its name in the adapter, merged, in the adapter's layout."""
        return functools.lru_cache(_KEPT)(self._merge)

    def _merge(self, name: str) -> "Tensor":
        import torch

        from vitconvert.facts.materialise import materialise

        adapter, read = self.adapter, self.adapter.container.read
        if name in self.placement.heads:
            saved = read(adapter.saved[name])
            tensor = saved.to(getattr(torch, self._dtype_of_heads))
            self.effects[name] = 1.0, _error(tensor, saved, of=saved)
            return tensor
        (assembly,) = (a for a in self._there.assemblies if a.target == name)
        weight = materialise(replace(self._there, assemblies=(assembly,)), self.base.read)[name]
        before = weight
        if name in adapter.saved:
            weight = read(adapter.saved[name]).to(weight.dtype)
        exact = weight.double()  # changed in float64, and rounded once
        if name in adapter.changes:
            exact = adapter.changes[name].applied(exact, read)
        if name in adapter.biases:
            key, scale = adapter.biases[name]
            exact = exact + scale * read(key).double()
        tensor = exact.to(weight.dtype)
        self.effects[name] = _error(tensor, before, of=before), _error(tensor, exact, of=weight)
        return tensor

    @functools.cached_property
    def _dtype_of_heads(self) -> str:
        """The dtype of the file, in which a new head is stored too."""
        manifest = self.base.container.manifest
        floats = (info.dtype for info in manifest.values() if "float" in info.dtype)
        return next(floats)

    def container(self) -> Container:
        """The file of weights as it is after the merge."""
        base, prefix = self.base.container, self.base.recognised.prefix
        gone = {
            prefix + str(link.theirs)
            for name, links in self.base.recognised.binding.links.items()
            for link in links
            if self.placement.heads and name.startswith(HEAD)
        }
        kept = {name: info for name, info in base.manifest.items() if name not in gone}
        heads = {
            prefix + plan.assemblies[0].target: TensorInfo(
                dtype=self._dtype_of_heads, shape=plan.shape(plan.assemblies[0])
            )
            for plan in self._new_heads
        }
        return replace(
            base,
            files=(*base.files, *self.adapter.files),
            manifest={**kept, **heads},
            places={},
            reader=self._read,
        )

    @functools.cached_property
    def _new_heads(self) -> tuple[Plan, ...]:
        """From the adapter to what the file would call each tensor of a new head."""
        table = self.base.table
        plans = []
        for name in self.placement.heads:
            (link, *_) = self.placement.links[name]
            back = link
            if self.placement.table.ecosystem != table.ecosystem:
                row = table.row_of[link.ours].alternatives[0]
                key = row.parts[0].key.write({}, table.first_texts(self.base.config))
                (back,) = links_of(row, instance(link.tensor, link.indices), {(0, ()): key})
            laid = plan_overlay(Plan((), self.placement.sizes), self._renamed([name]))
            plans.append(compose(laid, plan_back({str(back.theirs): [back]}, laid.sizes)))
        return tuple(plans)

    @functools.cached_property
    def _plans(self) -> Mapping[str, Plan]:
        """How each tensor of the file is made that the merge changes."""
        alone = {
            assembly.target: replace(self._back, assemblies=(assembly,), constants={})
            for assembly in self._back.assemblies
        }
        return {**alone, **{plan.assemblies[0].target: plan for plan in self._new_heads}}

    def _read(self, key: str) -> "Tensor":
        from vitconvert.facts.materialise import materialise

        def either(name: str) -> "Tensor":
            of_adapter = name.startswith(_MERGED)
            return self.merged(name.removeprefix(_MERGED)) if of_adapter else self.base.read(name)

        short = key.removeprefix(self.base.recognised.prefix)
        if short not in self._plans:
            return self.base.container.read(key)
        return materialise(self._plans[short], either)[short]


def _count(several: Sized, what: str) -> str:
    return f"{len(several)} {what}{'' if len(several) == 1 else 's'}"


def _error(after: "Tensor", before: "Tensor", *, of: "Tensor") -> float:
    """The largest difference, over the largest number of a tensor."""
    largest = max(float(of.double().abs().max()), 1e-300)
    return float((after.double() - before.double()).abs().max()) / largest


def merge_into(base: Weights, adapter: Adapter, part: FoundViT) -> Merge:
    """Find the place of an adapter in a model's file.

    Raises:
        TensorMismatch, AmbiguousDialect: As `placement.place`.
        MissingFact: As `_check_biases`.
    """
    tower = part.tower.prefix
    if part.head:  # the user's name of a head, for which the dialect has another
        of_head = {
            n: theirs for n, theirs in part.names.items() if theirs.startswith(f"{part.head}.")
        }
        adapter = adapter.renamed({theirs: tower + name for name, theirs in of_head.items()})
    wanted, inner = adapter.wanted, tower.removeprefix("model.")
    # What names of the vision encoder may begin with where the adapter was trained.
    known = ("", common_prefix(wanted), tower, inner, f"model.{inner}", *tower_prefixes())
    there = dict.fromkeys(p for p in known if any(name.startswith(p) for name in wanted))
    library = adapter.config.library
    placement = place(
        wanted,
        base.config,
        base.table,
        list(there),
        tower=bool(tower),
        own=None if library not in _LIBRARIES else library == LIBRARY,
        file=str(adapter.container.path),
    )
    if library not in _LIBRARIES:
        _check_biases(base, placement, adapter)
    return Merge(base=base, adapter=adapter, placement=placement)


def _check_biases(base: Weights, placement: AdapterPlacement, adapter: Adapter) -> None:
    """Make sure that what IA3 multiplies does not depend on whose class was adapted.

    timm's BEiT and EVA keep the biases of q and v outside of the layer, so that there its factors
    are for the weight alone; in ours they are for both.

    Raises:
        MissingFact: It does.
    """
    for name in placement.absent:
        for link in placement.links.get(weight_of(name), ()):
            biases = base.recognised.binding.links.get(
                f"{link.ours.removesuffix('weight')}bias", ()
            )
            steps = {None, link.our_step}
            if any(
                bias.theirs is not None and (bias.our_step in steps or link.our_step is None)
                for bias in biases
            ):
                raise _unknown_bias(adapter, weight_of(name))


def _unknown_bias(adapter: Adapter, layer: str) -> MissingFact:
    return MissingFact(
        "Nothing says whether the factors of a layer are for its bias too.",
        evidence={"adapter": adapter.container.path, "layer": layer},
        meaning="In timm's BEiT and EVA they are not, in vitconvert's ViT they are.",
        hint="merge it with PEFT (merge_and_unload), and convert what that wrote.",
    )
