"""Which tensors of a file landed in a model, whatever code loaded them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from torch import nn
from torch.nn.modules.module import _IncompatibleKeys
from torch.utils.hooks import RemovableHandle

from vitconvert.auditing.content import Origin, is_weight
from vitconvert.auditing.held import LoadedTensors, Model, dequantised_by_us, held_by, title_of
from vitconvert.auditing.losses import Loss, LossEvidence, allowed, losses
from vitconvert.auditing.names import answer_in_words, astray, split_out_of_order
from vitconvert.auditing.report import counts, report_lines
from vitconvert.auditing.search import TensorSearch, Verdicts
from vitconvert.auditing.tensors import File, Tensors, tensors_of
from vitconvert.documents import JsonDict
from vitconvert.errors import UsageError, printable
from vitconvert.settings import plain_arithmetic


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the comparison of a model and a file found; `LoadAudit` says what each is."""

    landed: Mapping[str, str]
    untouched: tuple[str, ...]
    changed: Mapping[str, str]
    misplaced: Mapping[str, str]
    undecidable: tuple[str, ...]
    unused: tuple[str, ...]
    unexplained: tuple[str, ...]
    missing: Mapping[str, str]
    count: int
    renamed: Mapping[str, str]
    losses: tuple[Loss, ...]
    allowed: tuple[str, ...]


