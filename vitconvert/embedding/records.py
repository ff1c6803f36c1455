"""What stands beside the shards for people and programs: README.md and vitconvert.json."""

import hashlib
from collections.abc import Mapping
from typing import Any

from vitconvert.embedding.folders import Folder, read_json, write_json
from vitconvert.embedding.plan import Plan
from vitconvert.embedding.shard import data_folder
from vitconvert.errors import printable
from vitconvert.version import VERSION

RECORD, README = "vitconvert.json", "README.md"


def write_records(folder: Folder, plan: Plan) -> None:
    """Write both, for what is there by now; a README.md that somebody else changed stays."""
    computed = plan.identity["computed"]["what"]
    data = data_folder(computed)
    parts = folder.names(data)
    record = {
        "vitconvert": VERSION,
        "identity": plan.identity,
        "images": plan.rows,
        "shards": len(plan.units),
        "written": len(parts),
    }
    readme = _readme(plan, data, record, failed=bool(folder.names("failed"))).encode()
    if _is_ours(folder, readme):
        with folder.writing(README) as file:
            file.write(readme)
    write_json(folder, RECORD, {**record, "readme_sha256": hashlib.sha256(readme).hexdigest()})


def _is_ours(folder: Folder, readme: bytes) -> bool:
    """Whether the README.md is what we wrote last: then, or when we were killed after it."""
    names = folder.entries()
    if README not in names:
        return True
    with folder.open(README) as file:
        found = file.read()
    stated = read_json(folder, RECORD) if RECORD in names else {}
    return found == readme or hashlib.sha256(found).hexdigest() == stated.get("readme_sha256")


def _readme(plan: Plan, data: str, record: Mapping[str, Any], *, failed: bool) -> str:
    configs = [(data, True), *([("failed", False)] if failed else [])]
    listed = "".join(
        f"- config_name: {name}\n  data_files: {name}/*.parquet\n"
        + ("  default: true\n" if default else "")
        for name, default in configs
    )
    kept = ", ".join("`" + printable(name).replace("`", "'") + "`" for name in plan.columns)
    what = "classes, with labels and scores" if data == "predictions" else "features"
    return f"""---
configs:
{listed}---

# The {what} of {record["images"]:,} images

Made by vitconvert {VERSION}: {record["written"]:,} of {record["shards"]:,} shards are here, each a
Parquet file in `{data}/` with a row for each image: `key`{f", {kept}" if kept else ""} and what was
computed. Images that gave no answer are in `failed/`, with the reason. `vitconvert.json` says which
model and preprocessing this is of.

```python
from datasets import load_dataset

dataset = load_dataset(".", "{data}", split="train")
```
"""
