"""What names say of where a tensor belongs: only as far as names of file and model are alike."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, count, permutations

from vitconvert.errors import some
from vitconvert.wrappers import unwrapped

_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[a-z]+")
_BLOCK = re.compile(r".*\.\d+(?=\.)")  # a name up to its last number that is a word
# How projects call the three parts of attention.
_PARTS = {
    "q": ("q", "query", "q_proj", "wq", "to_q", "q_linear", "q_bias"),
    "k": ("k", "key", "k_proj", "wk", "to_k", "k_linear", "k_bias"),
    "v": ("v", "value", "v_proj", "wv", "to_v", "v_linear", "v_bias"),
}
_MOST_KEPT = 2  # numbers of a name that tell it from its siblings
_IN_ORDER = (("before", "after"), ("pre", "post"), ("first", "second"), ("input", "post_attention"))
_PART_OF = {word: part for part, words in _PARTS.items() for word in words}


def heads_of(names: Collection[str]) -> list[str]:
    """What a tenth of the names or more begin with, up to three words: "", "module.", "model."."""
    counts = Counter(
        ".".join([*words[:depth], ""])
        for words in (name.split(".") for name in names)
        for depth in range(1, min(4, len(words)))
    )
    return ["", *(head for head, count in counts.items() if 10 * count >= len(names))]


def head_before(file: Collection[str], model: Collection[str]) -> str:
    """What all names of a file begin with, and without which some are names of a model; or ""."""
    for name in file:
        words = name.split(".")
        for depth in range(1, len(words)):
            head = ".".join([*words[:depth], ""])
            if ".".join(words[depth:]) in model and all(one.startswith(head) for one in file):
                return "" if any(one.startswith(head) for one in model) else head
    return ""


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


def siblings(name: str, names: Collection[str]) -> list[str]:
    """Of the queries, keys and values of one attention, the two others."""
    return [
        other
        for other in names
        if part_of(other) not in ("", part_of(name)) and without_part(other) == without_part(name)
    ]


def without_part(name: str) -> str:
    """A name without the word that says whether it is of queries, keys or values."""
    words = re.split(r"([./])", name)
    return "".join("" if word.lower() in _PART_OF else word for word in words)


def places_in(name: str, parts: Sequence[str]) -> list[int]:
    """Where a name has the word of each of its parts, as `gate` and `up` in `gate_up_proj`.

    Returns:
        A place for each part; none if the name does not say the order of all.
    """
    words = _WORD.findall(name.lower())
    of_parts = [_WORD.findall(part.lower()) for part in parts]
    alike = set[str]().union(of_parts[0]).intersection(*of_parts)
    own = [[w for w in of_part if w in words and w not in alike] for of_part in of_parts]
    if any(len(found) != 1 for found in own):
        return []
    last = {word: place for place, word in enumerate(words)}
    return [last[word] for (word,) in own]


def joined_out_of_order(name: str, parts: Sequence[str]) -> list[str]:
    """Of one block or expert, parts that are joined in another order than their words in a name."""
    places = dict(zip(parts, places_in(name, parts), strict=False)) if parts else {}
    blocks: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for part in places:
        blocks[numbers_in(part)].append(part)
    wrong = (one for one in blocks.values() if one != sorted(one, key=lambda part: places[part]))
    return next(wrong, [])


def astray(landed: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Parameters that hold another tensor than the names of all pairs suggest, and why.

    Args:
        landed: Pairs of a tensor of the file and the one parameter that holds it.
    """
    theirs = words_with_numbers([(tensor, template(parameter)) for tensor, parameter in landed])
    ours = words_with_numbers([(parameter, template(tensor)) for tensor, parameter in landed])
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for tensor, parameter in landed:
        counts[theirs[tensor]][ours[parameter]] += 1
    blocks: dict[tuple[str, str], list[tuple[tuple[int, ...], tuple[int, ...], str, str]]]
    blocks = defaultdict(list)
    for tensor, parameter in landed:
        alike = counts[theirs[tensor]]
        usual, count = alike.most_common(1)[0]
        most = (
            2 * count > alike.total()
        )  # of names that only count, `t0` to `t99`, there is no kind
        if part_of(tensor) and part_of(parameter) not in ("", part_of(tensor)):
            yield parameter, f"holds {tensor}"
        elif ours[parameter] != usual and count > 1 and most:
            yield parameter, f"holds {tensor}, whose like are in {usual.replace('#', 'N')}"
        else:
            where = numbers_in(tensor), numbers_in(parameter), tensor, parameter
            blocks[theirs[tensor], usual].append(where)
    for pairs in blocks.values():
        yield from out_of_order(pairs)
    yield from _of_words_out_of_order(landed)


