"""Laws of class maps, draws and member names."""

import string

from hypothesis import given, settings
from hypothesis import strategies as st

from senseapp.core.errors import InvalidDataset
from senseapp.core.texts import listed, printable
from senseapp.data.contents import safe_member_name
from senseapp.data.images import draw_order
from senseapp.tasks.classification.class_map import class_orders
from tests.cases import examples

NAMES = st.lists(
    st.one_of(st.integers(0, 30).map(str), st.text(string.ascii_letters + " _-,", min_size=1, max_size=6)),
    min_size=1,
    max_size=12,
    unique=True,
)


@given(folders=NAMES, classes=NAMES, num_classes=st.integers(1, 20))
@settings(max_examples=examples(100), deadline=None)
def test_a_proposal_gives_each_folder_one_class_that_exists_and_no_class_twice(folders, classes, num_classes):
    proposal, *_ = class_orders(folders, classes[:num_classes], num_classes)
    matched = dict(proposal.pairs)
    assert sorted([*matched, *proposal.unmatched]) == sorted(folders)
    assert all(0 <= index < num_classes for index in matched.values())
    assert len(set(matched.values())) == len(proposal.pairs)


@given(folders=NAMES, num_classes=st.integers(1, 20))
@settings(max_examples=examples(50), deadline=None)
def test_a_proposal_does_not_depend_on_the_order_of_folders(folders, num_classes):
    assert class_orders(folders, (), num_classes) == class_orders(folders[::-1], (), num_classes)


@given(count=st.integers(1, 200), seed=st.integers(0, 2**31), part=st.floats(0, 1))
@settings(max_examples=examples(50), deadline=None)
def test_a_draw_is_a_permutation_whose_beginning_does_not_depend_on_the_number_wanted(count, seed, part):
    order = draw_order(count, count, seed)
    assert sorted(order) == list(range(count))
    assert draw_order(count, max(1, int(part * count)), seed) == order


@given(name=st.text(st.sampled_from("ab./\\:\0C"), max_size=12))
@settings(max_examples=examples(150), deadline=None)
def test_a_safe_name_stays_inside(name):
    try:
        safe = safe_member_name(name, "a.zip")
    except InvalidDataset:
        return
    parts = safe.split("/")
    assert ".." not in parts
    assert "\\" not in safe
    assert not safe.startswith("/")
    assert parts[0] not in ("a:", "b:", "C:")


@given(names=st.lists(st.text(max_size=400), max_size=8))
@settings(max_examples=examples(100), deadline=None)
def test_names_in_sentences_are_short_and_printable(names):
    assert listed(names).isprintable()
    assert all(len(printable(name)) <= 80 for name in names)
