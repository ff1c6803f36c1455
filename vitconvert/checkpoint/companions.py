"""The small files beside the weights: read once, believed or not, and made statements.

`config.json` and its like state facts in the words of their projects. `vitconvert.json`, our own
record, is believed only while it is true of its directory: it has the sha256 of each file that it
speaks for, and of weights their bytes and a hash of the header, so that comparing does not read
all of them.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitconvert.checkpoint.options import ReadOptions
from vitconvert.documents import JsonDict, JsonObject, read_bytes, read_object
from vitconvert.errors import ConflictingFact, CorruptFile
from vitconvert.facts.fact import recorded
from vitconvert.facts.statements import Statements
from vitconvert.file_formats import INDEX, standard_names
from vitconvert.formats import Container, hash_file
from vitconvert.labels import Labels, indexed_labels, stated_labels
from vitconvert.sources import Located
from vitconvert.sources.located import RECORD
from vitconvert.tables.architectures import cards
from vitconvert.tables.parts import Tower, config_section, tower_words

# What vitconvert reads back, and of which kind it is.
_KINDS: tuple[tuple[str, type, str], ...] = (
    ("target", str, "a text"),
    *((name, dict, "an object") for name in ("config", "origins", "sha256", "weights", "ledger")),
)
# What training programs call the names of classes that they save with the weights: indices by
# names (torchvision's datasets, transformers), and names by indices or in order.
_INDICES = ("class_to_idx", "label2id")
_NAMES = ("class_names", "classes", "CLASSES", "id2label", "idx_to_class", "label_names")
_DEEPEST = 2  # groups of settings within one another, where such names are looked for
_REPEATED = ("config", "preprocessor")  # of `Located`: files of which it says the same in our words


@dataclass(frozen=True, kw_only=True)
class Record:
    """A record, as far as it is believed.

    Attributes:
        whole: All of it, or nothing where one of the files was written again since.
        of_weights: All of it where the weights are those that were written, as it tells their
            origin: it may still be believed of that when files beside them were edited.
        unspoken: "config" and "preprocessor", where that file is one of which it says nothing,
            because somebody added it, or an earlier version wrote the record.
        edited: The same names, where that file was written again since.
        doubts: A sentence for what is not believed.
    """

    whole: JsonObject
    of_weights: JsonObject
    unspoken: frozenset[str] = frozenset()
    edited: frozenset[str] = frozenset()
    doubts: tuple[str, ...] = ()

    @property
    def origins(self) -> dict[str, str]:
        """Where the fields of its configuration come from, with assumptions as such."""
        assumed = self.whole.get("ledger", {}).get("assumed")
        names = assumed if isinstance(assumed, dict) else {}
        return {
            name: recorded(origin, assumed=name in names)
            for name, origin in self.whole.get("origins", {}).items()
            if isinstance(origin, str)
        }

    @property
    def assumes_labels(self) -> bool:
        """Whether nobody names the classes, whatever a config.json repeats."""
        return self.whole.get("labels_assumed") is True

    def labels(self, num_classes: int) -> Labels | None:
        """The names that it gives classes, or None.

        Raises:
            ConflictingFact: They are not those of so many classes.
        """
        first = self.whole.get("labels_origin")
        origin = recorded(first if isinstance(first, str) else "", assumed=self.assumes_labels)
        return stated_labels(num_classes, self.whole.get("labels"), origin=origin)


@dataclass(frozen=True, kw_only=True)
class Companions:
    """The JSON files beside the weights, each parsed once, when it is first asked for.

    Attributes:
        located: Where they lie.
        section: Where `config.json` is about the ViT, as a path of keys with dots; "" is all of it,
            None no part.
        container: The open file of weights, which itself may say something of the model.

    Asking for one raises CorruptFile if it is no JSON object, or SourceError if it cannot be read.
    """

    located: Located
    container: Container = field(repr=False)
    section: str | None = ""

    @functools.cached_property
    def config(self) -> JsonObject:
        """The part of the project's own `config.json` or `open_clip_config.json` on the ViT.

        Empty if there is none.
        """
        return config_section(self.whole_config, self.section)

    @functools.cached_property
    def whole_config(self) -> JsonObject:
        """All of that file."""
        return self.container.config or _read(self.located.config) or {}

    @property
    def quantisation(self) -> JsonObject:
        """What that file says of how weights were quantised; empty if it says nothing."""
        # The second is the name that compressed-tensors gave it before 2024.
        places = (self.config, self.whole_config)
        words = ("quantization_config", "compression_config")
        found = (place.get(word) for place in places for word in words)
        return next((stated for stated in found if isinstance(stated, dict)), {})

    @functools.cached_property
    def record(self) -> Record:
        """`vitconvert.json`, which vitconvert itself wrote, as far as it is believed."""
        return read_record(self.located, self.container)

    @property
    def own(self) -> JsonObject:
        """All that is believed of the files as they are, empty if there is nothing."""
        return self.record.whole

    @functools.cached_property
    def preprocessor(self) -> JsonObject | None:
        """`preprocessor_config.json`, or the part of `processor_config.json` on images, or None."""
        found = _read(self.located.preprocessor)
        if found is None:
            return None
        of_images = config_section(found, "image_processor")
        return of_images or (None if "processor_class" in found and len(found) < 4 else found)


def _read(path: Path | None) -> JsonObject | None:
    return None if path is None else read_object(path)


def stated_weights(container: Container) -> JsonDict:
    """A record's entry on weights besides their hashes: bytes of each file, hash of the header."""
    sizes = {file.name: file.stat().st_size for file in container.files}
    return {"bytes": sizes, "header": _header_hash(container)}


