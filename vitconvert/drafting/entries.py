"""Unknown names, grouped by block, with what each seems to be by `weights_map/drafts.toml`."""

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vitconvert.tables.axes import Shape
from vitconvert.toml_files import read_tables

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def knowledge() -> Mapping[str, Any]:
    """The sections of the file."""
    return read_tables("drafts")


def words_of(name: str) -> frozenset[str]:
    """The words of a name: runs of letters and of digits, in lower case.

    Example:
        >>> sorted(words_of("encoder.layerNorm_1.weight"))
        ['1', 'encoder', 'layer', 'norm', 'weight']
    """
    return frozenset(word.lower() for word in _WORD.findall(name))


def has(words: frozenset[str], entries: Iterable[str]) -> int:
    """The number of words in the longest of these entries that the words hold; 0 for none."""
    asked = (frozenset(entry.split()) for entry in entries)
    return max((len(each) for each in asked if each <= words), default=0)


@functools.cache
def groups_of(module: str) -> tuple[str, ...]:
    """The groups of modules of the same shapes that list this one."""
    return tuple(name for name, group in knowledge()["names"].items() if module in group)


def score(words: frozenset[str], module: str) -> int:
    """Points of a name for a module: 2 and more where it names it, 1 where its kind."""
    return max((_in_group(words, module, group) for group in groups_of(module)), default=0)


def _in_group(words: frozenset[str], module: str, name: str) -> int:
    group = knowledge()["names"][name]
    named = has(words, group[module])
    return (named + 1 if named else 0) + (1 if has(words, group["kind"]) else 0)


@functools.cache
def order_of(module: str) -> int:
    """The place of a module in its group: the first is mostly the first in a file."""
    groups = knowledge()["names"]
    return min((list(groups[name]).index(module) for name in groups_of(module)), default=0)


def speaks_against(words: frozenset[str], module: str) -> str:
    """The module that a name speaks for rather than for this one, or nothing."""
    for name in groups_of(module):
        own = _in_group(words, module, name)
        others: list[str] = list(knowledge()["names"][name])
        for other in others:
            if other not in ("kind", module) and _in_group(words, other, name) > own:
                return other
    return ""


def other_kind(words: frozenset[str], module: str) -> bool:
    """Whether a name is of another kind than this module: of a norm, say, and this is a scale."""
    groups = knowledge()["names"]
    kinds = {name: has(words, groups[name]["kind"]) for name in ("block_norms", "block_scales")}
    own = [name for name in groups_of(module) if name in kinds]
    return bool(own) and any(kinds.values()) and not any(kinds[name] for name in own)


_NUMBER = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]{0,2})(?![0-9])")
_BRACES = re.compile(r"\{[^{}]*\}")
_END = re.compile(r"(?::[0-9]+)?\Z")  # TensorFlow ends names with ":0"
_VARS = {"vars/0": "weight", "vars/1": "bias"}  # Keras 3 numbers what a layer has
# Signs of the language of tables that names may hold: a word stands for each.
SIGNS = {":": "colon", "(": "open", ")": "close", "|": "bar", "=": "equals", ",": "comma"}
SIGNS |= {"[": "left", "]": "right", " ": "blank"}
TO_WORDS = str.maketrans({sign: f"{{{word}}}" for sign, word in SIGNS.items()})
_UNSPELLABLE = re.compile(r"[{}*\x00-\x1f\x7f-\x9f\ud800-\udfff]|[^\S ]|\A(?:zeros|cat)\Z")
_LONGEST = 500  # letters of a name; each of its numbers may count, which takes its square
_PART = re.compile(r"[^./]+")  # of a name
_MANY = 3  # names that count as far, and not to the depth, are of another part


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A tensor of theirs, or the same tensor in every block.

    Attributes:
        text: Its name in the language of tables: `layers.{i+1}.norm.weight`.
        keys: The names in the file, block by block.
        shape: Of each.
        looped: Whether every block has it.
        stacked: Whether it holds all blocks, along its first dimension; `shape` is of one.
        heads: How many there are of it in a block, one for each head; the text has {head}. 0: it
            is of all heads.
        stem: The name of its module: without what says weight or bias.
        kind: "weight", "bias", or "" where the name does not say.
        leaf: What the last part of the name says, such as "kernel".
        place: Where it comes in the file.
    """

    text: str
    keys: tuple[str, ...]
    shape: Shape
    looped: bool
    stacked: bool = False
    heads: int = 0
    stem: str
    kind: str
    leaf: str
    place: int

    @property
    def words(self) -> frozenset[str]:
        """The words of its module's name."""
        return words_of(_BRACES.sub(" ", self.stem))


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """All names of a file.

    Attributes:
        entries: Those that may be a ViT's.
        left: The others, and why they are left.
    """

    entries: tuple[Entry, ...]
    left: Mapping[str, str] = field(default_factory=dict)


