"""What was lost, by kind: how that comes about, and what to do."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from fnmatch import fnmatchcase

from vitconvert.auditing.content import OVERWRITTEN
from vitconvert.auditing.held import LoadedTensors
from vitconvert.auditing.names import grouped, part_of
from vitconvert.errors import some
from vitconvert.wrappers import prefixes

Shape = tuple[int, ...]

_PATTERNS = 3  # for --allow
_ALIKE = 0.5  # of two names without their numbers (difflib's ratio)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Parameters that were lost in one way.

    Attributes:
        kind: One word: "meta", "prefix", "renamed", "size", "tied", "absent", "buffer", "present",
            "exchanged", "quantised", "overwritten", "changed".
        title: What they have in common.
        parameters: Each, and what is known of it.
        tensors: Tensors of the file that are likely meant for them.
        cause: How that comes about, most likely.
        remedy: What to do.
    """

    kind: str
    title: str
    parameters: Mapping[str, str]
    tensors: tuple[str, ...]
    cause: str
    remedy: str

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {**vars(self), "parameters": dict(self.parameters)}


@dataclass(frozen=True, kw_only=True)
class LossEvidence:
    """What kinds are told by.

    Attributes:
        held: What the model holds.
        namesakes: Parameter -> tensors of the file of its name.
        landed: Tensors of the file that are in the model.
        overwritten: Parameter -> the tensors of the file for it, by names that others landed by.
        partners: Parameter -> a tensor of the file with another name that is likely meant for it.
        shape_of: The shape of a tensor of the file.
        head: What all names of the file begin with, and none of the model's; "" if some landed.
    """

    held: LoadedTensors
    namesakes: Mapping[str, Sequence[str]]
    landed: Collection[str]
    overwritten: Mapping[str, Sequence[str]]
    partners: Mapping[str, str]
    shape_of: Callable[[str], Shape]
    head: str


def losses(
    untouched: Mapping[str, str],
    misplaced: Mapping[str, str],
    unexplained: Mapping[str, str],
    evidence: LossEvidence,
) -> tuple[Loss, ...]:
    """Sort what was lost by kind, the most frequent first."""
    kinds: dict[str, dict[str, str]] = {}
    for name, text in untouched.items():
        kinds.setdefault(_kind(name, evidence), {})[name] = text
    for name, text in unexplained.items():
        words = {"quantised": "quantised", OVERWRITTEN: "overwritten"}
        kind = next((kind for word, kind in words.items() if word in text), "changed")
        kinds.setdefault(kind, {})[name] = text
    if misplaced:
        kinds["exchanged"] = dict(misplaced)
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
    return tuple(_loss(kind, parameters, evidence) for kind, parameters in ordered)


