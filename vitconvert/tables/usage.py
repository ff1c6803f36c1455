"""How a project's own code loads what is written for it: Python with `$words` in it.

A word is a field or property of ViTConfig, or `mlp_ratio`: what makes the MLPs' width of the
model's. A height and a width that are equal are one number.
"""

from dataclasses import dataclass
from string import Template

from vitconvert.config import ViTConfig
from vitconvert.tables.config_file import Ratio
from vitconvert.tables.predicates import config_words

_RATIO = "mlp_ratio"


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Python, and what it is about."""

    title: str
    code: Template

    def code_for(self, config: ViTConfig) -> str:
        """The code for one model."""
        return self.code.substitute(
            {word: _written(config, word) for word in self.code.get_identifiers()}
        )


def parse_usage(title: str, code: str) -> Usage:
    """Parse the code.

    Raises:
        ValueError: A `$` stands before what is no word.
    """
    template = Template(code.strip())
    if not template.is_valid():
        raise ValueError("a $ that is no word is written twice: $$")
    for word in template.get_identifiers():
        if word not in config_words() and word != _RATIO:
            raise ValueError(f"${word} is no property of ViTConfig, and not ${_RATIO}")
    return Usage(title=title, code=template)


def _written(config: ViTConfig, word: str) -> str:
    if word == _RATIO:
        ratio = Ratio(makes="mlp_dim").of(config)
        return f"{config.mlp_dim} / {config.embed_dim}" if ratio is None else repr(ratio)
    value = getattr(config, word)
    one_number = isinstance(value, tuple) and len(value) == 2 and len(set(value)) == 1
    return repr(value[0] if one_number else value)
