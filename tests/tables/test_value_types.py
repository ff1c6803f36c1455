"""A value of another type, anywhere in a table, is a TableError with its place."""

import contextlib
import copy
import json
import tomllib

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.small_models import tiny_config
from vitconvert.errors import TableError, VitConvertError
from vitconvert.facts.project_config import facts_from_config, written_config
from vitconvert.programs.target import fit_target
from vitconvert.tables.dialects import builtin_tables, read_table
from vitconvert.toml_files import tables_dir

DATA = {
    name: tomllib.loads((tables_dir() / f"{name}.toml").read_text(encoding="utf-8"))
    for name in builtin_tables()
}
OTHERS = [-3, 0, 10**400, 0.5, float("nan"), True, False, "", "?", [], ["?"], [[1]], {}, {"a": [1]}]
CONFIG = tiny_config()


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


def places(value, path=()):
    """Every place where something stands."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))


ALL = [(name, path) for name, data in DATA.items() for path in places(data) if path]


@given(st.sampled_from(ALL), st.sampled_from(OTHERS))
@example(place=("openai_clip", ("constants", "input_resolution")), other=[])
@example(place=("hf_ast_bare", ("config", "norm_eps")), other=-3)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_value_of_another_type(tmp_path, place, other):
    name, path = place
    data = copy.deepcopy(DATA[name])
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = other
    file = tmp_path / f"mine_{name}.toml"
    text = "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in data.items())
    file.write_text(text, encoding="utf-8")
    try:
        table = read_table(file)
    except TableError as error:
        unread = "64 bits" in str(error)  # a number that no table can say
        assert "place" in error.evidence or unread or path == ("dialect", "extends")
        return
    # It may be right by chance; whatever is done with it ends well, or in an error of ours.
    for use in (fit, write):
        with contextlib.suppress(VitConvertError):
            use(table)


def fit(table):
    fit_target(table, CONFIG)


def write(table):
    facts_from_config(table, written_config(table, CONFIG))
