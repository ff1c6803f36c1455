"""Which tensors of a file landed in a model, whatever code loaded them."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys
from torch.utils.hooks import RemovableHandle

from vitconvert.auditing.arithmetic import computed_from, likeness
from vitconvert.auditing.content import (
    FileContent,
    Origin,
    is_constant,
    is_weight,
    numbers,
    plain,
)
from vitconvert.auditing.held import LoadedTensors, Model, held_by, title_of
from vitconvert.auditing.losses import Evidence, Loss, Shape, allowed, losses, partners
from vitconvert.auditing.names import answer_in_words, astray, namesakes, part_of
from vitconvert.auditing.report import counts, report_lines
from vitconvert.auditing.tensors import File, Tensors, tensors_of
from vitconvert.documents import JsonDict
from vitconvert.errors import UsageError, printable
from vitconvert.settings import plain_arithmetic


class LoadAudit:
    """What of a file is in a model: found by its numbers, whatever the names are.

    As a context manager it knows the model as it was before; without, what the model was
    initialised with is all that is not in the file.

    Attributes:
        model: What was loaded into; or what another process loaded.
        landed: Tensor of the file -> the parameter that holds it, or several, with commas.
        untouched: Parameters, and buffers of fractions that are saved, that are as initialised.
        changed: Parameter -> how it was changed on the way.
        misplaced: Parameter -> the other tensor that it holds, or the order of its parts.
        undecidable: Parameters of which each number is the same, as in a tensor of the file: the
            content does not say whether they landed.
        unused: Weights of the file that are in no parameter.
        unexplained: Parameters in `changed` that are no known function of a tensor of the file.
        answers: What `load_state_dict` answered meanwhile, in words.
        missing: Why each of `untouched` is.
        count: How many parameters there are.
        source: The file.
        losses: What was lost, by kind, and what to do.
        allowed: Lost parameters that match a pattern of `allow`.
        by, notes, said: Of a library's own loader: its name, what was assumed, and what it printed.
    """

    def __init__(
        self, model: Model, source: Tensors, *, strict: bool = False, allow: Sequence[str] = ()
    ) -> None:
        self.model = model
        self.landed: Mapping[str, str] = {}
        self.untouched: tuple[str, ...] = ()
        self.changed: Mapping[str, str] = {}
        self.misplaced: Mapping[str, str] = {}
        self.undecidable: tuple[str, ...] = ()
        self.unused: tuple[str, ...] = ()
        self.unexplained: tuple[str, ...] = ()
        self.answers: tuple[str, ...] = ()
        self.source, self._strict = source, strict
        self._before: Mapping[str, str] | None = None
        self.missing: Mapping[str, str] = {}
        self.count = 0
        self.losses: tuple[Loss, ...] = ()
        self.allowed: tuple[str, ...] = ()
        self.by = ""
        self.notes: tuple[str, ...] = ()
        self.said: tuple[str, ...] = ()
        self._allow = allow
        self._hooks: list[RemovableHandle] = []
        self._heard: list[_IncompatibleKeys] = []

    @property
    def complete(self) -> bool:
        """Whether each parameter holds what the file has for it, as far as content can say.

        Those that are allowed to be new do not count.
        """
        lost = {*self.untouched, *self.misplaced, *self.unexplained}
        return bool(self.landed) and lost <= {*self.allowed}

    @plain_arithmetic()
    def __enter__(self) -> Self:
        self._before = held_by(self.model).digests()
        modules = () if isinstance(self.model, LoadedTensors) else self.model.modules()
        for module in modules:  # any of which may be loaded by itself
            hook = module.register_load_state_dict_post_hook(self._hear)  # type: ignore[no-untyped-call]
            self._hooks.append(hook)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self.answers = tuple(
            line
            for one in self._heard
            for line in answer_in_words(one.missing_keys, one.unexpected_keys)
        )
        if error is None:
            self.look()

    def _hear(self, _: nn.Module, answer: _IncompatibleKeys) -> None:
        # All modules of one load have the same lists.
        if not any(answer.missing_keys is one.missing_keys for one in self._heard):
            self._heard.append(answer)

    @plain_arithmetic()
    def look(self) -> Self:
        """Compare the model as it is now with the file.

        Raises:
            AssertionError: It is not complete, and the audit is `strict`.
            CorruptFile: The file is damaged.
        """
        held = held_by(self.model)
        kept = held.tensors.values()
        packed = any(is_weight(one) and not one.is_floating_point() for one in kept)
        if self.source.dequantised and not packed:
            self.source = self.source.dequantised
        with self.source.opened() as read:
            names = self.source.names
            self._compare(_TensorSearch(lambda name: plain(read(name)), names, held))
        if self._strict and not self.complete:
            raise AssertionError(str(self))
        return self

    def _compare(self, comparison: "_TensorSearch") -> None:
        landed: dict[str, list[str]] = {}
        found, self.count = _Verdicts(), len(comparison.parameters)
        before = self._before or {}
        after = comparison.held.digests() if before else {}
        for name in comparison.parameters:
            origin = comparison.origin(name, found)
            if origin is None and before.get(name) != after.get(name, ""):
                origin = comparison.computed(name)
            if origin is None:
                unchanged = before.get(name) in (None, after.get(name))
                comparison.judge_unfound(name, found, unchanged=unchanged)
                continue
            if origin.how:
                found.changed[name] = origin.how
            for tensor in origin.names:
                landed.setdefault(tensor, []).append(name)
        pairs = [(t, ps[0]) for t, ps in landed.items() if len(ps) == 1]
        renamed = [(t, p) for t, p in pairs if p not in comparison.namesakes]
        found.misplaced |= dict(astray(renamed))
        found.misplaced |= dict(comparison.mixed(pairs))
        others = comparison.partners(found, landed)
        self.landed = {tensor: ", ".join(names) for tensor, names in landed.items()}
        self.untouched, self.changed = tuple(found.untouched), found.changed
        self.misplaced, self.undecidable = found.misplaced, tuple(found.undecidable)
        self.unexplained, self.missing = tuple(found.unexplained), found.untouched
        self.unused = tuple(name for name in comparison.varied if name not in landed)
        evidence = Evidence(
            held=comparison.held,
            namesakes=comparison.namesakes,
            landed=landed,
            partners=others,
            shape_of=comparison.shape_of,
        )
        unexplained = {name: found.changed[name] for name in found.unexplained}
        self.losses = losses(found.untouched, found.misplaced, unexplained, evidence)
        lost = [name for loss in self.losses for name in loss.parameters]
        self.allowed = allowed(lost, self._allow)

    def to_dict(self) -> JsonDict:
        """For JSON."""
        return {
            "file": self.source.title,
            "complete": self.complete,
            "landed": dict(self.landed),
            "untouched": list(self.untouched),
            "changed": dict(self.changed),
            "misplaced": dict(self.misplaced),
            "undecidable": list(self.undecidable),
            "unused": list(self.unused),
            "unexplained": list(self.unexplained),
            "answers": list(self.answers),
            "allowed": list(self.allowed),
            "losses": [loss.to_dict() for loss in self.losses],
            "model": title_of(self.model),
            "parameters": self.count,
            "by": self.by,
            "notes": list(self.notes),
            "said": list(self.said),
        }

    def __str__(self) -> str:
        return "\n".join(map(printable, report_lines(self)))

    def __repr__(self) -> str:
        return f"<LoadAudit {self.source.title!r}: {counts(self)}>"


@dataclass
class _Verdicts:
    """What is found out of parameters, one after the other."""

    untouched: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    misplaced: dict[str, str] = field(default_factory=dict)
    undecidable: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)


class _TensorSearch:
    """A file and the parameters of a model, each of which is looked for in it."""

    def __init__(
        self,
        read: Callable[[str], Tensor],
        names: Sequence[str],
        held: LoadedTensors,
    ) -> None:
        self.held = held
        parameters = {n: t if held.is_absent(n) else held.read(n) for n, t in held.tensors.items()}
        self.namesakes = namesakes(names, [n for n, t in parameters.items() if is_weight(t)])
        # Whole numbers count where the file has such: others are tables that a model makes itself.
        self.parameters = {
            name: tensor
            for name, tensor in parameters.items()
            if tensor.is_floating_point()
            or any(not read(own).is_floating_point() for own in self.namesakes.get(name, ()))
        }
        self._read, self._names = read, [name for name in names if is_weight(read(name))]
        self._contents: dict[torch.dtype, FileContent] = {}
        self.constants = {name for name in self._names if is_constant(read(name))}
        self.varied = [name for name in self._names if name not in self.constants]

    def _content(self, dtype: torch.dtype) -> FileContent:
        """The file as its numbers are in a dtype; those that do not round are all float32."""
        dtype = dtype if dtype.is_floating_point and dtype.itemsize < 4 else torch.float32
        if dtype not in self._contents:
            self._contents[dtype] = FileContent(self._read, self.varied, dtype)
        return self._contents[dtype]

    def origin(self, name: str, found: "_Verdicts") -> Origin | None:
        """Where a parameter's numbers come from, and whether they belong there; None: not found."""
        parameter = self.parameters[name]
        if parameter.is_meta:
            return None
        values = numbers(parameter, parameter.dtype)
        if is_constant(values):
            return self._of_constant(name, values, found)
        origin = self._whole(name, values) or self._content(parameter.dtype).of_rows(
            values, self.namesakes.get(name, ())
        )
        if origin is None:
            return None
        self._judge_place(name, origin, found)
        return self._with_cast(origin, parameter)

    def _whole(self, name: str, values: Tensor) -> Origin | None:
        """The one tensor that a parameter is: of its name, which is faster, or of any."""
        dtype, own = self.parameters[name].dtype, self.namesakes.get(name, ())
        for candidate in own:
            if torch.equal(numbers(self._read(candidate), dtype), values):
                return Origin(names=(candidate,))
        content, part = self._content(dtype), part_of(name)
        alike = sorted(content.alike(values), key=lambda n: (n not in own, part_of(n) != part))
        return next(filter(None, (content.whole(values, one) for one in alike)), None)

    def _of_constant(self, name: str, values: Tensor, found: "_Verdicts") -> Origin | None:
        """A parameter of one number: by its name alone, and undecidable without."""
        number = values.flatten()[0] if values.numel() else None
        own = self.namesakes.get(name, ())
        for candidate in own or sorted(self.constants):
            theirs = numbers(self._read(candidate), values.dtype)
            same = theirs.numel() == values.numel() and candidate in self.constants
            if same and (number is None or theirs.flatten()[0] == number):
                found.undecidable.append(name)
                return Origin(names=())
        return None

    def _judge_place(self, name: str, origin: Origin, found: "_Verdicts") -> None:
        own = [n for n in self.namesakes.get(name, ()) if n in self._names]
        shape = self.parameters[name].shape
        if own and not {*own} & {*origin.names}:
            if any(self._read(candidate).shape == shape for candidate in own):
                found.misplaced[name] = f"holds {', '.join(origin.names)}"
        elif origin.reordered and own:
            found.misplaced[name] = f"holds {origin.names[0]}: {origin.how}"
        parts = "".join(part_of(tensor) for tensor in origin.names)
        if len(parts) == len(origin.names) > 1 and parts not in ("qk", "kv", "qv", "qkv"):
            found.misplaced[name] = f"holds its parts in the order {', '.join(parts)}"

    def _with_cast(self, origin: Origin, parameter: Tensor) -> Origin:
        dtypes = {self._read(tensor).dtype for tensor in origin.names} - {parameter.dtype}
        if not dtypes:
            return origin
        stored = ", ".join(sorted(_word(dtype) for dtype in dtypes))
        cast = f"cast from {stored} to {_word(parameter.dtype)}"
        how = f"{origin.how}, {cast}" if origin.how else cast
        return replace(origin, how=how)

    def shape_of(self, name: str) -> Shape:
        """The shape of a tensor of the file."""
        return tuple(self._read(name).shape)

    def partners(self, found: "_Verdicts", landed: Collection[str]) -> dict[str, str]:
        """Tensors in no parameter that are likely meant for one that found none of its name.

        A parameter of one number that has one with others is lost, and not undecidable.
        """
        named = {name for own in self.namesakes.values() for name in own}
        unnamed = (*found.untouched, *found.undecidable)
        lost = {n: tuple(self.parameters[n].shape) for n in unnamed if n not in self.namesakes}
        if not lost:
            return {}
        free = (name for name in self._names if name not in landed and name not in named)
        others = partners(lost, {name: self.shape_of(name) for name in free})
        for name, other in others.items():
            if name in found.undecidable and other not in self.constants:
                found.undecidable.remove(name)
                found.untouched[name] = ""
            if name in found.untouched:
                found.untouched[name] = f"the file has {other}, in no parameter"
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
            if head != usual and not torch.equal(self._read(tensor), self._read(other)):
                yield parameter, f"holds {tensor}, while most hold {usual}*"

    def computed(self, name: str) -> Origin | None:
        """The tensor that a parameter was computed from, in a way that is known."""
        parameter = self.parameters[name]
        if parameter.is_meta or is_constant(numbers(parameter, parameter.dtype)):
            return None
        for candidate in self.namesakes.get(name) or self._names:
            if (how := computed_from(parameter, self._read(candidate))) is not None:
                return Origin(names=(candidate,), how=f"{how}, of {candidate}")
        return None

    def judge_unfound(self, name: str, found: "_Verdicts", *, unchanged: bool) -> None:
        """A parameter whose numbers are not in the file: as initialised, or changed."""
        parameter, own = self.parameters[name], self.namesakes.get(name, ())
        if parameter.is_meta:
            found.untouched[name] = "on the meta device"
            return
        if unchanged:
            found.untouched[name] = self._why_untouched(name, own)
            return
        found.unexplained.append(name)
        how = "nothing in the file is like it"
        if own and parameter.is_floating_point() != self._read(own[0]).is_floating_point():
            how = f"the file has {own[0]} as {_word(self._read(own[0]).dtype)}: quantised"
        elif own and self._read(own[0]).numel() == parameter.numel():
            alike = likeness(parameter, self._read(own[0]))
            how = f"the cosine with {own[0]} is {alike:.4f}"
        found.changed[name] = how

    def _why_untouched(self, name: str, own: Sequence[str]) -> str:
        if not own:
            return "the file has nothing of this name"
        shape, wanted = tuple(self._read(own[0]).shape), tuple(self.parameters[name].shape)
        if shape != wanted:
            return f"{wanted}, and in the file {shape}"
        return f"the file has it as {own[0]}" if own[0] != name else "the file has it"


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def audit(
    model: "nn.Module | Callable[[], nn.Module]",
    file: File,
    *,
    strict: bool = False,
    allow: Sequence[str] = (),
) -> LoadAudit:
    """See `vitconvert.audit_load`."""
    with plain_arithmetic():
        source = tensors_of(file)
    if isinstance(model, nn.Module):
        return LoadAudit(model, source, strict=strict, allow=allow)
    made = model()
    if not isinstance(made, nn.Module):
        raise UsageError(
            "The function returned no model.",
            evidence={"returned": type(made).__name__, "expected": "a torch.nn.Module"},
            hint="return the model that the code loads.",
        )
    return LoadAudit(made, source, strict=strict, allow=allow).look()
