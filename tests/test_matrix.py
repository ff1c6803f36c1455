"""The table of conversions in weights_map/CONVERSIONS.md is what the conversions of today give."""

import pytest

import vitconvert
from tests.make_matrix import cells_of, columns, committed, head, row
from tests.matrix_sources import SOURCES
from tests.packages import is_here
from vitconvert.conversion import search
from vitconvert.errors import ParityFailed
from vitconvert.tables.dialects import builtin_tables, read_table
from vitconvert.toml_files import tables_dir

LINES = dict(zip(SOURCES, committed()[2:], strict=True))


def test_every_ecosystem_has_a_row_and_every_one_that_is_written_a_column():
    assert committed()[:2] == head()
    ecosystems = {table.ecosystem for table in builtin_tables().values()} - {"vit"}
    assert {name.split()[0] for name in SOURCES} == ecosystems


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # Keras of NumPy 2
@pytest.mark.usefixtures("keras_in_numpy")
@pytest.mark.parametrize("name", list(SOURCES)[::2])
def test_every_twentieth_cell_of_every_second_row_is_what_its_conversion_gives(name):
    first = list(SOURCES).index(name) // 2 % 20  # so that each column has some, too
    cells = LINES[name].lower().removesuffix(" |").split(" | ")[1:]
    opened_by = {"keras_hub": "keras_hub", "mlx_image": "mlxim", "equimo": "equimo"}
    absent = {column for column, package in opened_by.items() if not is_here(package)}
    chosen = [column for column in columns()[first::20] if column not in absent]
    wanted = dict(zip(columns(), cells, strict=True))
    # Whether bits agree, which capital letters say, is up to the machine too.
    found = [cell.lower() for cell in cells_of(name, chosen)]
    assert found == [wanted[column] for column in chosen], "run: python -m tests.make_matrix"


@pytest.mark.coverage
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.usefixtures("keras_in_numpy")
@pytest.mark.parametrize("name", list(SOURCES))
def test_a_row_is_what_its_conversions_give(name):
    assert row(name).lower() == LINES[name].lower(), "run: python -m tests.make_matrix"


def test_a_wrong_mapping_is_seen_by_the_project_that_opens_the_output(monkeypatch, tmp_path):
    right = (tables_dir() / "torchvision.toml").read_text(encoding="utf-8")
    swapped = right.replace("ln_1", "ln_0").replace("ln_2", "ln_1").replace("ln_0", "ln_2")
    (tmp_path / "torchvision.toml").write_text(swapped, encoding="utf-8")
    wrong = read_table(tmp_path / "torchvision.toml")
    monkeypatch.setattr(search, "find_tables", lambda name: [wrong])
    source = SOURCES["timm"].write(tmp_path / "source")
    with pytest.raises(ParityFailed, match=r"torchvision .* computes something else"):
        vitconvert.convert(source, to="torchvision", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()
