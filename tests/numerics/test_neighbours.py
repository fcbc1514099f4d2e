import pytest
import torch

from fedmcc.numerics import neighbours
from fedmcc.numerics.neighbours import nearest


@pytest.mark.parametrize("block", [1, 7, 100])
def test_neighbours_are_those_of_a_loop(monkeypatch, block):
    monkeypatch.setattr(neighbours, "MAX_ELEMENTS", block * 20)
    rows = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    indices, distances = nearest(rows, 4)
    for i, row in enumerate(rows):
        expected = sorted((float((row - other).square().sum()), j) for j, other in enumerate(rows) if j != i)
        assert indices[i].tolist() == [j for _, j in expected[:4]]
        assert distances[i].tolist() == pytest.approx([distance for distance, _ in expected[:4]], abs=1e-9)


def test_a_row_is_not_its_own_neighbour_and_ties_go_by_index():
    assert nearest(torch.zeros(4, 2), 2)[0].tolist() == [[1, 2], [0, 2], [0, 1], [0, 1]]


@pytest.mark.parametrize("count", [1, 5, 29, 30])
def test_of_many_equal_distances_the_lowest_indices_are_found_in_order(count):
    rows = torch.randint(0, 3, (31, 2), generator=torch.Generator().manual_seed(0)).float()  # exact distances
    indices, distances = nearest(rows, count)
    for i, row in enumerate(rows):
        expected = sorted((float((row - other).square().sum()), j) for j, other in enumerate(rows) if j != i)
        assert indices[i].tolist() == [j for _, j in expected[:count]]
        assert distances[i].tolist() == [distance for distance, _ in expected[:count]]


def test_a_single_row_has_no_neighbours_and_rows_that_are_not_numbers_come_last():
    assert nearest(torch.zeros(1, 2), 3)[0].shape == nearest(torch.zeros(1, 2), 0)[1].shape == (1, 0)
    assert nearest(torch.zeros(5, 2), 0)[0].shape == (5, 0)
    rows = torch.tensor([[0.0], [float("nan")], [2.0], [1.0]])
    assert nearest(rows, 2)[0][[0, 2, 3]].tolist() == [[3, 2], [3, 0], [0, 2]]


def test_there_are_at_most_all_other_rows():
    assert nearest(torch.randn(3, 2), 9)[0].shape == (3, 2)
