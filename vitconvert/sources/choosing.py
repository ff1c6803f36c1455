"""Which files of a repository to read, from their names alone."""

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

from vitconvert.containers import weights_among
from vitconvert.errors import SourceError, nearest
from vitconvert.formats import FOREIGN_SUFFIXES, JOINED, in_words, suffixes
from vitconvert.sources.located import COMPANIONS, TOKENIZERS


def choose_weights(repo: str, names: Collection[str]) -> str:
    """The file of weights, or the index of its shards, among a repository's files.

    Raises:
        SourceError: There is none, or several could be meant.
    """
    found = weights_among({name for name in names if "/" not in name})
    if len(found) == 1:
        return found[0]
    if found:
        raise SourceError(
            f"{repo} holds {len(found)} files of weights.",
            details=found,
            hint=f"choose one: hf:{repo}/{found[0]}",
        )
    raise _no_weights(repo, names)


def _no_weights(repo: str, names: Collection[str]) -> SourceError:
    if nested := sorted(name for name in names if name.endswith(suffixes())):
        return SourceError(
            f"{repo} holds weights only in folders.",
            details=nested,
            hint=f"choose one: hf:{repo}/{nested[0]}",
        )
    return SourceError(
        f"{repo} holds no weights that vitconvert reads.",
        details=sorted(name for name in names if name.endswith(FOREIGN_SUFFIXES)),
        hint=f"{in_words()} are read.",
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


def tokenizer(weights: str, names: Collection[str], config: Mapping[str, Any]) -> list[str]:
    """The files of a tokenizer beside the weights, of a model whose configuration has texts."""
    inner = config.get("model_cfg")
    texts = "text_config" in config or (isinstance(inner, Mapping) and "text_cfg" in inner)
    folder = PurePosixPath(weights).parent
    paths = (str(folder / name) for name in TOKENIZERS) if texts else ()
    return [path for path in paths if path in names]


def companions(weights: str, names: Collection[str]) -> list[str]:
    """The configuration files beside the weights, and the file with the rest of the tensors."""
    place = PurePosixPath(weights)
    beside = (*COMPANIONS, JOINED.get(place.name, place.name))
    paths = [str(place.parent / name) for name in beside]
    return [path for path in paths if path in names and path != weights]
