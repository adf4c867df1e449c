"""Share groups' names in Dagster."""

import pytest

# Dagster's own rule for names, which it does not publish.
from dagster._core.definitions.utils import is_valid_name
from hypothesis import given
from hypothesis import strategies as st

from sharequeue.dagster.names import NameCollision, dagster_name, dagster_names


def test_readable() -> None:
    """A hyphenated group keeps its words."""
    assert dagster_name("flight-delays") == "flight_delays"


@given(st.text(min_size=1, max_size=30))
def test_always_valid_in_dagster(group_id: str) -> None:
    """Whatever Kafka accepts as a group id becomes a name that Dagster accepts."""
    assert is_valid_name(dagster_name(group_id))


@pytest.mark.parametrize("reserved", ["config", "class", "type", "None"])
def test_reserved_words(reserved: str) -> None:
    """A group called like a reserved word still has a valid name."""
    assert dagster_name(reserved) == f"{reserved}_"
    assert is_valid_name(dagster_name(reserved))


def test_empty_is_refused() -> None:
    """The empty group id, which Kafka refuses, has no name."""
    with pytest.raises(ValueError, match="must not be empty"):
        dagster_name("")


def test_collision_names_both_groups() -> None:
    """Two groups that meet at one name are refused with both names in the message."""
    with pytest.raises(NameCollision) as refused:
        dagster_names(["orders", "a-b", "a.b"])
    assert "'a-b'" in str(refused.value)
    assert "'a.b'" in str(refused.value)


def test_same_group_twice_is_no_collision() -> None:
    """Naming one group twice is harmless."""
    assert dagster_names(["a-b", "a-b"]) == {"a-b": "a_b"}
