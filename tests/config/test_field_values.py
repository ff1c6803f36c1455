"""A field that does not exist: the nearest are named, all of them only where none is near."""

import pytest

from vitconvert.config import field_names
from vitconvert.config.field_values import parse_field
from vitconvert.errors import UsageError


def test_the_nearest_fields_come_alone():
    with pytest.raises(UsageError) as error:
        parse_field("numheads", 3)
    assert str(error.value) == (
        "error: usage\n"
        "  'numheads' is not a field of ViTConfig.\n"
        "  hint: did you mean 'num_heads' or 'kv_heads'?"
    )


def test_every_field_is_listed_where_none_is_near():
    with pytest.raises(UsageError) as error:
        parse_field("xyz", 3)
    assert error.value.evidence == {"fields": ", ".join(field_names())}
    assert error.value.hint is None
