"""The demo's digits, which ship with the app, against where they come from."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from senseapp.data.load import _digits


def test_the_digits_are_those_of_scikit_learn_and_the_split_has_each_class_in_proportion():
    source, shipped = load_digits(), _digits()
    train, _ = train_test_split(np.arange(1797), train_size=900, stratify=source.target, random_state=0)
    assert np.array_equal(shipped["images"], source.images)
    assert np.array_equal(shipped["labels"], source.target)
    assert np.array_equal(np.flatnonzero(shipped["train"]), np.sort(train))
