"""Write files_of_4.json: the config.json and the tower's names of each family by transformers 4.

Run from the repository's root where transformers 4 is found before 5:

    pip install --target OLD --no-deps 'transformers<5' 'huggingface_hub<1' tokenizers requests
    PYTHONPATH=OLD:. python -m tests.towers.make_files_of_4
"""

import json
import tempfile
import warnings
from pathlib import Path

from safetensors import safe_open

from tests.packages import transformers
from tests.towers.families import FAMILIES, Family, names_of_tower

PLACE = Path(__file__).parent / "files_of_4.json"
_OF_TEXT = ("text_config", "qformer_config", "decoder")


def written(family: Family, folder: Path) -> dict[str, object]:
    """What of a family's files is kept: all that is about images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        family.model().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    for part in (config, config.get("vlm_config", {})):
        for name in _OF_TEXT:
            part.pop(name, None)
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {"config": config, "tower": names_of_tower(file.keys(), family.start_in_4)}


def main() -> None:
    """Write the file anew."""
    assert transformers.__version__.startswith("4."), transformers.__version__
    found = {}
    for name, family in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = written(family, Path(folder))
    # A line for each family.
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in found]
    PLACE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
