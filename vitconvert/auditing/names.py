"""What names say of where a tensor belongs: only as far as names of file and model are alike."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from vitconvert.errors import some
from vitconvert.wrappers import unwrapped

_NUMBER = re.compile(r"\d+")
# How projects call the three parts of attention.
_PARTS = {
    "q": ("q", "query", "q_proj", "wq", "to_q", "q_linear", "q_bias"),
    "k": ("k", "key", "k_proj", "wk", "to_k", "k_linear", "k_bias"),
    "v": ("v", "value", "v_proj", "wv", "to_v", "v_linear", "v_bias"),
}
_PART_OF = {word: part for part, words in _PARTS.items() for word in words}


def heads_of(names: Collection[str]) -> list[str]:
    """What a tenth of the names or more begin with, up to three words: "", "module.", "model."."""
    counts = Counter(
        ".".join([*words[:depth], ""])
        for words in (name.split(".") for name in names)
        for depth in range(1, min(4, len(words)))
    )
    return ["", *(head for head, count in counts.items() if 10 * count >= len(names))]


def namesakes(file: Collection[str], model: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Parameter -> tensors of the file of its name, with and without what names begin with.

    Of the beginnings, those count by which most names are the same; of two copies of a model in
    one file, both do. Words of wrappers do not count.
    """
    of_file, of_model = unwrapped(file), unwrapped(model)
    found = _namesakes(of_file.keys(), of_model.keys())
    return {
        of_model[parameter]: tuple(of_file[name] for name in names)
        for parameter, names in found.items()
    }


def _namesakes(file: Collection[str], model: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    pairs = [(theirs, ours) for theirs in heads_of(file) for ours in heads_of(model)]
    # Without its beginning, a name says little: most of them have to be the same then.
    fewest = min(len(file), len(model)) / 2
    found = {pair: same_names(file, model, *pair) for pair in pairs}
    found = {pair: same for pair, same in found.items() if not any(pair) or len(same) > fewest}
    most = max(map(len, found.values()), default=0)
    best: dict[str, list[str]] = defaultdict(list)
    for same in found.values():
        if 2 * len(same) > most:
            for parameter, name in same.items():
                if name not in best[parameter]:
                    best[parameter].append(name)
    return {parameter: tuple(names) for parameter, names in best.items()}


def same_names(
    file: Collection[str], model: Collection[str], theirs: str, ours: str
) -> dict[str, str]:
    """Parameter -> tensor of the file, of names that are the same without what they begin with."""
    behind = {name.removeprefix(theirs): name for name in file if name.startswith(theirs)}
    return {
        name: behind[name.removeprefix(ours)]
        for name in model
        if name.startswith(ours) and name.removeprefix(ours) in behind
    }


def part_of(name: str) -> str:
    """Whether a name is of queries, keys or values: "q", "k", "v"; "" if it does not say."""
    words = re.split(r"[./]", name.lower())
    parts = {_PART_OF[word] for word in words if word in _PART_OF}
    return parts.pop() if len(parts) == 1 else ""


def astray(landed: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Parameters that hold another tensor than the names of all pairs suggest, and why.

    Args:
        landed: Pairs of a tensor of the file and the one parameter that holds it.
    """
    templates: dict[str, Counter[str]] = defaultdict(Counter)
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for tensor, parameter in landed:
        templates[template(tensor)][template(parameter)] += 1
        kinds[kind(tensor)][template(parameter)] += 1
    blocks: dict[tuple[str, str], list[tuple[tuple[int, ...], tuple[int, ...], str, str]]]
    blocks = defaultdict(list)
    for tensor, parameter in landed:
        usual, count = templates[template(tensor)].most_common(1)[0]
        if kinds[kind(tensor)].most_common(1)[0][0] == template(parameter):
            usual = template(parameter)  # as of experts, whose w1 and w3 are joined, and w2 is not
        if part_of(tensor) and part_of(parameter) not in ("", part_of(tensor)):
            yield parameter, f"holds {tensor}"
        elif template(parameter) != usual and count > 1:
            yield parameter, f"holds {tensor}, whose like are in {usual.replace('#', 'N')}"
        else:
            where = numbers_in(tensor), numbers_in(parameter), tensor, parameter
            blocks[template(tensor), usual].append(where)
    for pairs in blocks.values():
        yield from out_of_order(pairs)


def out_of_order(
    pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...], str, str]],
) -> Iterator[tuple[str, str]]:
    """Blocks of one kind whose numbers do not rise together, as where 10 is sorted before 2."""
    rising = sorted(found for _, found, _, _ in pairs)
    for (_, found, tensor, parameter), expected in zip(sorted(pairs), rising, strict=True):
        if found != expected:
            yield parameter, f"holds {tensor}, out of order"


def answer_in_words(missing: Sequence[str], unexpected: Sequence[str]) -> Iterator[str]:
    """What an answer of `load_state_dict(strict=False)` means."""
    if not missing and not unexpected:
        yield "load_state_dict: all keys matched"
        return
    for title, names in (("ignored", unexpected), ("found nothing for", missing)):
        if names:
            yield f"load_state_dict {title} {len(names)}: {some(names)}"
    for theirs in heads_of(unexpected):
        for ours in heads_of(missing):
            wanted = {name.removeprefix(ours) for name in missing if name.startswith(ours)}
            given = {name.removeprefix(theirs) for name in unexpected if name.startswith(theirs)}
            if (theirs or ours) and 2 * len(wanted & given) > len(missing):
                without = f"without {theirs!r}" if theirs else ""
                with_ours = f"with {ours!r} before them" if ours else ""
                words = " and ".join(filter(None, (without, with_ours)))
                yield f"{len(wanted & given)} names match {words}"
                return


def template(name: str) -> str:
    """A name without its numbers."""
    return _NUMBER.sub("#", name)


def kind(name: str) -> str:
    """A name without the numbers that are words of it: `layers.#.w1`."""
    return re.sub(r"(?<![^\W_])\d+(?![^\W_])", "#", name)


def numbers_in(name: str) -> tuple[int, ...]:
    """The numbers of a name."""
    return tuple(map(int, _NUMBER.findall(name)))


def grouped(lines: Mapping[str, str]) -> Iterator[str]:
    """Names and what is said of each; those that differ in numbers alone are one line.

    As in `layer.{0..11}.bias: the file has blocks.{0..11}.bias`.
    """
    alike: dict[str, list[str]] = {}
    for name, text in lines.items():
        line = f"{name}: {text}" if text else name
        alike.setdefault(template(line), []).append(line)
    for kind, several in alike.items():
        columns = [*zip(*(_NUMBER.findall(line) for line in several), strict=True)]
        pieces = kind.split("#")
        if len(columns) + 1 != len(pieces):  # a name has this sign
            yield from several
            continue
        line = "".join(map("".join, zip(pieces, [*map(_range, columns), ""], strict=True)))
        # Where one number varies, its range says how many they are.
        one = len({column for column in columns if len({*column}) > 1}) < 2
        yield line if one else f"{line} ({len(several)})"


def _range(column: Sequence[str]) -> str:
    """Numbers as `7`, `{0..11}` or `{0..2,5}`."""
    numbers = sorted({*map(int, column)})
    if len(numbers) == 1:
        return column[0]
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{run[0]}..{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"{{{','.join(words)}}}"