class LoadAudit:
    """What of a file is in a model: found by its numbers, whatever the names are.

    As a context manager it knows the model as it was before. Without, the model is looked at when
    its first result is asked for: what is not in the file counts as initialised, unless it is so
    like the tensor of its name that the model was trained since.

    Attributes:
        model: What was loaded into; or what another process loaded.
        answers: What `load_state_dict` answered meanwhile, in words.
        source: The file.
        by, notes, said: Of a library's own loader: its name, what was assumed, and what it printed.
    """

    def __init__(
        self,
        model: Model,
        source: Tensors,
        *,
        strict: bool = False,
        live: bool = False,
        allow: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.answers: tuple[str, ...] = ()
        self.source, self._strict, self._live, self._allow = source, strict, live, allow
        self._before: Mapping[str, str] | None = None
        self.by = ""
        self.notes: tuple[str, ...] = ()
        self.said: tuple[str, ...] = ()
        self._inside = False
        self._findings: Findings | None = None
        self._hooks: list[RemovableHandle] = []
        self._heard: list[_IncompatibleKeys] = []

    @property
    def is_finished(self) -> bool:
        """Whether the model was looked at."""
        return self._findings is not None

    @property
    def findings(self) -> Findings:
        """All results: of a live model there when first asked for; of a block, behind it.

        Raises:
            AttributeError: The block is not over.
        """
        if self._findings is None and self._inside:
            raise AttributeError("an audit has its results behind its block")
        found = self._findings or self.look()._findings
        assert found is not None
        return found

    @property
    def landed(self) -> Mapping[str, str]:
        """Tensor of the file -> the parameter that holds it, or several, with commas."""
        return self.findings.landed

    @property
    def untouched(self) -> tuple[str, ...]:
        """Parameters, and buffers of fractions that are saved, that are as initialised."""
        return self.findings.untouched

    @property
    def changed(self) -> Mapping[str, str]:
        """Parameter -> how it was changed on the way."""
        return self.findings.changed

    @property
    def misplaced(self) -> Mapping[str, str]:
        """Parameter -> the other tensor that it holds, or the order of its parts."""
        return self.findings.misplaced

    @property
    def undecidable(self) -> tuple[str, ...]:
        """Parameters of one number, as in the file: whether they landed, content does not say."""
        return self.findings.undecidable

    @property
    def unused(self) -> tuple[str, ...]:
        """Weights of the file that are in no parameter."""
        return self.findings.unused

    @property
    def unexplained(self) -> tuple[str, ...]:
        """Parameters in `changed` that are no known function of a tensor of the file."""
        return self.findings.unexplained

    @property
    def missing(self) -> Mapping[str, str]:
        """Why each of `untouched` is."""
        return self.findings.missing

    @property
    def count(self) -> int:
        """How many parameters there are."""
        return self.findings.count

    @property
    def renamed(self) -> Mapping[str, str]:
        """Those of `untouched` -> a tensor of the file that is likely meant for them."""
        return self.findings.renamed

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What was lost, by kind, and what to do."""
        return self.findings.losses

    @property
    def allowed(self) -> tuple[str, ...]:
        """Lost parameters that match a pattern of `allow`."""
        return self.findings.allowed

    @property
    def complete(self) -> bool:
        """Whether each parameter holds the file's numbers, as far as content can say.

        Those that are allowed to be new do not count.
        """
        lost = {*self.untouched, *self.misplaced, *self.unexplained}
        return bool(self.landed) and lost <= {*self.allowed}

    @plain_arithmetic()
    def __enter__(self) -> Self:
        self._inside = True
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
        self._inside = False
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

    def look(self) -> Self:
        """Compare the model as it is now with the file.

        Raises:
            AssertionError: It is not complete, and the audit is `strict`.
            CorruptFile: The file is damaged.
        """
        self._findings = self._looked()
        if self._strict and not self.complete:
            raise AssertionError(str(self))
        return self

    @plain_arithmetic()
    def _looked(self) -> Findings:
        held = held_by(self.model)
        kept = held.tensors.values()
        packed = any(is_weight(one) and not one.is_floating_point() for one in kept)
        if self.source.dequantised and not packed:
            self.source = self.source.dequantised
        elif packed and not self.source.is_packed:
            held = dequantised_by_us(held)
        with self.source.opened() as read:
            return self._compared(TensorSearch(read, self.source.names, held, self.source.computed))

    def _compared(self, search: TensorSearch) -> Findings:
        landed: dict[str, list[str]] = {}
        origins: dict[str, Origin] = {}
        found = Verdicts()
        for name in search.parameters:
            origin = search.origin(name, found)
            if origin is None and self._is_as_before(search.held, name):
                search.judge_untouched(name, found)
                continue
            if origin is None:
                origin = search.computed(name)
            if origin is None and self._live and self._before is None:
                origin = search.trained(name, found)
            if origin is None:
                search.judge_unfound(name, found, before_known=self._before is not None)
                continue
            origins[name] = origin
            if origin.how:
                found.changed[name] = origin.how
            if origin.unexplained:
                found.unexplained.append(name)
            for tensor in origin.names:
                landed.setdefault(tensor, []).append(name)
        pairs = [(t, ps[0]) for t, ps in landed.items() if len(ps) == 1]
        renamed = [(t, p) for t, p in pairs if p not in search.namesakes]
        found.misplaced |= dict(astray(renamed))
        found.misplaced |= dict(search.mixed(pairs))
        pieces = [
            (origin.names[0], name, origin.first)
            for name, origin in origins.items()
            if len(origin.names) == 1 and search.is_part(name, origin.names[0])
        ]
        found.misplaced |= dict(split_out_of_order(pieces))
        found.misplaced |= dict(search.held_twice(landed))
        found.misplaced |= dict(search.held_by_siblings(landed))
        found.misplaced |= dict(search.joined_twice(origins, landed))
        found.misplaced |= dict(search.transposed_alone(origins))
        for name, how in search.zeros_for_others(origins, landed):
            found.changed[name] = how
            found.unexplained.append(name)
        overwritten = search.overwritten(found, origins)
        known = {tensor for tensors in overwritten.values() for tensor in tensors}
        renamed_to = search.partners(found, {*landed, *known})
        evidence = LossEvidence(
            held=search.held,
            namesakes=search.namesakes,
            landed=landed,
            overwritten=overwritten,
            partners=renamed_to,
            shape_of=search.shape_of,
            head="" if landed else search.head,
        )
        unexplained = {name: found.changed[name] for name in found.unexplained}
        lost = (found.untouched, found.misplaced, unexplained)
        new = allowed([name for one in lost for name in one], self._allow)
        untouched, misplaced, unexplained = (
            {name: how for name, how in one.items() if name not in new} for one in lost
        )
        return Findings(
            landed={tensor: ", ".join(names) for tensor, names in landed.items()},
            untouched=tuple(found.untouched),
            changed=found.changed,
            misplaced=found.misplaced,
            undecidable=tuple(found.undecidable),
            unused=tuple(name for name in search.varied if name not in landed),
            unexplained=tuple(found.unexplained),
            missing=found.untouched,
            count=len(search.parameters),
            renamed={name: ", ".join(one) for name, one in overwritten.items()} | renamed_to,
            losses=losses(untouched, misplaced, unexplained, evidence),
            allowed=new,
        )

    def _is_as_before(self, held: LoadedTensors, name: str) -> bool:
        before = self._before
        return before is not None and before.get(name) in (None, held.digest(name))

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
            "renamed": dict(self.renamed),
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
        return LoadAudit(model, source, strict=strict, live=True, allow=allow)
    made = model()
    if not isinstance(made, nn.Module):
        raise UsageError(
            "The function returned no model.",
            evidence={"returned": type(made).__name__, "expected": "a torch.nn.Module"},
            hint="return the model that the code loads.",
        )
    return LoadAudit(made, source, strict=strict, allow=allow).look()
