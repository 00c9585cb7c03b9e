"""Folds: every row is held out once, and groups and blocks stay together."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gpflow_cool.table.folds import blocks_of, check_trainable, split_groups


def check_partition(parts, num_rows):
    assert_array_equal(np.sort(np.concatenate([test for _, test in parts])), np.arange(num_rows))
    for train, test in parts:
        assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(num_rows))


@pytest.mark.parametrize("seed", range(3))
def test_no_group_is_on_both_sides(seed):
    rng = np.random.default_rng(seed)
    groups = rng.choice(list("abcdefghij"), 60)
    parts = split_groups(groups, 4, seed)
    check_partition(parts, 60)
    for train, test in parts:
        assert not set(groups[train]) & set(groups[test])
    sizes = [len(test) for _, test in parts]
    assert max(sizes) - min(sizes) <= np.max(np.unique(groups, return_counts=True)[1])


@pytest.mark.parametrize("count", [2, 3, 5])
def test_no_block_is_on_both_sides(count):
    places = np.random.default_rng(1).uniform(-3, 8, [80, 2])
    blocks = np.array(blocks_of(places, count))
    assert len(set(blocks)) <= count**2
    low, high = places.min(axis=0), places.max(axis=0)
    by_hand = np.floor((places - low) / (high - low) * count * (1 - 1e-12)).astype(int)
    assert_array_equal(blocks, [f"{i},{j}" for i, j in by_hand])
    parts = split_groups(blocks, 3, seed=0)
    check_partition(parts, 80)
    for train, test in parts:
        assert not set(blocks[train]) & set(blocks[test])


def test_other_seeds_give_other_folds():
    groups = np.repeat(list("abcdefgh"), 5)
    held = {tuple(split_groups(groups, 4, seed)[0][1]) for seed in range(5)}
    assert len(held) > 1


def test_a_column_that_never_changes_is_one_part():
    assert blocks_of(np.array([[1.0, 0.0], [1.0, 4.0]]), 2) == ["0,0", "0,1"]


def test_too_few_groups_or_rows_are_refused():
    with pytest.raises(ValueError, match="There are 2 groups, but 3 folds: use fewer folds"):
        split_groups(["a", "b", "a"], 3, 0)
    parts = split_groups(["a", "a", "a", "b"], 2, 0)
    with pytest.raises(ValueError, match="One of 2 folds leaves 1 rows to train on: use smaller"):
        check_trainable(np.ones([4, 1]), ["y"], parts)
