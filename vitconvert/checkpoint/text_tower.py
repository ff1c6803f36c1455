"""The text encoder beside a vision encoder, found among the tensors that the ViT leaves.

vitconvert does not compute it: its tensors and what its files say of it are carried to where both
encoders have a place.
"""

import math

from vitconvert.checkpoint.companions import Companions
from vitconvert.checkpoint.weights import Text, Weights
from vitconvert.config import TextConfig, field_names
from vitconvert.documents import JsonDict, JsonObject
from vitconvert.errors import NotRepresentable, VitConvertError, some
from vitconvert.facts.accounts import check_accounts, check_float_dtypes
from vitconvert.facts.project_config import broken_must_nots, facts_from_config, unknown_arguments
from vitconvert.tables.binding import Binding, bind
from vitconvert.tables.detection import Recognised, denied_by
from vitconvert.tables.dialects import text_tables_beside

_OPTIONAL = ("head_dim", "final_norm_eps", "end_id", "tokenizer")


def find_text(weights: Weights, companions: Companions) -> tuple[Text | None, str]:
    """The text encoder of a file, or None and why it cannot be carried; "" if there is none.

    It can where one table explains every tensor that the vision encoder leaves, and everything that
    decides its function is known.
    """
    tables = () if weights.tower.prefix else text_tables_beside(weights.table, weights.config)
    binding = weights.recognised.binding
    shapes = {key: binding.shapes[key] for key in binding.ignored}
    found = [tried for table in tables if (tried := bind(table, shapes)).links]
    if not found:
        return None, ""
    fitting = next((tried for tried in found if tried.fits), None)
    if fitting is None:
        nearest = max(found, key=lambda tried: tried.explained)
        left = [*nearest.unexplained, *nearest.misfits, *nearest.misshapen]
        lacking = [" or ".join(group) for group in nearest.lacking]
        what = f"does not explain {some(left)}" if left else f"finds no {', '.join(lacking)}"
        return None, f"the table of {nearest.table.title} {what}"
    if stated := denied_by(fitting.table, companions.whole_config):
        title = fitting.table.title
        said = f"config.json says {stated}"
        return None, f"{said}, which may read texts differently than {title}"
    container, prefix = weights.container, weights.recognised.prefix
    try:
        config = derive_text(fitting, companions.whole_config)
        file = str(container.path)
        check_accounts(fitting, config, file)
        dtypes = {key: container.manifest[prefix + key].dtype for key in fitting.shapes}
        check_float_dtypes(fitting, dtypes, file)
    except NotRepresentable as error:
        return None, error.in_one_line()
    except VitConvertError as error:
        return None, "; ".join((error.fact.rstrip("."), *error.details))
    recognised = Recognised(binding=fitting, prefix=prefix)
    return Text(config=config, recognised=recognised, container=container), ""


def derive_text(binding: Binding, their_config: JsonObject) -> TextConfig:
    """What is known of a text encoder: by its tensors, its project's file and its project's code.

    Raises:
        NotRepresentable: The file says what TextConfig has no word for, or contradicts the
            tensors, or nothing tells a field.
    """
    table = binding.table
    if unknown := unknown_arguments(table, their_config):
        raise NotRepresentable(f"its configuration says {', '.join(unknown)}")
    sizes, links = binding.sizes.known, binding.links
    blocks = {link.indices["i"] for several in links.values() for link in several if link.indices}
    shown: dict[str, object] = {
        "vocab_size": sizes.get("vocabulary", 0),
        "context_length": sizes.get("position", 0),
        "embed_dim": sizes.get("width", 0),
        "mlp_dim": sizes.get("hidden", 0),
        "num_features": sizes.get("feature", 0),
        "depth": len(blocks),
        "head_bias": "text.head.bias" in links,
        "logit_bias": "logit_bias" in links,
    }
    heads = {"num_heads": sizes.get("head"), "head_dim": sizes.get("dim")}  # of Keras' kernels
    shown |= {name: size for name, size in heads.items() if size}
    facts = facts_from_config(table, their_config)
    contradictions = [
        f"{name} {value} in {origin}, {shown[name]} by the tensors"
        for name, (value, origin) in facts.items()
        if origin == "config.json" and name in shown and shown[name] != value
    ]
    if contradictions:
        raise NotRepresentable(f"contradicted: {'; '.join(contradictions)}")
    known: JsonDict = {name: value for name, (value, _) in facts.items()} | shown
    for default in table.defaults:
        if default.name not in known and default.holds(known.get):
            known[default.name] = default.value
    _settle_heads(known)
    if missing := [n for n in field_names(TextConfig) if n not in known and n not in _OPTIONAL]:
        file = table.config_file.file if table.config_file and not their_config else ""
        where = f"without {file}, " if file else ""
        raise NotRepresentable(f"{where}there is no value for its {', '.join(missing)}")
    config = TextConfig(**known)
    if not 0 <= config.norm_eps < math.inf:  # which nan is not either
        raise NotRepresentable(f"its norm_eps is {config.norm_eps}")
    if broken := broken_must_nots(table, their_config, config):
        raise NotRepresentable(f"its configuration says {', '.join(broken)}")
    return config


def _settle_heads(known: JsonDict) -> None:
    """The number of heads, or what is in one, from the other."""
    width = known["embed_dim"]
    for one, other in (("num_heads", "head_dim"), ("head_dim", "num_heads")):
        if one not in known and (number := known.get(other)):
            known[one] = width // number
    heads, size = known.get("num_heads"), known.get("head_dim", 0)
    if heads is not None and (heads < 1 or heads * size != width):
        raise NotRepresentable(f"its width, {width}, is not divided by its heads")