def _header_hash(container: Container) -> str:
    """The sha256 of names, dtypes and shapes, in order, and of what the header says besides."""
    tensors = [(name, info.dtype, info.shape) for name, info in container.manifest.items()]
    said = json.dumps([tensors, dict(container.metadata)])
    return hashlib.sha256(said.encode()).hexdigest()


def read_record(located: Located, container: Container) -> Record:
    """Read the record beside weights, and compare the files with what it says of them.

    Raises:
        CorruptFile: It is no JSON object, or says something of another kind.
        SourceError: It cannot be read.
    """
    if located.own is None:
        return Record(whole={}, of_weights={})
    record = _parse(located.own)
    written = record.get("sha256", {})
    beside = {kind: path for kind in _REPEATED if (path := getattr(located, kind))}
    weights = _changed_weights(record, located, container)
    edited = {}
    for kind, path in beside.items():
        if path.name not in written:
            continue
        try:
            digest = hashlib.sha256(read_bytes(path)).hexdigest()
        except ValueError:
            digest = ""  # too large to be any that was written
        if digest != written[path.name]:
            edited[kind] = path.name
    doubts = []
    if others := [*weights, *edited.values()]:
        one = len(others) == 1
        since = f"{'was' if one else 'were'} changed since, and {'is' if one else 'are'} read"
        doubts = [f"{RECORD} is not used: {', '.join(others)} {since} like any other file"]
    unspoken = {kind: path.name for kind, path in beside.items() if path.name not in written}
    if unspoken and not others:
        names = " and ".join(unspoken.values())
        doubts = [f"{RECORD} does not list {names}, which takes precedence"]
    # Other weights that were saved beside those that are read: timm writes a pytorch_model.bin by
    # default, and reads the model.safetensors that is there.
    read = {file.name for file in container.files}
    there = [name for name in standard_names() if (located.own.parent / name).is_file()]
    added = [name for name in there if name not in {*read, *written} and not name.endswith(INDEX)]
    if added and located.fetched is None:
        doubts += [f"{' and '.join(added)} is not read, as {min(read)} is there"]
    if others:
        believed = {} if weights else record
        return Record(whole={}, of_weights=believed, edited=frozenset(edited), doubts=tuple(doubts))
    return Record(
        whole=record, of_weights=record, unspoken=frozenset(unspoken), doubts=tuple(doubts)
    )


def _parse(path: Path) -> JsonObject:
    record = read_object(path)
    for key, kind, expected in _KINDS:
        if not isinstance(record.get(key, kind()), kind):
            raise CorruptFile(
                f"{key} in {RECORD} is not {expected}.",
                evidence={"file": path, "found": repr(record[key])[:80]},
                hint="convert the original again, or remove this file.",
            )
    return record


def _changed_weights(record: JsonObject, located: Located, container: Container) -> list[str]:
    """The files of weights that are not what a record says, or of which it says nothing."""
    # Where their hashes are known already, these are compared. Otherwise sizes and the header are,
    # and hashes only if these leave it open, as with the record of an earlier version.
    known = {Path(name).name: digest for name, digest in located.sha256.items()}
    written, stated = record.get("sha256", {}), record.get("weights", {})
    sizes = stated.get("bytes")
    sizes = sizes if isinstance(sizes, dict) else {}
    same_header = stated.get("header") == _header_hash(container)

    def is_same(file: Path) -> bool:
        name, size = file.name, file.stat().st_size
        if not isinstance(written.get(name), str) or sizes.get(name, size) != size:
            return False
        if name in known:
            return bool(known[name] == written[name])
        if same_header and name in sizes:
            return True
        return located.fetched is None and hash_file(file) == written[name]

    return [file.name for file in container.files if not is_same(file)]