def words_with_numbers(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Names without the numbers of blocks, but with those that tell siblings apart.

    `layer_norm_1` and `layer_norm_2` become other names elsewhere, as experts' `w1` and `w2`, and
    `mlp.0` and `mlp.2` do; the same block of each kind does not. So of all ways to keep numbers,
    that counts which says most shortly what each name becomes: by the fewest kinds of names and
    exceptions.

    Args:
        pairs: A name, and the kind of name that it became.
    """
    kinds: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, other in pairs:
        kinds[template(name)].append((name, other))
    found: dict[str, str] = {}
    for kind, alike in kinds.items():
        places = range(kind.count("#") if len({other for _, other in alike}) > 1 else 0)
        ways = [kept for count in range(_MOST_KEPT + 1) for kept in combinations(places, count)]
        best = min(ways, key=lambda kept: _length([(_keeping(n, kept), o) for n, o in alike]))
        found |= {name: _keeping(name, best) for name, _ in alike}
    return found


def _keeping(name: str, kept: Collection[int]) -> str:
    """A name without its numbers, but for those at some places."""
    places = count()
    return _NUMBER.sub(lambda found: found[0] if next(places) in kept else "#", name)


def _length(pairs: Sequence[tuple[str, str]]) -> int:
    """How many kinds of names there are, and names that become another than most of their kind."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, other in pairs:
        counts[kind][other] += 1
    return sum(1 + one.total() - max(one.values()) for one in counts.values())


def _of_words_out_of_order(landed: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Siblings 1 and 2 of the file in parameters that are called `after` and `before`, or reverse.

    Where all blocks are so, there are none whose order they differ from.
    """
    for flip in (False, True):
        numbered = [pair[::-1] if flip else pair for pair in landed]
        tensor_of = {parameter: tensor for tensor, parameter in landed}
        worded = {other: name for name, other in numbered}
        for late, name in worded.items():
            for first, then in _IN_ORDER:
                early = re.sub(rf"(?<![a-z]){then}(?![a-z])", first, late)
                before = worded.get(early, name) if early != late else name
                differ = template(before) == template(name) and before != name
                if differ and numbers_in(before) > numbers_in(name):
                    for parameter in (before, name) if flip else (early, late):
                        yield parameter, f"holds {tensor_of[parameter]}, out of order"


def out_of_order(
    pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...], str, str]],
) -> Iterator[tuple[str, str]]:
    """Blocks of one kind whose numbers do not rise together, as where 10 is sorted before 2."""
    rising = sorted(found for _, found, _, _ in pairs)
    for (_, found, tensor, parameter), expected in zip(sorted(pairs), rising, strict=True):
        if found != expected:
            yield parameter, f"holds {tensor}, out of order"


def differ_in_a_word(one: str, other: str) -> bool:
    """Whether names are the same but for one word, as of queries and keys, and of two experts."""
    words, others = one.split("."), other.split(".")
    pairs = zip(words, others, strict=False)
    return len(words) == len(others) and sum(a != b for a, b in pairs) == 1


def are_siblings(one: str, other: str) -> bool:
    """Whether names differ in a word behind all numbers, as of queries and keys of a block."""
    begin, other_begin = (_BLOCK.match(name) for name in (one, other))
    same = begin and other_begin and begin[0] == other_begin[0]
    return bool(same) and differ_in_a_word(one, other)


def in_any_block(name: str) -> str:
    """A name without those of its numbers that are words: `norm1` and `norm2` stay apart."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "#", name)


def split_out_of_order(pieces: Sequence[tuple[str, str, int]]) -> Iterator[tuple[str, str]]:
    """Of tensors that were taken apart, parameters that hold rows of another block or part.

    Args:
        pieces: A tensor, a parameter that holds rows of it, and the first of these.
    """
    kinds: dict[tuple[str, str], list[tuple[tuple[int, ...], tuple[int, ...], str, str]]]
    kinds, together = defaultdict(list), defaultdict(list)
    for tensor, parameter, first in pieces:
        where = numbers_in(tensor), numbers_in(parameter), tensor, parameter
        kinds[template(tensor), template(parameter)].append(where)
        together[tensor, numbers_in(parameter)].append((first, parameter))
    for kind in kinds.values():
        yield from out_of_order(kind)
    for (tensor, _), several in together.items():
        names = [name for _, name in sorted(several)]
        parts = [part_of(name) for name in names]
        places = ["qkv".index(p) for p in parts] if all(parts) else places_in(tensor, names)
        right = [name for _, name in sorted(zip(places, names, strict=False))]
        for name, meant in zip(names, right, strict=False):
            if name != meant:
                yield name, f"holds rows of {tensor} that are of {meant}"


def in_order(names: Sequence[str]) -> bool:
    """Whether names that differ in numbers alone have these in order, as experts that are joined.

    Of several numbers, any may be the first that counts.
    """
    alike: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for name in names:
        alike[template(name)].append(numbers_in(name))
    return all(
        any(
            numbers == sorted(numbers, key=lambda one: [one[at] for at in order])
            for order in permutations(range(len(numbers[0])))
        )
        for numbers in alike.values()
    )


def as_in_other_blocks(
    parameter: str, held: Mapping[str, Sequence[str]], names: Collection[str]
) -> tuple[str, ...]:
    """The tensors that belong into a parameter if names change as those of other blocks did.

    Args:
        parameter: What is without its tensors.
        held: Parameters of the same kind -> the tensors that each of them is made of.
        names: All of the file.

    Returns:
        The tensors; none if no other block shows them.
    """
    numbers, votes = numbers_in(parameter), list[Counter[str]]()
    for other, tensors in held.items():
        pairs = zip(numbers, numbers_in(other), strict=True)
        steps = [ours - theirs for ours, theirs in pairs if ours != theirs]
        votes = votes or [Counter() for _ in tensors]
        if len(steps) != 1 or len(votes) != len(tensors):
            continue
        for tensor, moved in zip(tensors, votes, strict=True):
            pieces = re.split(r"(\d+)", tensor)
            for at in range(1, len(pieces), 2):
                number = str(int(pieces[at]) + steps[0])
                moved["".join([*pieces[:at], number, *pieces[at + 1 :]])] += 1
    taken = {tensor for tensors in held.values() for tensor in tensors}
    free = [{name: n for name, n in one.items() if name in names} for one in votes]
    free = [{name: n for name, n in one.items() if name not in taken} for one in free]
    return tuple(max(one, key=lambda name: one[name]) for one in free) if all(free) else ()


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
