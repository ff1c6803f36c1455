"""The names of a classifier's classes."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from vitconvert.errors import ConflictingFact

_IMAGENET_CLASSES = 1000
_LONGEST = 100  # letters; of a longer key beside weights only these are read
_HINT = "correct the names of the classes in that file, or take them out of it."


class Labels(tuple[str, ...]):
    """One name per class, in the order of the logits, and where the names come from.

    `assumed` is true if the checkpoint does not name its classes itself.
    """

    origin: str
    assumed: bool

    def __new__(
        cls, names: Iterable[str], *, origin: str = "user", assumed: bool = False
    ) -> "Labels":
        """Names with their origin."""
        labels = super().__new__(cls, names)
        labels.origin = origin
        labels.assumed = assumed
        return labels

    @property
    def doubtful(self) -> bool:
        """Whether they are assumed, or were, before some of them were kept and written down."""
        return self.assumed or self.origin.startswith("assumed")


def stated_labels(
    num_classes: int,
    id2label: Mapping[str, str] | Mapping[int, str] | Sequence[str] | None = None,
    *,
    descriptions: Mapping[str, str] | None = None,
    origin: str = "config.json",
) -> Labels | None:
    """The checkpoint's own names, or None.

    Args:
        num_classes: Width of the head.
        id2label: transformers' `id2label`, or timm's `label_names`. Placeholders ("LABEL_7"),
            which transformers writes where nobody named the classes, do not count.
        descriptions: timm's `label_descriptions`: a longer name for each name.
        origin: Where the names were stated.

    Raises:
        ConflictingFact: The names are not those of the head's classes, or not names at all.
    """
    for names, kinds in ((id2label, (Mapping, list, tuple)), (descriptions, (Mapping,))):
        if names is not None and not isinstance(names, kinds):
            raise ConflictingFact(
                f"{str(names)[:40]!r} should be a list or a mapping of class names.",
                evidence={"from": origin},
                hint=_HINT,
            )
    stated = dict(id2label if isinstance(id2label, Mapping) else enumerate(id2label or ()))
    by_index = {str(index): str(name) for index, name in stated.items()}
    if num_classes < 1 or all(name == f"LABEL_{index}" for index, name in by_index.items()):
        return None
    wanted = [str(index) for index in range(num_classes)]
    yours = origin.endswith("stated by you")
    if by_index.keys() != set(wanted):
        missing = [index for index in wanted if index not in by_index]
        foreign = sorted(by_index.keys() - set(wanted))
        raise ConflictingFact(
            f"The labels name {len(by_index)} classes, and the checkpoint's head has {num_classes}."
            if yours
            else f"The checkpoint names {len(by_index)} classes, and its head has {num_classes}.",
            evidence={
                "from": origin,
                "missing": ", ".join(missing[:5]) or "none",
                "foreign": ", ".join(foreign[:5]) or "none",
            },
            hint="labels have a name for each class, in order; or are {index: name} in JSON."
            if yours
            else _HINT,
        )
    ordered = [by_index[index] for index in wanted]
    return Labels((str((descriptions or {}).get(name, name)) for name in ordered), origin=origin)


def indexed_labels(num_classes: int, indices: Mapping[str, object], *, origin: str) -> Labels:
    """Names by their indices, as torchvision's ImageFolder has them.

    Raises:
        ConflictingFact: They are not those of the head's classes.
    """
    if len(indices) != num_classes:
        why = f"it has {len(indices)} names, and the head {num_classes} classes."
    elif {i for i in indices.values() if type(i) is int} != set(range(num_classes)):
        why = f"its indices are not 0 to {num_classes - 1}."
    elif any(len(name) >= _LONGEST for name in indices):
        why = f"a name has {_LONGEST} letters or more."
    else:
        names = {index: name for name, index in indices.items()}
        return Labels((names[index] for index in range(num_classes)), origin=origin)
    raise ConflictingFact(why, evidence={"from": origin}, hint=_HINT)


def assumed_labels(num_classes: int) -> Labels | None:
    """ImageNet-1k's names for a head of 1000 classes, else None.

    A head of ImageNet-21k gets no names: its classes are used in several orders, and the head does
    not say in which.
    """
    if num_classes != _IMAGENET_CLASSES:
        return None
    # timm's data files hold the words; to import timm would import torch.
    spec = find_spec("timm")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "data" / "_info"
    synsets = (folder / "imagenet_synsets.txt").read_text(encoding="utf-8").splitlines()
    wanted = set(synsets)
    with (folder / "imagenet_synset_to_lemma.txt").open(encoding="utf-8") as lemmas:
        ours = (line for line in lemmas if line.partition("\t")[0] in wanted)
        words = {row[0]: row[1] for row in csv.reader(ours, delimiter="\t")}
    return Labels(
        (words[synset] for synset in synsets),
        origin="ImageNet-1k, as timm orders it",
        assumed=True,
    )
