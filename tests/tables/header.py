"""The section with which every table begins, and values as TOML writes them."""

import json

HEADER = """\
[dialect]
title  = "Mine"
source = "https://example.org/mine.py"
"""


def toml(value):
    """A value on one line."""
    match value:
        case bool() | str():
            return json.dumps(value, ensure_ascii=False)
        case dict():
            return f"{{{', '.join(f'{json.dumps(k)} = {toml(v)}' for k, v in value.items())}}}"
        case list():
            return f"[{', '.join(map(toml, value))}]"
    return repr(value)
