"""Names that differ only in a counting number, as one: `blocks.{i}.norm1.weight` for 12 blocks."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"([0-9]+)")

Words = list[str]  # of a text; every second is a number


def runs(texts: Iterable[str]) -> list[tuple[str, int]]:
    """Merge names that differ only in a number that counts up.

    Returns:
        Texts in the order of the first that each stands for, and how many it stands for. `{i}`
        counts from 0. Of several numbers that differ, the first counts; others may go with it.

    Example:
        >>> runs(["0.weight", "0.bias", "1.weight", "1.bias", "head"])
        [('{i}.weight', 2), ('{i}.bias', 2), ('head', 1)]
    """
    alike: dict[tuple[str, ...], list[Words]] = defaultdict(list)
    place: dict[str, int] = {}
    for text in texts:
        words = _NUMBER.split(text)
        alike[tuple(words[::2])].append(words)
        place[text] = len(place)
    found = [run for group in alike.values() for run in _runs_of(group)]
    found.sort(key=lambda run: min(place["".join(words)] for words in run))
    return [(_told(run), len(run)) for run in found]


def _runs_of(group: Sequence[Words]) -> list[list[Words]]:
    """Texts that differ in their numbers alone, apart where more than a count differs."""
    counter = next((at for at in _numbers(group) if len({w[at] for w in group}) > 1), None)
    if counter is None:
        return [[words] for words in group]
    others = [at for at in _numbers(group) if at != counter]
    along = [at for at in others if _goes_along(group, at, counter)]
    apart: dict[tuple[object, ...], list[Words]] = defaultdict(list)
    for words in group:
        rest = (int(words[at]) - int(words[counter]) * (at in along) for at in others)
        apart[tuple(rest)].append(words)
    return [run for one in apart.values() for run in _unbroken(one, counter)]


def _numbers(group: Sequence[Words]) -> range:
    return range(1, len(group[0]), 2)


def _goes_along(group: Sequence[Words], at: int, counter: int) -> bool:
    """Whether a number is told more easily by its distance from the counter."""
    distances = {int(words[at]) - int(words[counter]) for words in group}
    return len(distances) < len({words[at] for words in group})


def _unbroken(group: Sequence[Words], counter: int) -> list[list[Words]]:
    found: list[list[Words]] = []
    for words in sorted(group, key=lambda words: int(words[counter])):
        if found and int(words[counter]) == int(found[-1][-1][counter]) + 1:
            found[-1].append(words)
        else:
            found.append([words])
    return found


def _told(run: Sequence[Words]) -> str:
    first, last = run[0], run[-1]
    words = list(first)
    for at in _numbers(run):
        if first[at] != last[at]:
            words[at] = f"{{i+{first[at]}}}" if int(first[at]) else "{i}"
    return "".join(words)
