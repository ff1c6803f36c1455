"""Limits of a comparison, in short sentences, each only where it applies.

Two models that agree may share a mistake: in what a user stated and both were built with, in what
neither of them read, in what happens before the pixels and after the numbers.
"""

from collections.abc import Iterator, Sequence

from torch import nn

from vitconvert.checkpoint import Checkpoint
from vitconvert.checkpoint.options import IGNORED
from vitconvert.errors import printable, some
from vitconvert.facts.fact import USER, is_assumed, is_recorded, show
from vitconvert.programs.reference import Reference
from vitconvert.tables.binding import NO_ELEMENTS

_BY_NAME = "by its name only"
_OWN_CODE = "your own code"
_IGNORED = " ignored"
_SHARED = "which the reference uses too"
_OF_SOURCE = (_BY_NAME, _OWN_CODE, _IGNORED, _SHARED)  # which an output does not show
_MERGED = "the sum of weights and adapter: the reference was given the merged weights"
_EARLIER = " (when it was converted before)"

Modules = Sequence[tuple[str, nn.Module]]  # with their names


def unseen_of_checkpoints(
    tested: Checkpoint, against: Checkpoint | None, reference: Reference
) -> tuple[str, ...]:
    """The limits where a checkpoint is compared with a project's own model.

    Args:
        tested: The checkpoint that vitconvert's ViT computes.
        against: The one that the reference loaded, if it is another one.
        reference: The project's model.
    """
    both = (tested, against) if against else (tested,)
    facts = []
    if not tested.table.builtin:  # only the weights of that program were read
        facts.append(f"{_OWN_CODE}: --module runs it (in Python, compare(model, against))")
    facts += [_MERGED for checkpoint in both if checkpoint.merge]
    facts += shared_facts(tested, against or tested, reference)
    for checkpoint in both:
        if head := checkpoint.weights.head:  # its input was assumed on both sides
            read = f"what the reference's head does (pooling {checkpoint.config.pooling})"
            facts.append(f"{printable(head)} reads {read}: {_BY_NAME}")
    facts += [fact for checkpoint in both for fact in ignored_tensors(checkpoint)]
    facts += dropout([(reference.name, reference.model)])
    facts += [fact for checkpoint in both for fact in earlier(checkpoint)]
    if against:
        facts += order_of_classes(tested, against)
    return tuple(facts)


def unseen_of_models(*models: tuple[str, object]) -> tuple[str, ...]:
    """The limits where one of two models is the user's own.

    Facts that the user states of a checkpoint are not among them: the user's own model has them.

    Args:
        models: A name, and a checkpoint, a module or a function.
    """
    modules = [(name, model) for name, model in models if isinstance(model, nn.Module)]
    checkpoints = [model for _, model in models if isinstance(model, Checkpoint)]
    return (
        *(fact for checkpoint in checkpoints for fact in ignored_tensors(checkpoint)),
        *dropout(modules),
        *(
            f"training mode: {name} is in it, and a copy in eval mode was compared"
            for name, module in modules
            if any(part.training for part in module.modules())
        ),
        *(fact for checkpoint in checkpoints for fact in order_of_classes(checkpoint, None)),
    )


def earlier(checkpoint: Checkpoint) -> Iterator[str]:
    """The limits of the conversion that wrote the checkpoint, which nothing in it shows."""
    record = checkpoint.companions.own
    if "parity" not in record:
        return
    if not _was_verified(checkpoint):
        # As of a model in memory, whose names no other library has
        computed = ", ".join(_computed_output(record.get("opened_by")))
        how = f"its output was compared with its source ({computed}), its source with no library"
        yield f"the conversion that wrote it: {how if computed else 'it was not verified'}"
        return
    facts = record["parity"].get("not_tested")
    for fact in facts if isinstance(facts, list) else ():
        if isinstance(fact, str) and any(words in fact for words in _OF_SOURCE):
            yield f"{fact.removesuffix(_EARLIER)}{_EARLIER}"


def _computed_output(stated: object) -> list[str]:
    """The programs that computed what was written when it was, as a record states them."""
    opened = [one for one in stated if isinstance(one, dict)] if isinstance(stated, list) else []
    return [
        printable(str(one.get("consumer")))
        for one in opened
        if isinstance(one.get("relative"), int | float)
    ]


def _was_verified(checkpoint: Checkpoint) -> bool:
    """Whether vitconvert wrote it, and compared its source with the source's own project."""
    parity = checkpoint.companions.own.get("parity")
    return isinstance(parity, dict) and parity.get("verified") is True


