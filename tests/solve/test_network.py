"""Cost networks: variables, shared tables, and tables of conversion costs."""

from __future__ import annotations

import numpy as np
import pytest

from relayout.solve.network import FORBIDDEN, Network, Tables, allowed, direct, priced, vector

CONVERSION = ((0, 3, None), (5, 0, 1), (2, 4, 0))


def test_tables_over_the_same_variables_are_added() -> None:
    network = Network([])
    x, y = network.variable(vector([0, 1])), network.variable(vector([2, 0]))
    table = vector([[1, 2], [FORBIDDEN, 4]])
    for _ in range(2):
        network.add((x, y), table)
    assert network.tables[x, y].tolist() == [[2, 4], [FORBIDDEN, 8]]
    network.add((x,), vector([FORBIDDEN, 5]))
    assert network.unary[x].tolist() == [FORBIDDEN, 6]
    assert network.neighbours == [{y}, {x}]
    assert [list(scopes) for scopes in network.incident] == [[(x, y)], [(x, y)]]


def test_a_copy_is_changed_on_its_own() -> None:
    network = Network([])
    x, y = network.variable(vector([0, 1])), network.variable(vector([0, 1]))
    copied = network.copy()
    copied.add((x, y), vector([[1, 1], [1, 1]]))
    copied.add((x,), vector([1, 1]))
    assert (network.tables, network.unary[x].tolist(), network.neighbours) == ({}, [0, 1], [set(), set()])


def test_tables_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        vector([1, 2])[0] = 3


def test_equal_tables_are_one_array_and_no_more_than_the_given_bytes_are_kept() -> None:
    tables = Tables(2 * vector((0, 0)).nbytes)
    first, other = tables.get(vector, (0, 0)), tables.get(vector, (0, 1))
    assert tables.get(vector, (0, 0)) is first
    assert tables.get(vector, (0, 1)) is other
    third = tables.get(vector, (1, 1))
    assert tables.get(vector, (1, 1)) is third
    assert tables.get(vector, (0, 0)) is not first
    assert tables.get(vector, (0, 0)).tolist() == [0, 0]


def test_tables_with_and_without_copies_that_are_reused_are_two() -> None:
    tables, sets = Tables(), (0b110,)
    made = [
        tables.get(priced, CONVERSION, (0,), (0, 1, 2), sets, reuses_copies=each).tolist() for each in (False, True)
    ]
    assert made == [[[FORBIDDEN]], [[4]]]


def test_a_format_is_paid_once_for_all_consumers() -> None:
    producer = (0, 1), None
    first, second = (None, (0b010, 0b100)), (None, (0b010,))
    costs = direct(CONVERSION, 0, (producer, first, second))
    assert costs[:, :, 0].tolist() == [[3, FORBIDDEN], [0, 1]]
    assert direct(CONVERSION, 2, (first, second)).tolist() == [[4], [4]]


def test_sets_of_formats_cost_the_sum_of_their_conversions() -> None:
    costs = priced(CONVERSION, (0, 1), (0, 2), (0b00, 0b01, 0b11))
    assert costs.tolist() == [[0, 0, FORBIDDEN], [0, 5, 6]]


def test_a_set_allows_the_states_whose_formats_it_contains() -> None:
    sets = (0b01, 0b11)
    np.testing.assert_array_equal(allowed((0b01, 0b10), 0b11, sets), [[0, 0], [FORBIDDEN, 0]])
    np.testing.assert_array_equal(allowed((0b10,), 0b01, sets), [[0, 0]])