def depth_of(shapes: Mapping[str, Shape]) -> int:
    """How many blocks there seem to be: as many as most names count."""
    counts = {len(numbers) for numbers in _patterns(shapes).values()}
    counts |= {count // 2 for count in counts}
    explained = {n: len(_loops(shapes, n)) for n in sorted(counts) if n > 1}
    # Every second of twelve counts to six, too.
    return max(explained, key=lambda n: (explained[n], n), default=1)


def entries_of(
    shapes: Mapping[str, Shape], depth: int, heads: int | None = None, *, whole: bool = False
) -> TensorNames:
    """Tell names apart.

    Args:
        shapes: By name, in the order of the file.
        depth: How many blocks the model has.
        heads: How many heads a block has, if that is known.
        whole: Whether they are all of one model, and none is of another part by its name.
    """
    left: dict[str, str] = {}
    for key in shapes:
        if len(key) > _LONGEST or _UNSPELLABLE.search(key):
            left[key] = "the language of tables cannot express this name"
        elif why := no_part(key):
            left[key] = why
        elif not whole and has(words_of(key), knowledge()["elsewhere"]["words"]):
            left[key] = "its name belongs to another part than the ViT"
    mine = {key: shape for key, shape in shapes.items() if key not in left}
    loops = _loops(mine, depth)
    several = (n.values() for n in _patterns(mine).values() if len(n) >= _MANY)
    # What Keras counts further than the blocks is of another place, and not of another part.
    counted = {
        key for keys in several for key in keys if not loops.keys() & set(keys)
    } - loops.keys()
    left |= dict.fromkeys(counted, f"counted, but not the same in each of {depth} blocks")
    order = {key: place for place, key in enumerate(shapes)}
    found: dict[str, Entry] = {}
    for key, shape in mine.items():
        if key in counted:
            continue
        text, keys = loops.get(key, (key.translate(TO_WORDS), (key,)))
        if text in found:
            continue
        stem, kind, leaf = _leaf(text)
        found[text] = Entry(
            text=text,
            keys=keys,
            shape=shape,
            looped=key in loops,
            stem=stem,
            kind=kind,
            leaf=leaf,
            place=order[key],
        )
    entries = _of_heads(_paired(found.values()), heads)
    if not loops:  # some programs loop over arrays of all blocks
        entries = [
            replace(e, looped=True, stacked=True, shape=e.shape[1:])
            if len(e.shape) > 1 and e.shape[0] == depth
            else e
            for e in entries
        ]
    return TensorNames(entries=tuple(entries), left=left)


def _of_heads(entries: Sequence[Entry], heads: int | None) -> list[Entry]:
    """Tensors of which a block has one for each head, as one."""
    patterns: dict[tuple[str, str], dict[int, Entry]] = defaultdict(dict)
    for entry in entries:
        for number in _NUMBER.finditer(entry.text) if entry.looped else ():
            ends = entry.text[: number.start()], entry.text[number.end() :]
            patterns[ends][int(number[0])] = entry
    found: dict[str, Entry] = {}
    for (before, after), numbered in patterns.items():
        first, count = min(numbered), len(numbered)
        several = [numbered[n] for n in sorted(numbered)]
        alike = len({entry.shape for entry in several}) == 1
        index = _index(sorted(numbered), count)
        matrices = any(len(e.shape) > 1 for e in entries if e.stem == several[0].stem)
        if not (
            alike and index and matrices and first < _MANY - 1 and count == (heads or count) > 1
        ):
            continue
        text = f"{before}{index.replace('i', 'head')}{after}"
        stem, kind, leaf = _leaf(text)
        keys = tuple(key for block in zip(*(e.keys for e in several), strict=True) for key in block)
        one = replace(
            several[0], text=text, keys=keys, heads=count, stem=stem, kind=kind, leaf=leaf
        )
        found |= {entry.text: one for entry in several}
    made = (found.get(entry.text, entry) for entry in entries)
    return list({entry.text: entry for entry in made}.values())


def _paired(entries: Iterable[Entry]) -> list[Entry]:
    """Names that end as `_w` and `_b`, or as `W1` and `b1`, are of one module if both are there."""
    entries = list(entries)
    parts = [None if entry.kind else _parted(entry.stem) for entry in entries]
    found: dict[str, set[str]] = defaultdict(set)
    for stem, kind, _ in filter(None, parts):
        found[stem].add(kind)
    return [
        replace(entry, stem=part[0], kind=part[1], leaf=part[2])
        if part and len(found[part[0]]) > 1
        else entry
        for entry, part in zip(entries, parts, strict=True)
    ]


_NUMBERED = re.compile(r"(?P<head>.*[./])?(?P<word>[A-Za-z])_?(?P<number>[0-9])\Z")


def _parted(name: str) -> tuple[str, str, str] | None:
    """The module that a name without a last part for it seems to be of, its kind and that word."""
    kinds = {word: kind for kind, words in knowledge()["leaves"].items() for word in words}
    head, _, last = name.rpartition("_")
    if last in kinds:
        return head, kinds[last], last
    numbered = _NUMBERED.match(name)
    if numbered and (word := numbered["word"].lower()) in kinds:
        return f"{numbered['head'] or ''}{numbered['number']}", kinds[word], word
    return None


def no_part(key: str) -> str:
    """Why a tensor plays no part, by the end of its name, or nothing."""
    endings: Mapping[str, str] = knowledge()["no_part"]
    name = key.replace("/", ".")
    return next((why for end, why in endings.items() if f".{name}".endswith(f".{end}")), "")


def _patterns(shapes: Mapping[str, Shape]) -> dict[tuple[str, str], dict[int, str]]:
    """(what stands before a number, after it) -> the numbers that names have there."""
    found: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for key in shapes:
        for number in _NUMBER.finditer(key):
            found[key[: number.start()], key[number.end() :]][int(number[0])] = key
    # Keras does not number the first: dense, dense_1, dense_2.
    for key in shapes:
        for part in _PART.finditer(key):
            before, after = f"{key[: part.end()]}_", key[part.end() :]
            if (before, after) in found and 0 not in found[before, after]:
                found[before, after][0] = key
    return found


def _loops(shapes: Mapping[str, Shape], depth: int) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name -> its text with {i} and the names in all blocks; the first number that counts."""
    found: dict[str, tuple[int, str, tuple[str, ...]]] = {}
    starts: dict[str, int] = defaultdict(int)
    counts = (
        (p, names, c)
        for p, names in _patterns(shapes).items()
        for c in _counts(names, depth, shapes, keras=names.get(0) == p[0][:-1] + p[1])
    )
    for (before, after), names, numbers in counts:
        index = _index(numbers, depth)
        keys = tuple(names[n] for n in numbers)
        if not index or len({shapes[key] for key in keys}) > 1:
            continue
        starts[before] += 1
        start = before.translate(TO_WORDS)
        if numbers[0] == 0 and keys[0] == before[:-1] + after:
            start, index = start[:-1], index.replace("{", "{_")
        text = f"{start}{index}{after.translate(TO_WORDS)}"
        for key in keys:
            if key not in found or len(before) < found[key][0]:
                found[key] = len(before), text, keys
    if depth <= _MANY - 1 and starts:  # two or one are soon counted: the block's are the most
        most = len(max(starts, key=lambda before: starts[before]))
        found = {key: loop for key, loop in found.items() if loop[0] == most}
    return {key: (text, keys) for key, (_, text, keys) in found.items()}


def _counts(
    names: Mapping[int, str], depth: int, shapes: Mapping[str, Shape], *, keras: bool
) -> list[list[int]]:
    """Numbers that may count the blocks: all, or every second, where parts of them alternate.

    Keras counts all layers of a kind in a model: some may stand before and behind the blocks.
    """
    every = sorted(names)
    if len(every) == 2 * depth > 2:
        return [every[::2], every[1::2]]
    if not keras or len(every) < 2 * depth or depth < _MANY - 1:
        return [every]
    found = []
    taken: set[int] = set()
    for start in range(len(every) - 2 * depth + 2):
        numbers = every[start : start + 2 * depth : 2]
        alike = len({shapes[names[n]] for n in numbers}) == 1
        if len(numbers) == depth and alike and not taken.intersection(numbers):
            found.append(numbers)
            taken.update(numbers)
    return found or [every]


def _index(numbers: list[int], depth: int) -> str:
    """`{i}`, `{i+1}`, `{2*i}`, ... if that is how these numbers count the blocks, or nothing."""
    if len(numbers) != depth:
        return ""
    step = numbers[1] - numbers[0] if depth > 1 else 1
    if numbers != [numbers[0] + step * i for i in range(depth)] or step > 2:
        return ""
    scale, offset = f"{step}*" if step > 1 else "", f"+{numbers[0]}" if numbers[0] else ""
    return f"{{{scale}i{offset}}}"


def _leaf(text: str) -> tuple[str, str, str]:
    """The stem of a name, its kind, and the word that says it."""
    bare = _END.sub("", text.replace("{colon}", ":"))
    for end, kind in _VARS.items():
        if bare.endswith(f"/{end}"):
            return bare.removesuffix(f"/{end}"), kind, "kernel"
    head, _, last = bare.replace("/", ".").rpartition(".")
    for kind, words in knowledge()["leaves"].items():
        if last in words:
            return bare[: len(head)], kind, last
    for kind in ("weight", "bias"):
        if last.endswith(f"_{kind}"):
            return bare.removesuffix(f"_{kind}"), kind, kind
    return bare, "", ""
