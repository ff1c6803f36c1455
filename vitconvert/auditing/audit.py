"""Which tensors of a file landed in a model, whatever code loaded them."""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.nn.modules.module import _IncompatibleKeys
from torch.utils.hooks import RemovableHandle

from vitconvert.auditing.content import is_weight
from vitconvert.auditing.held import LoadedTensors, Model, dequantised_by_us, held_by, title_of
from vitconvert.auditing.losses import Evidence, Loss, allowed, losses
from vitconvert.auditing.names import answer_in_words, astray
from vitconvert.auditing.report import counts, report_lines
from vitconvert.auditing.search import TensorSearch, Verdicts
from vitconvert.auditing.tensors import File, Tensors, tensors_of
from vitconvert.documents import JsonDict
from vitconvert.errors import UsageError, printable
from vitconvert.settings import plain_arithmetic


class LoadAudit:
    """What of a file is in a model: found by its numbers, whatever the names are.

    As a context manager it knows the model as it was before. Without, the model is looked at when
    its first result is asked for: what is not in the file counts as initialised, unless it is so
    like the tensor of its name that the model was trained since.

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
        renamed: Those of `untouched` -> a tensor of the file that is likely meant for them.
        losses: What was lost, by kind, and what to do.
        allowed: Lost parameters that match a pattern of `allow`.
        by, notes, said: Of a library's own loader: its name, what was assumed, and what it printed.
    """

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
        self._hooks: list[RemovableHandle] = []
        self._heard: list[_IncompatibleKeys] = []

    def __getattr__(self, name: str) -> Any:
        # Of a live model, results are there when the first is asked for; in a block, behind it.
        if name not in LoadAudit.__annotations__ or self._inside:
            raise AttributeError(f"{name}: an audit has its results behind its block")
        self.look()
        return getattr(self, name)

    @property
    def is_finished(self) -> bool:
        """Whether the model was looked at."""
        return "landed" in vars(self)

    @property
    def complete(self) -> bool:
        """Whether each parameter holds what the file has for it, as far as content can say.

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
        elif packed and not self.source.is_packed:
            held = dequantised_by_us(held)
        with self.source.opened() as read:
            self._compare(TensorSearch(read, self.source.names, held, self.source.computed))
        if self._strict and not self.complete:
            raise AssertionError(str(self))
        return self

    def _compare(self, search: TensorSearch) -> None:
        landed: dict[str, list[str]] = {}
        found, self.count = Verdicts(), len(search.parameters)
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
            if origin.how:
                found.changed[name] = origin.how
            for tensor in origin.names:
                landed.setdefault(tensor, []).append(name)
        pairs = [(t, ps[0]) for t, ps in landed.items() if len(ps) == 1]
        renamed = [(t, p) for t, p in pairs if p not in search.namesakes]
        found.misplaced |= dict(astray(renamed))
        found.misplaced |= dict(search.mixed(pairs))
        self.renamed = search.partners(found, landed)
        self.landed = {tensor: ", ".join(names) for tensor, names in landed.items()}
        self.untouched, self.changed = tuple(found.untouched), found.changed
        self.misplaced, self.undecidable = found.misplaced, tuple(found.undecidable)
        self.unexplained, self.missing = tuple(found.unexplained), found.untouched
        self.unused = tuple(name for name in search.varied if name not in landed)
        evidence = Evidence(
            held=search.held,
            namesakes=search.namesakes,
            landed=landed,
            partners=self.renamed,
            shape_of=search.shape_of,
        )
        unexplained = {name: found.changed[name] for name in found.unexplained}
        lost = (found.untouched, found.misplaced, unexplained)
        self.allowed = allowed([name for one in lost for name in one], self._allow)
        untouched, misplaced, unexplained = (
            {name: how for name, how in one.items() if name not in self.allowed} for one in lost
        )
        self.losses = losses(untouched, misplaced, unexplained, evidence)

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
