"""The architecture and the numerics of one Vision Transformer."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitconvert.config.axis_sizes import axis_sizes
from vitconvert.config.contradictions import contradictions
from vitconvert.config.function import effective_fields
from vitconvert.config.properties import Properties
from vitconvert.errors import ConflictingFact


@dataclass(frozen=True, kw_only=True)
class ViTConfig(Properties):
    """The architecture and the numerics of one Vision Transformer.

    `Fields` says what can be set, those of a plain ViT first; `Properties`, what follows from it.
    `origins` says where each value comes from.

    Raises:
        ConflictingFact: Fields contradict each other or have values outside their vocabulary.
    """

    def __post_init__(self) -> None:
        if problems := contradictions(self):
            raise ConflictingFact("These facts contradict each other.", details=problems)

    def function(self) -> dict[str, Any]:
        """The fields that decide the function in inference, without those that have no effect here.

        Two configurations compute the same function of the same weights if these are equal.
        """
        return effective_fields(self, field_names())

    def axes(self) -> dict[str, int]:
        """The size of every axis that `weights_map/canonical.toml` names."""
        return axis_sizes(self)

    def replace(self, **changes: Any) -> "ViTConfig":
        """A copy with other values; their origin is `user`, unless `changes` has `origins`."""
        origins = {**self.origins, **dict.fromkeys(changes, "user")}
        return dataclasses.replace(self, **{"origins": origins, **changes})

    def to_dict(self) -> dict[str, Any]:
        """All fields but `origins`, as JSON types."""
        values = ((name, getattr(self, name)) for name in field_names())
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values}

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], *, origin: str = "vitconvert.json"
    ) -> "ViTConfig":
        """The inverse of `to_dict`."""
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**fields, origins=dict.fromkeys(fields, origin))


@functools.cache
def field_names(of: type[Any] = ViTConfig) -> tuple[str, ...]:
    """Names of the fields that a user, or a table, can set."""
    return tuple(f.name for f in dataclasses.fields(of) if f.name != "origins")
