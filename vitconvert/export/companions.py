"""The small files beside the weights: what each program needs to build and feed the model."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitconvert.conversion.target import Target
from vitconvert.errors import NotRepresentable
from vitconvert.inference.preprocessing import Preprocessing


def companions_of(
    target: Target, preprocessing: Preprocessing | None, dtypes: Iterable[str]
) -> dict[str, Mapping[str, Any]]:
    """`config.json` and `preprocessor_config.json`, where the target has them."""
    if not target.their_config:
        return {}
    config = dict(target.their_config)
    if "dtype" in config:
        found = set(dtypes)
        config["dtype"] = found.pop() if len(found) == 1 else "float32"
    companions: dict[str, Mapping[str, Any]] = {"config.json": config}
    if preprocessing is not None:
        # Where transformers cannot say it, timm's config.json and vitconvert.json do all the same.
        with suppress(NotRepresentable):
            companions["preprocessor_config.json"] = preprocessing.to_huggingface()
    return companions


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object as people read it."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