def shared_facts(tested: Checkpoint, other: Checkpoint, reference: Reference) -> Iterator[str]:
    """Facts that only the user or a table states, and that both sides were built with.

    Those that tensors show, or files of the checkpoint state, are the project's own.
    """
    facts, groups = other.config.function(), dict[str, list[str]]()
    for field in reference.told:
        origin = other.config.origins.get(field, "")
        shared = origin == tested.config.origins.get(field)
        known = is_recorded(origin) and _was_verified(other)  # `earlier` covers it
        doubtful = (
            other.is_users(origin) or is_assumed(origin) or origin.startswith(other.table.origin)
        )
        if field in facts and shared and not known and doubtful:
            groups.setdefault(origin, []).append(f"{field} {show(facts[field])}")
    for origin, stated in sorted(groups.items(), key=lambda group: group[0] != USER):
        where = "stated by you" if origin == USER else origin
        yield f"{', '.join(stated)} ({where}), {_SHARED}"


def ignored_tensors(checkpoint: Checkpoint) -> Iterator[str]:
    """Tensors that play no part, but for those whose values prove it."""
    table, binding = checkpoint.table, checkpoint.weights.recognised.binding
    unproved = [
        printable(name)
        for name, reason in binding.ignored.items()
        if name not in binding.guarded and reason != NO_ELEMENTS and 0 not in binding.shapes[name]
    ]
    asked = [
        printable(n) for n, why in checkpoint.ledger.ignored.items() if why.startswith(IGNORED)
    ]
    if asked:
        plural = "s" if len(asked) > 1 else ""
        yield f"{len(asked)} tensor{plural} that you{_IGNORED}: {some(asked)}"
    if unproved:
        tensors = "tensor" if len(unproved) == 1 else "tensors"
        whose = table.origin if table.builtin else "your table"
        yield f"{len(unproved)} {tensors}{_IGNORED} by {whose}: {some(unproved)}"


def dropout(modules: Modules) -> Iterator[str]:
    """Rates of dropout: `nn.Dropout`, timm's `drop_prob`, transformers' `attention_dropout`, ..."""
    for name, module in modules:
        rates = [0.0]
        for part in module.modules():
            if isinstance(part, nn.modules.dropout._DropoutNd):
                rates.append(part.p)
            else:
                stated = (value for key, value in vars(part).items() if "drop" in key)
                rates += [value for value in stated if isinstance(value, float)]
        if rate := max(rates):
            yield f"dropout of {name} (rates up to {rate:g}): it acts in training only"


def order_of_classes(checkpoint: Checkpoint, against: Checkpoint | None) -> Iterator[str]:
    """Whether names of classes were there to be compared.

    Args:
        checkpoint: One side.
        against: The other, or None where it is a model that names nothing.
    """
    if not _classifies(checkpoint):
        return
    sides = (checkpoint, against) if against else (checkpoint,)
    naming = [side.located.reference for side in sides if side.own_labels]
    if not naming:
        yield "the order of classes: neither side names them"
    elif len(naming) < 2:
        yield f"the order of classes: only {printable(naming[0])} names them"


def differing_classes(checkpoint: Checkpoint, against: Checkpoint | None) -> Iterator[str]:
    """How the names of classes differ, where two checkpoints have their own.

    Equal logits do not show it: an index may mean something else on each side.
    """
    if against is None or not _classifies(checkpoint):
        return
    mine, theirs = checkpoint.own_labels, against.own_labels
    if mine is None or theirs is None:
        return
    # Projects write the same class as "tiger_cat" and "Tiger cat".
    ours, others = (
        [" ".join(label.replace("_", " ").casefold().split()) for label in labels]
        for labels in (mine, theirs)
    )
    apart = [i for i, (one, other) in enumerate(zip(ours, others, strict=True)) if one != other]
    if apart:
        how = "are in another order" if sorted(ours) == sorted(others) else "differ"
        here, there = (printable(names[apart[0]])[:60] for names in (mine, theirs))
        more = f", and {len(apart) - 1} more" if len(apart) > 1 else ""
        yield f"classes {how}: {apart[0]} is {here!r} here and {there!r} there{more}"


def _classifies(checkpoint: Checkpoint) -> bool:
    """Whether the outputs are those of classes; a projection is a head without a bias."""
    return bool(checkpoint.config.num_classes and checkpoint.config.head_bias)
