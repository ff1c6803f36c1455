"""What stands beside the shards for people and programs: README.md and vitconvert.json."""

from collections.abc import Mapping
from typing import Any

from vitconvert.errors import printable
from vitconvert.scale.folders import Folder, write_json
from vitconvert.scale.plan import Plan
from vitconvert.scale.shard import data_folder
from vitconvert.version import VERSION

RECORD, README = "vitconvert.json", "README.md"


def write_records(folder: Folder, plan: Plan) -> None:
    """Write both, for what is there by now."""
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
    write_json(folder, RECORD, record)
    with folder.writing(README) as file:
        file.write(_readme(plan, data, record, failed=bool(folder.names("failed"))).encode())


def _readme(plan: Plan, data: str, record: Mapping[str, Any], *, failed: bool) -> str:
    configs = [(data, True), *([("failed", False)] if failed else [])]
    listed = "".join(
        f"- config_name: {name}\n  data_files: {name}/*.parquet\n"
        + ("  default: true\n" if default else "")
        for name, default in configs
    )
    kept = ", ".join(f"`{printable(name)}`" for name in plan.columns)
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
