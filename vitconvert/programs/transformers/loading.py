"""What `from_pretrained` makes of an output, with every weight from the file."""

from pathlib import Path
from typing import Any


def load_named_class(directory: Path) -> Any:
    """The class that `config.json` names."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory)
    return load_all(getattr(transformers, config.architectures[0]), directory)


def load_all(kind: Any, directory: Path) -> Any:
    """A model whose every weight is in the file; transformers would draw what is missing."""
    model, problems = kind.from_pretrained(directory, dtype="float32", output_loading_info=True)
    found = [
        f"{problem}: {', '.join(sorted(map(str, names)))}"
        for problem, names in problems.items()
        if names
    ]
    if found:
        raise ValueError("; ".join(found))
    return model.eval()
