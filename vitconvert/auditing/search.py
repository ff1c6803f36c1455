"""The search for each parameter of a model in a file: by its name, and by content where needed."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from vitconvert.auditing.arithmetic import (
    closeness,
    computed_from,
    is_no_chance,
    is_quantised_from,
    is_scaled,
)
from vitconvert.auditing.content import (
    FLOATS_OF_8_BITS,
    OVERWRITTEN,
    FileContent,
    Origin,
    as_a_whole,
    as_first_rows,
    equal,
    has_fractions,
    in_threads,
    is_constant,
    is_regular,
    is_weight,
    order_of,
    overwritten,
    plain,
)
from vitconvert.auditing.held import LoadedTensors
from vitconvert.auditing.losses import Shape, partners
from vitconvert.auditing.names import (
    are_siblings,
    as_in_other_blocks,
    differ_in_a_word,
    head_before,
    in_any_block,
    joined_out_of_order,
    namesakes,
    numbers_in,
    part_of,
    siblings,
    template,
)
from vitconvert.auditing.tensors import Read

_FEW = 64  # numbers
_CLOSE = 0.1  # of a tensor's norm: what training leaves of numbers that are nearly the same


@dataclass
class Verdicts:
    """What is found out of parameters, one after the other."""

    untouched: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    misplaced: dict[str, str] = field(default_factory=dict)
    undecidable: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A tensor of the file without its numbers."""

    shape: torch.Size
    dtype: torch.dtype
    constant: bool
    weight: bool
    fractions: bool


