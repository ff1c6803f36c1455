"""Print the differences at a front door of KerasHub, in a process of its own."""

import json
import sys
import tempfile
from pathlib import Path

from tests.front_doors.images import write_images
from tests.front_doors.judge import judged
from tests.front_doors.of_keras_hub import DOORS

if __name__ == "__main__":
    door = DOORS[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        images = write_images(Path(folder) / "images", door.exact)
        found = judged(door, Path(folder) / "model", images)
    print(json.dumps({kind: verdict.difference for kind, verdict in found.items()}))
