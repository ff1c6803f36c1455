"""Print the differences at a front door, in a process of its own: a module, and a name in it."""

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from tests.front_doors.images import write_images
from tests.front_doors.judge import judged

if __name__ == "__main__":
    module, name = sys.argv[1:]
    door = import_module(f"tests.front_doors.{module}").DOORS[name]
    with tempfile.TemporaryDirectory() as folder:
        images = write_images(Path(folder) / "images", door.exact)
        found = judged(door, Path(folder) / "model", images)
    shown = {
        kind: str(v) if v.difference is None and not v.agrees else v.difference
        for kind, v in found.items()
    }
    print(f"\n{json.dumps(shown)}")  # libraries print, too