def hashed(located: Located) -> Located:
    """The same with the sha256 of files that a record speaks for, so that every byte is compared.

    Without a record, or where the hashes are known or the bytes not here, it is the same.
    """
    if located.own is None or located.fetched is not None:
        return located
    folder, written = located.own.parent, _parse(located.own).get("sha256", {})
    there = [folder / name for name in written if Path(name).name == name]
    missing = {f.name: hash_file(f) for f in there if f.is_file() and f.name not in located.sha256}
    return replace(located, sha256={**located.sha256, **missing})


def statements_on(companions: Companions, options: ReadOptions) -> Statements:
    """Everything that is stated about a checkpoint besides its tensors, and by the user."""
    located = companions.located
    return Statements(
        user=options.overrides or {},
        own=companions.own.get("config", {}),
        own_origins=companions.record.origins,
        own_first="config" not in companions.record.unspoken,
        config=companions.config,
        config_file=str(located.config),
        architecture=options.architecture,
        name=located.name or (located.repo if located.repo in cards() else None),
        trained=companions.container.extras,
        file_name=located.weights.name if located.weights else "",
        doubts=companions.record.doubts,
    )


def own_labels(companions: Companions, num_classes: int) -> tuple[Labels | None, tuple[str, ...]]:
    """Names that the checkpoint itself gives its classes, or None; and notes on them.

    A record that is believed knows better than its config.json whose names these are. Without
    either, those count that a training program saved with the weights.
    """
    config, record = companions.config, companions.record
    names = config.get("id2label") or config.get("label_names")
    recorded = record.labels(num_classes)
    if "config" not in record.unspoken and (recorded or record.assumes_labels):
        return recorded, ()
    stated = stated_labels(num_classes, names, descriptions=config.get("label_descriptions"))
    if stated or recorded:
        return stated or recorded, ()
    return _trained_labels(companions.container.extras, num_classes)


def _trained_labels(
    extras: Mapping[str, object], num_classes: int
) -> tuple[Labels | None, tuple[str, ...]]:
    """The names beside the weights, or among settings there: Lightning's, MMPretrain's meta."""
    problems = []
    for place, found in _named(extras):
        origin = f"{place} beside the weights"
        try:
            if place.rpartition(".")[2] in _INDICES:
                assert isinstance(found, Mapping)
                labels: Labels | None = indexed_labels(num_classes, found, origin=origin)
            else:
                labels = stated_labels(num_classes, found, origin=origin)
        except ConflictingFact as error:
            problems.append(f"{origin} does not name the classes: {error.fact}")
            continue
        if labels is not None:
            return labels, (f"classes are named by {origin}",)
    return None, tuple(problems)


def _named(
    extras: Mapping[str, object], depth: int = _DEEPEST
) -> Iterator[tuple[str, Mapping[str, str] | Sequence[str]]]:
    """The place of each value that names classes by what it is called, and the value."""
    for where, value in extras.items():
        word = where.rpartition(".")[2]
        if word in _INDICES and isinstance(value, Mapping):
            yield where, value
        elif word in _NAMES and value and isinstance(value, Mapping | list):
            names = value.values() if isinstance(value, Mapping) else value
            if all(isinstance(name, str) for name in names):
                yield where, value
        elif isinstance(value, Mapping) and depth:
            inner = {f"{where}.{key}": found for key, found in value.items()}
            yield from _named(inner, depth - 1)


def what_is_read(companions: Companions, tower: Tower) -> tuple[str, ...]:
    """A note on which layer a larger model reads, by its config.json or else by its code."""
    config, said = companions.whole_config, tower_words()["reads"]
    layer = next((config[key] for key in said["layer"] if config.get(key) is not None), None)
    numbers = layer if isinstance(layer, list) else [layer]
    read = tower.reads
    if numbers and all(type(number) is int for number in numbers):
        chosen = (said["tokens"].get(str(config.get(key))) for key in said["chosen_by"])
        layers = f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        read = f"{layers} of this ViT{next(filter(None, chosen), '')}"
    return (f"the larger model reads {read}; here is the ViT's own output",) if read else ()
