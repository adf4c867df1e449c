"""Share groups' names in Dagster."""

import pytest

# Dagster's own rule for names, which it does not publish.
from dagster._core.definitions.utils import is_valid_name
from hypothesis import given
from hypothesis import strategies as st

from sharequeue.dagster.names import dagster_name, is_dagster_name


def test_a_name_keeps_the_words_of_the_group() -> None:
    """A hyphenated group keeps its words."""
    assert dagster_name("flight-delays") == "flight_delays"


@given(st.text(min_size=1, max_size=30))
def test_every_group_id_becomes_a_valid_name(group_id: str) -> None:
    """Whatever Kafka accepts as a group id becomes a name that Dagster accepts."""
    assert is_valid_name(dagster_name(group_id))


@given(
    st.text(alphabet="aZ_0-é ", max_size=4) | st.sampled_from(["config", "class", "None", "match", "self"])
)
def test_a_name_that_is_given_is_valid_if_dagster_allows_it(name: str) -> None:
    assert is_dagster_name(name) == (bool(name) and is_valid_name(name))


@pytest.mark.parametrize("reserved", ["config", "class", "type", "None"])
def test_a_reserved_word_becomes_a_valid_name(reserved: str) -> None:
    """A group called like a reserved word still has a valid name."""
    assert dagster_name(reserved) == f"{reserved}_"
    assert is_valid_name(dagster_name(reserved))


def test_an_empty_group_id_is_refused() -> None:
    """The empty group id, which Kafka refuses, has no name."""
    with pytest.raises(ValueError, match="must not be empty"):
        dagster_name("")
