"""Which files of a repository to read: by their names, and by an index of shards."""

from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

from vitconvert.errors import CorruptFile, SourceError, nearest
from vitconvert.file_formats import (
    DISTRIBUTED,
    FOREIGN_SUFFIXES,
    GATHER,
    JOINED,
    in_words,
    of_directory,
    suffixes,
)
from vitconvert.formats import read_index, weights_among
from vitconvert.sources.located import COMPANIONS, KERAS_TOKENIZERS, TOKENIZERS


def wanted_files(repo: str, file: str | None, names: Collection[str]) -> list[str]:
    """The file of weights, by what the reference names, and the configuration files next to it."""
    folder = f"{file.rstrip('/')}/" if file else ""
    if file and not any(name.startswith(folder) for name in names):
        weights = require(repo, file, names)
    else:
        weights = choose_weights(repo, names, folder)
    return [weights, *configuration_files(weights, names)]


def shards_of(repo: str, index: str, path: Path, names: Collection[str]) -> list[str]:
    """The shards that an index at a path lists.

    Raises:
        SourceError: It is none, or the repository lacks one.
        UnsafeFile: A shard's name leads out of the folder of the index.
    """
    try:
        listed = sorted(set(read_index(path).values()))
    except CorruptFile as error:
        raise SourceError(
            f"{index} of {repo} is not an index of shards.",
            evidence={"file": path},
            hint="an index is JSON with weight_map: tensor name to file name.",
        ) from error
    folder = PurePosixPath(index).parent
    return [require(repo, str(folder / shard), names) for shard in listed]


def choose_weights(repo: str, names: Collection[str], folder: str = "") -> str:
    """The file of weights, or what stands for all of them, among a repository's files.

    Args:
        repo: The repository, for messages.
        names: Its files.
        folder: The one to look in, with a slash at its end.

    Raises:
        SourceError: There is none, or several could be meant.
    """
    here = _inside(folder, names)
    found = weights_among(here)
    if len(found) == 1:
        return folder + found[0]
    if form := of_directory(here):
        return folder + form.standard[0]
    if found:
        raise SourceError(
            f"{repo} holds {len(found)} files of weights{f' in {folder}' if folder else ''}.",
            details=found,
            hint=f"choose one: hf:{repo}/{folder}{found[0]}",
        )
    # Files of weights, and folders that are a checkpoint as a whole.
    folders: dict[str, set[str]] = {}
    for name in names:
        place, slash, file = name.rpartition("/")
        folders.setdefault(place + slash, set()).add(file)
    nested: list[str] = []
    for place, inside in folders.items():
        if place and of_directory(inside):
            nested.append(place.rstrip("/"))
        else:
            nested += [place + file for file in inside if file.endswith(suffixes())]
    if nested:
        raise SourceError(
            f"{repo} holds weights only in folders.",
            details=sorted(nested),
            hint=f"choose one: hf:{repo}/{min(nested)}",
        )
    foreign = sorted(name for name in names if name.endswith(FOREIGN_SUFFIXES))
    distributed = any(name.endswith(DISTRIBUTED) for name in foreign)
    raise SourceError(
        f"{repo} holds no weights that vitconvert reads.",
        details=foreign,
        hint=GATHER if distributed else f"{in_words()} are read.",
    )


def _inside(folder: str, names: Collection[str]) -> set[str]:
    """The files of a folder itself."""
    below = (name.removeprefix(folder) for name in names if name.startswith(folder))
    return {name for name in below if "/" not in name}


def parts(weights: str, names: Collection[str]) -> list[str]:
    """The other files of a checkpoint that is a whole directory, whose file to open this is."""
    folder = "".join(weights.rpartition("/")[:2])
    form = of_directory(_inside(folder, names))
    if form is None or weights != folder + form.standard[0]:
        return []
    return sorted(
        name
        for name in names
        if name.startswith(folder) and name != weights and form.parts(name.removeprefix(folder))
    )


def require(repo: str, name: str, names: Collection[str]) -> str:
    """The name itself, if the repository has it.

    Raises:
        SourceError: It has not. Names the nearest.
    """
    if name in names:
        return name
    near = nearest(name, names, 3)
    raise SourceError(
        f"{repo} holds no file {name}.",
        hint=f"did you mean {' or '.join(f'hf:{repo}/{match}' for match in near)}?"
        if near
        else f"the files are listed at https://huggingface.co/{repo}/tree/main",
    )


def tokenizer(weights: str, names: Collection[str], config: Mapping[str, object]) -> list[str]:
    """The files of a tokenizer next to the weights, of a model whose configuration has texts."""
    sections = [config, *(config[key] for key in ("model_cfg", "config") if key in config)]
    words = {word for section in sections if isinstance(section, Mapping) for word in section}
    folder = PurePosixPath(weights).parent
    texts = words & {"text_config", "text_cfg", "text_encoder"}
    known = (*TOKENIZERS, *KERAS_TOKENIZERS.values()) if texts else ()
    paths = (str(folder / name) for name in known)
    return [path for path in paths if path in names]


def configuration_files(weights: str, names: Collection[str]) -> list[str]:
    """The configuration files next to the weights, and the file with the rest of the tensors."""
    place = PurePosixPath(weights)
    joined = JOINED.get(place.name)
    known = (*COMPANIONS, joined) if joined else COMPANIONS
    paths = [str(place.parent / name) for name in known]
    return [path for path in paths if path in names]
