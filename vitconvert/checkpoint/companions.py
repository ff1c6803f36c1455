"""The JSON files beside the weights, as they are: what they say is weighed elsewhere."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitconvert.errors import CorruptFile
from vitconvert.sources import Located


@dataclass(frozen=True, kw_only=True)
class Companions:
    """The JSON files beside the weights, each parsed once, when it is first asked for.

    Asking for one raises CorruptFile if it is no JSON object.
    """

    located: Located

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """The project's own `config.json` or `open_clip_config.json`, empty if there is none."""
        return _read_json(self.located.config) or {}

    @functools.cached_property
    def own(self) -> Mapping[str, Any]:
        """`vitconvert.json`, which vitconvert itself wrote, empty if there is none."""
        return _read_json(self.located.own) or {}

    @functools.cached_property
    def preprocessor(self) -> Mapping[str, Any] | None:
        """`preprocessor_config.json`, or None."""
        return _read_json(self.located.preprocessor)

    def name_of(self, kind: str) -> str:
        """Where "config", "own" or "preprocessor" lies, for messages."""
        return str(getattr(self.located, kind))


def _read_json(path: Path | None) -> Mapping[str, Any] | None:
    if path is None:
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CorruptFile(
            f"{path.name} is not JSON.", evidence={"file": path, "problem": error}
        ) from None
    if not isinstance(value, dict):
        raise CorruptFile(f"{path.name} holds no JSON object.", evidence={"file": path})
    return value
