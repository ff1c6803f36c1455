"""A timm model with random weights, as files: everything but the download."""

from dataclasses import replace
from pathlib import Path

from vitconvert.sources.local import locate_path
from vitconvert.sources.located import Located
from vitconvert.sources.timm_names import unknown_architecture


def random_timm(name: str, directory: Path) -> Located:
    """Make timm's architecture with random weights, saved as timm saves for the Hub.

    Raises:
        SourceError: timm has no such architecture.
    """
    import timm
    from timm.models import save_for_hf

    bare = name.removeprefix("timm:").split(".")[0]
    if not timm.is_model(bare):
        raise unknown_architecture(bare)
    model = timm.create_model(bare, pretrained=False)
    save_for_hf(model, str(directory), safe_serialization=True)
    located = locate_path(str(directory), directory)
    return replace(located, reference=f"timm:{bare}, random weights", name=bare)