class TensorSearch:
    """A file and the parameters of a model, each of which is looked for in it.

    Attributes:
        held: What the model holds.
        parameters: Names of what is looked for.
        namesakes: Parameter -> tensors of the file of its name.
        varied: Weights of the file whose numbers are not all the same.
        computed_names: Weights of the file that stand for quantised ones.
        head: What all names of the file begin with, and none of the model's.
    """

    def __init__(
        self,
        read: Read,
        names: Sequence[str],
        held: LoadedTensors,
        computed_names: Collection[str] = (),
    ) -> None:
        self.held, self.computed_names = held, computed_names
        self._stored = read
        self._kinds = {name: _kind(self._read(name)) for name in names}
        weights = {name: kind for name, kind in self._kinds.items() if kind.weight}
        self._constants = sorted(name for name, kind in weights.items() if kind.constant)
        self.varied = [name for name, kind in weights.items() if not kind.constant]
        self.namesakes = namesakes(names, [n for n, t in held.tensors.items() if is_weight(t)])
        # Whole numbers count where the file has such: others are tables that a model makes itself.
        self.parameters = [
            name
            for name, tensor in held.tensors.items()
            if has_fractions(tensor)
            or any(not self._kinds[own].fractions for own in self.namesakes.get(name, ()))
        ]
        self._contents: dict[torch.dtype, FileContent] = {}
        self.head = head_before(names, held.tensors)
        self._tied = self._ties()
        self._whole = self._settled()
        self._origins: dict[str, Origin | None] = {}

    def _read(self, name: str) -> Tensor:
        return plain(self._stored(name))

    def _ties(self) -> Mapping[str, str]:
        """Names that the file does not have -> another of the same memory, which it may have.

        Of tied weights most files have one, under one of their names.
        """
        groups: dict[str, list[str]] = {}
        for name, first in self.held.tied().items():
            groups.setdefault(first, [first]).append(name)
        ties: dict[str, str] = {}
        for group in groups.values():
            known = next((name for name in group if name in self.namesakes), group[0])
            ties |= {n: known for n in group if n != known and n not in self.namesakes}
        return ties

    def _settled(self) -> Mapping[str, Origin]:
        """What is one tensor of the file: of its name, or with the same numbers at some places.

        The bytes of both are compared, once, before any row is looked for.
        """
        found: dict[str, Origin] = {}
        for candidates in (lambda name, _: self._own(name), self._sampled):
            left = [
                name
                for name in self.parameters
                if name not in found and not self.held.is_absent(name) and name not in self._tied
            ]
            compared = in_threads(
                partial(_one_of, values, dict(candidates(name, values)))
                for name in left
                for values in [self.held.read(name)]
            )
            origins = zip(left, compared, strict=True)
            found |= {name: origin for name, origin in origins if origin is not None}
        return found

    def _sampled(self, name: str, values: Tensor) -> list[tuple[str, Tensor]]:
        """Tensors of the file that are likely a parameter, those of its name or part first."""
        own, part = self.namesakes.get(name, ()), part_of(name)
        alike = self._content(values.dtype).with_sample_of(values) if values.numel() else []
        alike.sort(key=lambda one: (one not in own, part_of(one) != part))
        return [(one, self._read(one)) for one in alike]

    def _own(self, name: str) -> list[tuple[str, Tensor]]:
        """Tensors of a parameter's name, or of one that it is tied to."""
        own = self.namesakes.get(self._tied.get(name, name), ())
        return [(one, self._read(one)) for one in own]

    def _content(self, dtype: torch.dtype) -> FileContent:
        """The file as its numbers are in a dtype; those that do not round are all float32."""
        dtype = dtype if dtype.is_floating_point and dtype.itemsize < 4 else torch.float32
        if dtype not in self._contents:
            shapes = {name: self._kinds[name].shape for name in self.varied}
            self._contents[dtype] = FileContent(self._read, shapes, dtype)
        return self._contents[dtype]

    def origin(self, name: str, found: Verdicts) -> Origin | None:
        """Where a parameter's numbers come from, and whether they belong there; None: not found."""
        if self.held.is_absent(name):
            return None
        if name in self._tied and self._tied[name] in self._origins:
            return self._origins[self._tied[name]]
        origin, parameter = self._whole.get(name), self.held.tensors[name]
        if origin is None:
            values = self.held.read(name)
            if is_constant(values):
                return self._of_constant(name, values, found)
            origin = self._of_content(name, values)
        if origin is not None:
            self._judge_place(name, origin, found)
            origin = self._with_cast(origin, parameter.dtype)
        self._origins[name] = origin
        return origin

    def _of_content(self, name: str, values: Tensor) -> Origin | None:
        """The one tensor that a parameter is, or the rows that it is made of."""
        content, part = self._content(values.dtype), part_of(name)
        own = self.namesakes.get(name, ())
        replaced = (overwritten(values, theirs, one) for one, theirs in self._own(name))
        if (found := next(filter(None, replaced), None)) is not None:
            return found
        if content.lacks(values):
            return self._enlarged(name, values)
        prints = content.prints(values)
        alike = content.alike(values.numel(), prints)
        for one in sorted(alike, key=lambda n: (n not in own, part_of(n) != part)):
            if (whole := as_a_whole(values, self._read(one), one)) is not None:
                return whole
        if (joined := content.of_rows(values, prints, own)) is not None:
            return joined
        if alike and values.ndim < 2:
            how = "the numbers in another order"
            order = order_of(values, self._read(alike[0]))
            return Origin(
                names=(alike[0],), how=how, reordered=True, irregular=not is_regular(order)
            )
        return self._enlarged(name, values)

    def _enlarged(self, name: str, values: Tensor) -> Origin | None:
        enlarged = (as_first_rows(values, theirs, one) for one, theirs in self._own(name))
        return next(filter(None, enlarged), None)

    def _of_constant(self, name: str, values: Tensor, found: Verdicts) -> Origin | None:
        """A parameter of one number: by its name alone, and undecidable without."""
        first = values.reshape(-1)[:1]
        own = [one for one in self.namesakes.get(name, ()) if self._kinds[one].weight]
        for candidate in own or self._constants:
            kind = self._kinds[candidate]
            alike = kind.constant and kind.shape.numel() == values.numel()
            if alike and equal(first, self._read(candidate).reshape(-1)[:1]):
                found.undecidable.append(name)
                return Origin(names=())
        fits = any(self._kinds[one].shape.numel() == values.numel() for one in own)
        if not fits and part_of(name) and self._is_joined_with(name, first, values.numel()):
            found.undecidable.append(name)
            return Origin(names=())
        return None

    def _is_joined_with(self, name: str, first: Tensor, count: int) -> bool:
        """Whether the tensor that its siblings are parts of has a part of this number, too.

        As of keys without a bias, whose zeros stand in a joined one.
        """
        for other in siblings(name, self.parameters):
            if self.held.is_absent(other) or is_constant(self.held.read(other)):
                continue
            origin = self.origin(other, Verdicts())
            for joined in origin.names if origin else ():
                theirs = self._read(joined)
                if theirs.ndim == 1 and len(theirs) > count and not len(theirs) % count:
                    parts = theirs.reshape(-1, count)
                    if any(equal(first.expand(count), part) for part in parts):
                        return True
        return False

    def shape_of(self, name: str) -> Shape:
        """The shape of a tensor of the file."""
        return tuple(self._kinds[name].shape)

    def overwritten(
        self, found: Verdicts, origins: Mapping[str, Origin]
    ) -> dict[str, tuple[str, ...]]:
        """Parameter -> the tensors that belong there by the names that other blocks landed by.

        The class renames, and did so for them: that one was changed afterwards, or left out. One
        of one number is lost too, where its tensors have others.
        """
        held: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
        for name, origin in origins.items():
            if name not in found.misplaced and origin.names:
                held[template(name)][name] = origin.names
        shown: dict[str, tuple[str, ...]] = {}
        for name in (*found.untouched, *found.undecidable):
            if name in self.namesakes or self.held.is_absent(name):
                continue
            alike = {
                other: tensors
                for other, tensors in held[template(name)].items()
                if self.held.tensors[other].shape == self.held.tensors[name].shape
            }
            there = as_in_other_blocks(name, alike, self._kinds)
            shapes = [[self.shape_of(one) for one in tensors] for tensors in alike.values()]
            if not there or [self.shape_of(one) for one in there] not in shapes:
                continue
            parts = any(self.is_part(name, one) for one in there)
            varied = not parts and any(not self._kinds[one].constant for one in there)
            if name in found.untouched or varied:
                shown[name] = there
        for name, tensors in shown.items():
            if name in found.undecidable:
                found.undecidable.remove(name)
            found.untouched[name] = f"the file has it as {', '.join(tensors)}"
        return shown

    def partners(self, found: Verdicts, landed: Collection[str]) -> dict[str, str]:
        """Tensors in no parameter that are likely meant for one that found none of its name.

        A parameter of one number that has one with others is lost, and not undecidable.

        Args:
            found: What is known of parameters; what is said of them is changed.
            landed: Tensors that are in a parameter, or known to belong into one.
        """
        named = {name for own in self.namesakes.values() for name in own}
        unnamed = (*found.untouched, *found.undecidable)
        shapes = {n: tuple(self.held.tensors[n].shape) for n in unnamed if n not in self.namesakes}
        lost = {name: shape for name, shape in shapes.items() if not self.held.is_absent(name)}
        if not lost:
            return {}
        weights = (name for name, kind in self._kinds.items() if kind.weight)
        free = (name for name in weights if name not in landed and name not in named)
        others = partners(lost, {name: self.shape_of(name) for name in free}, self.head)
        for name, other in others.items():
            if name in found.undecidable and not self._kinds[other].constant:
                found.undecidable.remove(name)
                found.untouched[name] = ""
            if name in found.untouched:
                found.untouched[name] = f"the file has {other}"
        return {name: other for name, other in others.items() if name in found.untouched}

    def mixed(self, landed: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Of two copies of a model in a file, parameters that hold the one that few others do.

        Args:
            landed: Pairs of a tensor of the file and the one parameter that holds it.
        """
        copies = {}
        for tensor, parameter in landed:
            own = self.namesakes.get(parameter, ())
            if len(own) > 1 and tensor in own:
                end = parameter
                while not all(name.endswith(end) for name in own):
                    end = end[1:]
                copies[parameter] = tensor, tensor.removesuffix(end), end
        counts = Counter(head for _, head, _ in copies.values())
        if len(counts) < 2:
            return
        usual = counts.most_common(1)[0][0]
        for parameter, (tensor, head, end) in copies.items():
            other = usual + end
            same = other in self._kinds and torch.equal(self._read(tensor), self._read(other))
            if head != usual and not same:
                yield parameter, f"holds {tensor}, while most hold {usual}*"

    def is_part(self, parameter: str, tensor: str) -> bool:
        """Whether a parameter is too small to hold all of a tensor."""
        return self.held.tensors[parameter].numel() < self._kinds[tensor].shape.numel()

    def transposed_alone(self, origins: Mapping[str, Origin]) -> Iterator[tuple[str, str]]:
        """Square parameters that are transposed, where none with two sizes is, and others are not.

        Names of the same last word are compared: `kernel`, `weight`.
        """
        ways: dict[str, set[str]] = defaultdict(set)
        needless = []
        for parameter, origin in origins.items():
            if len(origin.names) == 1 and self.held.tensors[parameter].ndim > 1:
                word, way = origin.names[0].rpartition(".")[2], _transposed(origin)
                if origin.needless:
                    needless.append((parameter, word, way))
                else:
                    ways[word].add(way)
        for parameter, word, way in needless:
            if ways[word] and way not in ways[word]:
                yield parameter, f"holds {origins[parameter].names[0]} {way}, unlike others"

    def held_twice(self, landed: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
        """Parameters of one kind that hold the same tensor, while another of its kind is in none.

        Copies in a file, as heads that all layers share, are no others.
        """
        kinds: dict[tuple[str, str], list[str]] = defaultdict(list)
        for tensor, parameters in landed.items():
            for kind in {template(name) for name in parameters}:
                kinds[template(tensor), kind].append(tensor)
        of_kind: dict[str, list[str]] = defaultdict(list)
        for name in self.varied:
            of_kind[template(name)].append(name)
        for (theirs, ours), tensors in kinds.items():
            for tensor in tensors:
                several = [name for name in landed[tensor] if template(name) == ours]
                several = [name for name in several if name not in self._tied]
                idle = {*of_kind[theirs]} - {*tensors} if len(several) > 1 else set()
                alike = [n for n in idle if self.shape_of(n) == self.shape_of(tensor)]
                if all(equal(self._read(tensor), self._read(name)) for name in alike):
                    continue
                known = Counter(numbers_in(tensor))
                shared = {n: (known & Counter(numbers_in(n))).total() for n in several}
                right = [n for n in several if shared[n] == max(shared.values())]
                for name in several:
                    if right != [name]:
                        yield name, f"holds {tensor}, as others do, and {min(alike)} is in none"

    def held_by_siblings(self, landed: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
        """Parameters of one block that hold the same tensor, while its sibling is in none.

        As queries that hold the keys. Names say which of them is wrong, or other blocks do, in
        which each parameter holds a tensor of its own.
        """
        usual: dict[str, set[str]] = defaultdict(set)
        for tensor, parameters in landed.items():
            if len(parameters) == 1:
                usual[in_any_block(tensor)].add(in_any_block(parameters[0]))
        idle = [name for name in self.varied if name not in landed]
        for tensor, parameters in landed.items():
            several = [name for name in parameters if name not in self._tied]
            several = [n for n in several if any(are_siblings(n, other) for other in several)]
            lost = self._idle_twin(tensor, idle, are_siblings)
            if not several or lost is None:
                continue
            parts = [n for n in several if part_of(n) not in ("", part_of(tensor))]
            own = usual[in_any_block(tensor)]
            others = [n for n in several if in_any_block(n) not in own]
            wrong = parts if part_of(tensor) and parts else others
            for name in wrong or several:
                yield name, f"holds {tensor}, as others do, and {lost} is in none"

    def _idle_twin(
        self, tensor: str, idle: Sequence[str], alike: Callable[[str, str], bool]
    ) -> str | None:
        """The first tensor in no parameter that has the shape of another one, and a name alike."""
        same = (name for name in idle if self.shape_of(name) == self.shape_of(tensor))
        return next((name for name in same if alike(name, tensor)), None)

    def joined_twice(
        self, origins: Mapping[str, Origin], landed: Collection[str]
    ) -> Iterator[tuple[str, str]]:
        """Joined parameters that hold a tensor twice, while one that is like it is in none."""
        idle = [name for name in self.varied if name not in landed]
        for parameter, origin in origins.items():
            numbers = sum(self._kinds[tensor].shape.numel() for tensor in origin.names)
            if origin.zeros or numbers >= self.held.tensors[parameter].numel():
                continue
            for tensor in origin.names:
                if (lost := self._idle_twin(tensor, idle, differ_in_a_word)) is not None:
                    yield parameter, f"holds {tensor} more than once, and {lost} is in none"

    def zeros_for_others(
        self, origins: Mapping[str, Origin], landed: Collection[str]
    ) -> Iterator[tuple[str, str]]:
        """Parameters with zeros in place of a tensor that is like those beside them."""
        idle = [name for name in self.varied if name not in landed]
        for parameter, origin in origins.items():
            for tensor in origin.names if origin.zeros and not origin.unexplained else ():
                if (other := self._idle_twin(tensor, idle, differ_in_a_word)) is not None:
                    yield parameter, f"{origin.how}: numbers of {other} {OVERWRITTEN} 0"
                    break

    def _judge_place(self, name: str, origin: Origin, found: Verdicts) -> None:
        own = [n for n in self.namesakes.get(name, ()) if self._kinds[n].weight]
        size = self.held.tensors[name].numel()
        if own and not {*own} & {*origin.names}:
            if any(self._kinds[candidate].shape.numel() == size for candidate in own):
                found.misplaced[name] = f"holds {', '.join(origin.names)}"
        elif origin.irregular or (origin.reordered and own):
            found.misplaced[name] = f"holds {origin.names[0]}: {origin.how}"
        parts = "".join(part_of(tensor) for tensor in origin.names)
        if len(parts) == len(origin.names) > 1 and parts not in ("qk", "kv", "qv", "qkv"):
            found.misplaced[name] = f"holds its parts in the order {', '.join(parts)}"
        elif wrong := joined_out_of_order(name, origin.names):
            found.misplaced[name] = f"holds its parts in the order {', '.join(wrong)}"

    def _with_cast(self, origin: Origin, dtype: torch.dtype) -> Origin:
        dtypes = {self._kinds[tensor].dtype for tensor in origin.names} - {dtype}
        if not dtypes or dtype.is_complex or dtype in _OF_TORCH:
            return origin
        stored = ", ".join(sorted(_word(dtype) for dtype in dtypes))
        cast = f"cast from {stored} to {_word(dtype)}"
        how = f"{origin.how}, {cast}" if origin.how else cast
        return replace(origin, how=how)

    def computed(self, name: str) -> Origin | None:
        """The tensor that a parameter was computed from, in a way that is known."""
        if self.held.is_absent(name):
            return None
        parameter = self.held.read(name)
        if is_constant(parameter):
            return None
        own = self.namesakes.get(self._tied.get(name, name))
        for candidate in own or self.varied:
            theirs = self._read(candidate)
            cosine = is_quantised_from(parameter, theirs) if name in self.held.quantised else None
            if cosine is not None:
                words = f"quantised: cosine {cosine:.4f} or more, row by row, with {candidate}"
                return Origin(names=(candidate,), how=words)
            # The codes of quantised weights are multiples of these, and are no weights.
            scaled = candidate not in self.computed_names
            if (how := computed_from(parameter, theirs, scaled=scaled)) is not None:
                kind = self._kinds[candidate]
                codes = not kind.fractions or kind.dtype in FLOATS_OF_8_BITS
                return Origin(
                    names=(candidate,),
                    how=f"{how}, of {candidate}",
                    unexplained=is_scaled(how) and not codes,
                )
        return None

    def trained(self, name: str, found: Verdicts) -> Origin | None:
        """The tensor of its name that a parameter was before it was trained.

        Initial numbers have nothing in common with the file, and those that were trained for a
        while have much. Of few numbers, or of ones that are all the same in the file, nothing
        says it.
        """
        if self.held.is_absent(name):
            return None
        values = self.held.read(name)
        for candidate, theirs in self._own(name):
            if theirs.numel() != values.numel():
                continue
            near = closeness(values, theirs)
            if is_no_chance(near.correlation, values.numel()):
                how = f"trained, or changed: {near.correlation:.4f} like {candidate}"
                return Origin(names=(candidate,), how=how)
            few = values.numel() < _FEW and near.correlation > 0.5
            if few or (self._kinds[candidate].constant and near.distance <= _CLOSE):
                found.undecidable.append(name)
                return Origin(names=())
        return None

    def judge_unfound(self, name: str, found: Verdicts, *, before_known: bool) -> None:
        """A parameter whose numbers are not in the file, and are not those of before."""
        own = self.namesakes.get(name, ())
        if self.held.is_absent(name):
            found.untouched[name] = "on the meta device"
            return
        parameter = self.held.read(name)
        how, near = "nothing in the file is like it", False
        kind = self._kinds[own[0]] if own else None
        if kind and not has_fractions(parameter) and kind.fractions:
            how = f"{_word(parameter.dtype)}: quantised, which nothing compares with {own[0]}"
            near = True
        elif kind and has_fractions(parameter) and not kind.fractions:
            how = f"the file has {own[0]} as {_word(kind.dtype)}: quantised"
        elif kind and kind.shape.numel() == parameter.numel():
            alike = closeness(parameter, self._read(own[0]))
            near = is_no_chance(alike.correlation, parameter.numel())
            how = f"the cosine with {own[0]} is {alike.cosine:.4f}"
        if before_known or near:
            found.unexplained.append(name)
            found.changed[name] = how
        else:
            self.judge_untouched(name, found)

    def judge_untouched(self, name: str, found: Verdicts) -> None:
        """A parameter that is as it was."""
        own = self.namesakes.get(name, ())
        if self.held.is_absent(name):
            found.untouched[name] = "on the meta device"
        elif not own:
            found.untouched[name] = "the file has nothing of this name"
        else:
            shape, wanted = tuple(self._kinds[own[0]].shape), tuple(self.held.tensors[name].shape)
            there = f"the file has it as {own[0]}" if own[0] != name else "the file has it"
            found.untouched[name] = (
                there if shape == wanted else f"{wanted}, and in the file {shape}"
            )


_OF_TORCH = {torch.qint8, torch.quint8, torch.qint32}


def _kind(tensor: Tensor) -> _Kind:
    return _Kind(
        shape=tensor.shape,
        dtype=tensor.dtype,
        constant=is_weight(tensor) and is_constant(tensor),
        weight=is_weight(tensor),
        fractions=has_fractions(tensor),
    )


def _one_of(values: Tensor, candidates: Mapping[str, Tensor]) -> Origin | None:
    """How a parameter is one of some tensors; None for numbers that are all the same."""
    if is_constant(values):
        return None
    wholes = (as_a_whole(values, theirs, name) for name, theirs in candidates.items())
    return next(filter(None, wholes), None)


def _transposed(origin: Origin) -> str:
    """How a whole tensor was transposed; "" if it was not."""
    return origin.how.partition(", cast")[0] if "transposed" in origin.how else ""


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