def allowed(names: Collection[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """Those of the names that match a pattern, as "classifier.*"."""
    return tuple(name for name in names if any(fnmatchcase(name, one) for one in patterns))


def _kind(name: str, evidence: LossEvidence) -> str:
    held, own = evidence.held, evidence.namesakes.get(name, ())
    if held.is_absent(name):
        return "meta"
    if own:
        if evidence.shape_of(own[0]) != tuple(held.tensors[name].shape):
            return "size"
        return "prefix" if _prefixes(name, own[0], evidence) != ("", "") else "present"
    if name in evidence.overwritten:
        return "present"
    if name in evidence.partners:
        return "prefix" if evidence.head else "renamed"
    if _tied_to(name, evidence):
        return "tied"
    return "absent" if name in held.parameters else "buffer"


def _prefixes(name: str, own: str, evidence: LossEvidence) -> tuple[str, str]:
    """What the name in the file and that in the model begin with, if nothing else differs.

    A prefix that the loader took off other tensors is no reason.
    """
    words, others = own.split("."), name.split(".")
    while words and others and words[-1] == others[-1]:
        words, others = words[:-1], others[:-1]
    theirs, ours = (".".join([*one, ""]) if one else "" for one in (words, others))
    if theirs and any(tensor.startswith(theirs) for tensor in evidence.landed):
        return "", ""
    if ours and not theirs and any(not own.startswith(ours) for own in evidence.landed):
        return "", ""
    return theirs, ours


def _tied_to(name: str, evidence: LossEvidence) -> str | None:
    """The embedding of the model that an output layer without a tensor of its own is of shape of.

    `lm_head.weight` is the same tensor as `embed_tokens.weight` where a configuration ties both.
    """
    shape = evidence.held.tensors[name].shape
    if len(shape) != 2 or not any(word in name for word in ("head", "decoder", "proj_out")):
        return None
    landed = [n for n in evidence.landed if "embed" in n or "wte" in n or "shared" in n]
    return next((n for n in landed if evidence.shape_of(n) == tuple(shape)), None)


def _loss(kind: str, parameters: Mapping[str, str], evidence: LossEvidence) -> Loss:
    title, cause, remedy = _TEXTS[kind]
    first = next(iter(parameters))
    if kind == "prefix":
        cause, remedy = _of_prefix(parameters, evidence)
    elif kind == "present" and parameters.keys() & evidence.overwritten.keys():
        title = "as initialised; in the file under the names that other blocks were loaded by"
        cause += "; the names are right, as other blocks landed by them"
    elif kind == "tied":
        cause = f"{cause}: the file has {_tied_to(first, evidence)} alone"
    elif kind in ("absent", "buffer"):
        modules = dict.fromkeys(_part(name, parameters, evidence.held) for name in parameters)
        cause = cause.format(parts=some(grouped(dict.fromkeys(modules, ""))))
        whole = (one if one in parameters else f"{one}.*" for one in modules)
        patterns = dict.fromkeys(map(_pattern, whole))
        remedy += ": " + " ".join(f"--allow '{one}'" for one in [*patterns][:_PATTERNS])
    elif kind == "overwritten":
        remedy += ": " + " ".join(f"--allow '{_pattern(one)}'" for one in [*parameters][:_PATTERNS])
    elif kind == "size" and any("pos" in name for name in parameters):
        cause = "the model was made for another number of classes, or images of another size"
    elif kind == "exchanged" and all("holds" in text for text in parameters.values()):
        parts = {part_of(name) for name in parameters} - {""}
        if len(parts) > 1:
            cause = (
                f"{' and '.join(sorted(parts))} are exchanged: code maps one to the other's name"
            )
    meant = [one for name in parameters for one in evidence.namesakes.get(name, ())]
    meant += [evidence.partners[name] for name in parameters if name in evidence.partners]
    meant += [one for name in parameters for one in evidence.overwritten.get(name, ())]
    return Loss(
        kind=kind,
        title=title,
        parameters=parameters,
        tensors=tuple(meant),
        cause=cause,
        remedy=remedy,
    )


def _part(name: str, lost: Collection[str], held: LoadedTensors) -> str:
    """The largest module of which all is lost, or the parameter itself."""
    words = name.split(".")
    for depth in range(1, len(words)):
        module = ".".join(words[:depth])
        if all(one in lost for one in held.tensors if one.startswith(f"{module}.")):
            return module
    return name


def _pattern(name: str) -> str:
    """Of all blocks, as --allow takes it."""
    return ".".join("*" if word.isdigit() else word for word in name.split("."))


def _of_prefix(parameters: Mapping[str, str], evidence: LossEvidence) -> tuple[str, str]:
    pairs = Counter(
        _prefixes(name, evidence.namesakes[name][0], evidence)
        if name in evidence.namesakes
        else (evidence.head, "")
        for name in parameters
    )
    (theirs, ours), _ = pairs.most_common(1)[0]
    wrapper = prefixes().get(theirs)
    cause = f"names in the file begin with {theirs!r}" if theirs else ""
    cause += f" ({wrapper})" if wrapper else ""
    if ours:
        cause += f"{', and ' if cause else ''}names in the model begin with {ours!r}"
    if theirs and not ours:
        done = f"{{name.removeprefix({theirs!r}): tensor for name, tensor in state.items()}}"
    else:
        taken = f"name.removeprefix({theirs!r})" if theirs else "name"
        done = f"{{{ours!r} + {taken}: tensor for name, tensor in state.items()}}"
    clean = "; or write clean names: vitconvert convert CHECKPOINT --to hf"
    renames = any(name not in evidence.namesakes for name in parameters)
    return cause, f"load {done}{clean if renames else ''}"


# Kind -> what the parameters have in common, how that comes about, and what to do.
_TEXTS = {
    "meta": (
        "on the meta device, without numbers",
        "the loader made them without memory, and filled them with nothing",
        "look why the file's names did not match, or load without a device map",
    ),
    "prefix": ("as initialised; in the file under another prefix", "", ""),
    "renamed": (
        "as initialised; in the file under other names",
        "the class gives them other names than the file (another release wrote it)",
        "load with the release that wrote the file; or rename them in it, as this release saves "
        "them",
    ),
    "size": (
        "as initialised; in the file with another size",
        "the model was made for another number of classes, channels or positions",
        "make the model as the file is; or allow what is to be new: --allow 'NAME.*'",
    ),
    "tied": (
        "as initialised; tied to others in the file",
        "weights that the file ties are not tied in the model",
        "tie them: tie_word_embeddings in config.json, or model.tie_weights()",
    ),
    "absent": (
        "newly initialized; nothing in the file",
        "the class adds {parts}, which the file does not have",
        "take a class without these parts, or allow them to be trained",
    ),
    "buffer": (
        "buffers as the class makes them; nothing in the file",
        "the file was saved without {parts}",
        "save state_dict() and not parameters() alone, or allow what the class computes",
    ),
    "present": (
        "as initialised; in the file under the same names",
        "the loader did not copy them, or something initialised them again afterwards",
        "look at what follows load_state_dict: a second __init__, _init_weights, a filter of names",
    ),
    "exchanged": (
        "hold the file's numbers for others",
        "code that loads renames or reorders wrongly",
        "compare the names, and the order of the parts, with those of the file",
    ),
    "quantised": (
        "not what the file's quantised numbers stand for",
        "the file is quantised, and the loader read its numbers or scales differently",
        "load with the library that quantised it, or dequantise: vitconvert convert --dtype",
    ),
    "overwritten": (
        "some numbers were replaced by one, and the file has others",
        "the class sets a row to zero, as that of a padding token, or fills it after loading",
        "look at what follows load_state_dict; if outputs need no such row",
    ),
    "changed": (
        "other numbers than the file's, by no layout",
        "something was scaled, added or trained after loading: an adapter, a merge, a step",
        "audit before training; merge adapters into the file first",
    ),
}


def partners(
    lost: Mapping[str, Shape], idle: Mapping[str, Shape], head: str = ""
) -> dict[str, str]:
    """Parameter -> the tensor of the file that is likely meant for it, by names and shapes.

    Names of one kind, as of all blocks, are matched together: each of them needs a tensor of its
    block and shape. A wrapper may have put numbers before all names (`0.auto_model.`), so those at
    the end count. Of several kinds, the most alike counts.

    Args:
        lost: Parameters that found nothing of their name, and their shapes.
        idle: Tensors of the file that are in no parameter, and theirs.
        head: What all names of the file begin with, which makes none of them less alike.
    """
    ours, theirs = _by_kind(lost), _by_kind(idle)
    pairs = []
    for kind, parameters in ours.items():
        for other, tensors in theirs.items():
            count = min(kind.split(".").count("#"), other.split(".").count("#"))
            by_end = {numbers[len(numbers) - count :]: t for numbers, t in tensors.items()}
            ends = {p: numbers[len(numbers) - count :] for numbers, p in parameters.items()}
            matched = {p: by_end.get(end) for p, end in ends.items()}
            several = len(by_end) < len(tensors) or len({*ends.values()}) < len(ends)
            if several or None in matched.values() or _differ(kind, other):
                continue
            if all(lost[p] == idle[str(t)] for p, t in matched.items()):
                alike = SequenceMatcher(
                    None, kind, other.removeprefix(head), autojunk=False
                ).ratio()
                pairs.append((alike, other, matched))
    found: dict[str, str] = {}
    taken: set[str] = set()
    for alike, other, matched in sorted(pairs, key=lambda pair: -pair[0]):
        if alike >= _ALIKE and other not in taken and not matched.keys() & found.keys():
            taken.add(other)
            found |= {parameter: str(tensor) for parameter, tensor in matched.items()}
    return found


def _by_kind(names: Collection[str]) -> dict[str, dict[tuple[str, ...], str]]:
    """Names without the numbers of blocks -> these numbers -> name."""
    found: dict[str, dict[tuple[str, ...], str]] = {}
    for name in names:
        words = name.split(".")
        kind = ".".join("#" if word.isdigit() else word for word in words)
        found.setdefault(kind, {})[tuple(word for word in words if word.isdigit())] = name
    return found


def _differ(kind: str, other: str) -> bool:
    """Whether names say that one is of queries and the other of keys, or weights and biases."""
    parts = {part_of(kind), part_of(other)} - {""}
    return len(parts) > 1 or _is_bias(kind) != _is_bias(other)


def _is_bias(name: str) -> bool:
    last = name.rpartition(".")[2]
    return "bias" in last or last == "beta"
