"""timm names to the places of their weights, through timm's own table of pretrained models, or to
random weights."""

from dataclasses import replace
from pathlib import Path

from vitconvert.errors import SourceError, nearest
from vitconvert.sources.located import Located, locate_path
from vitconvert.sources.references import HubRepo, WebAddress


def resolve_timm(name: str) -> tuple[str, HubRepo | WebAddress]:
    """The full name (with the default tag, if none is given) and where its weights are.

    Source: `timm.models.get_pretrained_cfg`, timm 1.0.31; like timm, the Hub before an address.

    Raises:
        SourceError: timm does not know the name or the tag, or nobody published weights for it.
    """
    from timm.models import get_arch_pretrained_cfgs, get_pretrained_cfg, is_model

    architecture, _, tag = name.partition(".")
    if not is_model(architecture):
        raise _unknown_architecture(architecture)
    tags = [key.partition(".")[2] for key in get_arch_pretrained_cfgs(architecture)]
    if tag and tag not in tags:
        near = nearest(tag, tags) or tags[:1]
        raise SourceError(
            f"timm knows no weights {tag} of {architecture}.",
            details=[f"{architecture}.{known}" for known in tags if known],
            hint=f"did you mean timm:{architecture}.{near[0]}?" if near and near[0] else None,
        )
    if (cfg := get_pretrained_cfg(name)) is not None:
        full = f"{architecture}.{cfg.tag}" if cfg.tag else name
        if cfg.hf_hub_id:
            return full, HubRepo(repo=cfg.hf_hub_id, revision=None, file=cfg.hf_hub_filename)
        if isinstance(cfg.url, str) and cfg.url:
            return full, WebAddress(url=cfg.url)
    raise SourceError(
        f"timm publishes no weights for {name}.",
        hint="--no-pretrained builds the model without its weights; "
        "--checkpoint PATH reads a file that you have.",
    )


def random_timm(name: str, directory: Path) -> Located:
    """Make timm's architecture with random weights, saved as timm saves for the Hub.

    Raises:
        SourceError: timm has no such architecture.
    """
    import timm
    from timm.models import save_for_hf

    bare = name.removeprefix("timm:").split(".")[0]
    if not timm.is_model(bare):
        raise _unknown_architecture(bare)
    model = timm.create_model(bare, pretrained=False)
    save_for_hf(model, str(directory), safe_serialization=True)
    located = locate_path(str(directory), directory)
    reference = f"timm:{bare}, random weights"
    return replace(located, reference=reference, name=bare, random=True)


def shapes_of_timm(name: str) -> dict[str, tuple[int, ...]]:
    """The shapes of an architecture's tensors, by timm's names; the weights take no memory.

    Raises:
        SourceError: timm has no such architecture.
    """
    import timm
    import torch

    if not timm.is_model(name):
        raise _unknown_architecture(name)
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False)
    return {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}


def _unknown_architecture(architecture: str) -> SourceError:
    """The error for a name that timm does not know, with the nearest that it does."""
    from timm.models import list_models

    near = nearest(architecture, list_models(), 3)
    return SourceError(
        f"timm knows no model {architecture}.",
        hint=f"did you mean {' or '.join(f'timm:{match}' for match in near)}?"
        if near
        else "`vitconvert list '*'` shows them.",
    )
