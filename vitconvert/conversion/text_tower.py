"""Text encoders on their way from one project's files to another's, beside the vision encoder."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from vitconvert.checkpoint import Checkpoint
from vitconvert.documents import JsonDict, JsonObject, read_bytes, write_json
from vitconvert.errors import CorruptFile, SourceError, VitConvertError
from vitconvert.preprocessing import Preprocessing
from vitconvert.preprocessing.transformers import of_any_size
from vitconvert.programs.program import CompanionFiles, Tokenizer, program_of
from vitconvert.programs.target import Target, merged

_MOST_BYTES = 2**28  # of a file of a tokenizer; 34 MB is Gemma's, which SigLIP 2 has
_OPENAIS = 49408  # ids of OpenAI's tokenizer, which open_clip has built in
# What chooses code or weights, says again what is said elsewhere, or is of another release.
_NOT_KEPT = ("auto_map", "quantization_config", "torch_dtype", "transformers_version")


def with_text(source: Checkpoint, target: Target) -> Checkpoint:
    """The checkpoint with the accounts of its text encoder: carried, or why it is left behind."""
    text, ledger = source.text, source.ledger
    if text is not None and target.text is not None:
        note = f"the text encoder is converted too, but not computed by vitconvert: {text.config}"
        if source.located.tokenizer and not tokenizer_files(source, target):
            note += f"; its tokenizer is left out, because {target.table.title} reads another"
        changes = (f"norm-eps of the text encoder: {change}" for change in target.text.changes)
        filled = (a.target for a in target.text.plan.assemblies if not a.pieces)
        again = (name for name in filled if name in ledger.ignored)
        ledger = ledger.with_carried((*text.keys, *again)).with_changes(changes)
        return replace(source, ledger=ledger.with_notes([note]))
    no_place = target.left or f"{target.table.title} has no place for one"
    why = source.text_problem or (no_place if text else "")
    note = f"the text encoder is left out: {why}" if why else ""
    return replace(source, text=None, ledger=ledger.with_notes([note]))


def with_tokenizer(source: Checkpoint) -> Checkpoint:
    """The checkpoint whose text encoder says that its tokenizer lies beside it.

    open_clip takes files of a tokenizer only where its configuration names one, whatever the name.
    """
    text, located = source.text, source.located
    if text is None or not located.tokenizer:
        return source
    if text.config.tokenizer or text.config.vocab_size == _OPENAIS:
        return source
    name = located.repo or located.name or "beside"
    return replace(source, text=replace(text, config=replace(text.config, tokenizer=name)))


def small_files(source: Checkpoint, target: Target, companions: CompanionFiles) -> Tokenizer:
    """What lies beside the weights, by name: JSON to write, and files of a tokenizer to copy.

    If the output's file is of the same kind, it keeps the fields that play no part here, such as
    how texts are prepared.
    """
    files: dict[str, Path | JsonObject] = dict(companions.files)
    text, config_file = source.text, target.table.config_file
    if text and target.text and text.table is target.text.table and source.table is target.table:
        name = config_file.file if config_file else ""
        if name in companions.files:
            kept = _kept(source.companions.whole_config)
            files[name] = merged(kept, companions.files[name])
    if "preprocessor_config.json" in files and (own := own_processor(source, target)):
        files["preprocessor_config.json"] = own
    return {**files, **tokenizer_files(source, target)}


def own_processor(source: Checkpoint, target: Target) -> JsonObject | None:
    """The source's file on images of any size, if it holds for the same class in the output."""
    stated, size = source.companions.preprocessor, source.config.image_size
    if source.table is not target.table or not stated or source.preprocessing is None:
        return None
    if not of_any_size(stated, source.companions.config.get("model_type")):
        return None
    try:
        again = Preprocessing.from_huggingface(stated, image_size=size)
    except VitConvertError:  # of another size, for which somebody stated something else
        return None
    return None if again.differences(source.preprocessing) else _kept(stated)


def _kept(config: JsonObject) -> JsonDict:
    return {
        key: _kept(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if not key.startswith("_") and not key.endswith("_config_dict") and key not in _NOT_KEPT
    }


def tokenizer_files(source: Checkpoint, target: Target) -> Tokenizer:
    """The files of the tokenizer that are copied: beside the source, by its names in the output.

    Raises:
        SourceError: One cannot be read, or is a link to somewhere else: what is copied may be
            published, and a link in somebody's folder chooses no file of this machine.
        CorruptFile: What says how to use it is no JSON.
    """
    files, folder = source.located.tokenizer, source.located.folder
    if not (source.text and target.text and files and folder):
        return {}
    real = folder.resolve()
    # A file of its folder, or of the Hub's cache, whose folders are links into their blobs.
    blobs = [above.parent / "blobs" for above in real.parents if above.name == "snapshots"]
    for path in files.values():
        if path.resolve().parent not in (real / path.parent.relative_to(folder), *blobs):
            raise SourceError(
                f"{path.name} is a link that leads out of its folder.",
                evidence={"file": path, "leads to": path.resolve()},
                hint="put the file itself there, or leave the text encoder out: --image-only.",
            )
    return program_of(target.table).tokenizer(files, target)


def write_small_files(directory: Path, files: Tokenizer) -> None:
    """Write JSON, and copy files as they are.

    Raises:
        SourceError: A file cannot be read.
        CorruptFile: One is larger than any tokenizer.
    """
    for name, content in files.items():
        place = directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Mapping):
            write_json(place, content)
            continue
        try:
            place.write_bytes(read_bytes(content, _MOST_BYTES))
        except ValueError as error:
            raise CorruptFile(f"{content.name} is no tokenizer: {error}.") from None
