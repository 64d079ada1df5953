"""Which class a folder name means: proposals, confirmed mappings, refusals."""

import pytest
from timm.data.imagenet_info import ImageNetInfo

from senseapp.core.errors import InvalidDataset
from senseapp.tasks.classification.class_map import class_orders, resolve_class_map
from senseapp.tasks.labels import read_class_map

PETS = ("tabby, tabby cat", "golden retriever", "crane, bird", "crane, machine")
IMAGENET, LARGER = ImageNetInfo().label_names(), ImageNetInfo("imagenet-22k").label_names()
BY_NAME = "by the model's class names"
PROPOSED = {
    "indices": (["0", "7", "10"], (), 11, "by number", {"0": 0, "10": 10, "7": 7}),
    "leading zeros": (["000", "001", "010"], (), 11, "by number", {"000": 0, "001": 1, "010": 10}),
    "numbers that need no shift": (["1", "9"], (), 10, "by number", {"1": 1, "9": 9}),
    "two spellings of one number": (["1", "01"], (), 5, "", {}),
    "numbers beyond the classes": (["0", "99"], (), 10, "by number", {"0": 0}),
    "a word among numbers": (["0", "1", "2", "odd"], (), 9, "by number", {"0": 0, "1": 1, "2": 2}),
    "case and punctuation": (["Golden_Retriever", "TABBY"], PETS, 4, BY_NAME, {"Golden_Retriever": 1, "TABBY": 0}),
    "a synonym of two classes": (["crane", "tabby"], PETS, 4, BY_NAME, {"tabby": 0}),
    "a whole name": (["crane, machine"], PETS, 4, BY_NAME, {"crane, machine": 3}),
    "an unknown name": (["tabby", "unicorn"], PETS, 4, BY_NAME, {"tabby": 0}),
    "two names of one class": (["tabby", "tabby cat"], PETS, 4, "", {}),
    "names before order": (["b", "a", "c"], ("c", "b", "a"), 3, BY_NAME, {"a": 2, "b": 1, "c": 0}),
    "names that are numbers": (["3", "1"], tuple("0123456789"), 10, "by number", {"1": 1, "3": 3}),
    "ImageNet": ([IMAGENET[0], IMAGENET[999]], (), 1000, "by ImageNet id", {IMAGENET[0]: 0, IMAGENET[999]: 999}),
    "a larger ImageNet": ([LARGER[5]], (), len(LARGER), "by ImageNet id", {LARGER[5]: 5}),
    "ImageNet, other classes": (["n01440764", "n01443537"], (), 37, "", {}),
}


@pytest.mark.parametrize("case", PROPOSED)
def test_what_names_are_proposed_to_mean(case):
    names, known, num_classes, words, pairs = PROPOSED[case]
    proposal, *_ = class_orders(names, known, num_classes)
    assert (proposal.words, dict(proposal.pairs)) == (words, pairs)
    assert set(proposal.unmatched) == set(names) - set(pairs)


def test_numbers_from_one_are_shifted_only_when_they_must_be_and_say_so():
    names = [str(number) for number in range(1, 11)]
    proposal, *_ = class_orders(names, (), 10)
    assert dict(proposal.pairs) == {name: int(name) - 1 for name in names}
    assert "numbered from 1" in proposal.notes[0]


@pytest.mark.parametrize("confirmed", [[("b", 0), ("a", 3)], [("b", 1), ("a", 1)], [("a", 3)]])
def test_a_confirmed_mapping_is_taken_as_it_is(confirmed):
    (chosen,) = resolve_class_map(["a", "b"], (), 4, confirmed)
    assert dict(chosen.pairs) == dict(confirmed)
    told = ("1 class without a place in the mapping left out: b.",)
    assert chosen.notes == (told if len(confirmed) == 1 else ())


def test_any_names_in_alphabetical_order_when_their_number_is_right():
    proposal, *_ = class_orders(["zebra", "ant", "Bee"], (), 3)
    assert (proposal.words, dict(proposal.pairs)) == ("in alphabetical order", {"Bee": 0, "ant": 1, "zebra": 2})
    assert "alphabetical order" in proposal.notes[0]


def test_names_that_fit_nothing_are_refused_with_what_to_do():
    with pytest.raises(InvalidDataset) as caught:
        resolve_class_map(["unicorn", "tabby"], PETS, 4)
    message = str(caught.value)
    assert message.startswith("1 of 2 classes in the images match none of the model's 4: unicorn. Expected")
    assert message.endswith("Say which class each of them means (with --class-map FILE), or measure without labels.")


@pytest.mark.parametrize("index", [-1, 4])
def test_a_confirmed_class_must_exist(index):
    with pytest.raises(InvalidDataset, match=rf"from 0 to 3, got a → {index}"):
        resolve_class_map(["a"], (), 4, [("a", index)])


def test_a_confirmed_mapping_for_other_images():
    with pytest.raises(InvalidDataset, match="names x, and the images have a, b: no name is in both"):
        resolve_class_map(["a", "b"], (), 4, [("x", 1)])


def test_a_name_without_pictures_may_mean_nothing():
    names = ["0", "1", "notes"]
    assert dict(resolve_class_map(names, (), 9, empty={"notes"})[0].pairs) == {"0": 0, "1": 1}
    with pytest.raises(InvalidDataset, match="1 of 3 classes in the images match none of the model's 9: notes"):
        resolve_class_map(names, (), 9)


def test_an_image_set_keeps_its_own_order():
    names = ["zebra", "ant", "cow"]
    assert dict(class_orders(names, (), 3, own_order="in the set's own order")[0].pairs) == {
        "zebra": 0,
        "ant": 1,
        "cow": 2,
    }
    assert dict(class_orders(names, (), 3)[0].pairs) == {"ant": 0, "cow": 1, "zebra": 2}


def orders(names, num_classes, **options):
    return {
        each.words: dict(each.pairs) for each in class_orders(names, options.pop("known", ()), num_classes, **options)
    }


def test_numbers_may_be_sorted_as_text():
    names = [str(number) for number in range(12)]
    as_text = {name: index for index, name in enumerate(sorted(names))}
    found = orders(names, 12)
    assert list(found.values()) == [{name: int(name) for name in names}, as_text]
    assert list(found) == ["by number", "by number as text (1, 10, 2)"]
    padded = orders([f"{number:02d}" for number in range(12)], 12)
    assert padded["by number as text (1, 10, 2)"] == {f"{int(name):02d}": index for name, index in as_text.items()}
    part = orders(["3", "10", "11"], 12)
    assert part["by number as text (1, 10, 2)"] == {name: as_text[name] for name in ("3", "10", "11")}


def test_numbers_may_count_from_one():
    found = orders([str(number) for number in range(1, 12)], 12)
    assert found["by number"]["1"] == 1
    assert found["by number from 1"]["1"] == 0
    assert found["by number from 1 as text (1, 10, 2)"] == {
        name: sorted(str(number) for number in range(1, 13)).index(name) for name in found["by number"]
    }


def test_names_with_numbers_and_capitals_have_other_orders():
    names = ["Zebra", "ant", "dog 10", "dog 2"]
    assert list(orders(names, 4).values()) == [
        {name: index for index, name in enumerate(order)}
        for order in (sorted(names), ["ant", "dog 10", "dog 2", "Zebra"], ["Zebra", "ant", "dog 2", "dog 10"])
    ]


def test_two_classes_may_be_the_other_way_round():
    assert list(orders(["defect", "good"], 2).values()) == [{"defect": 0, "good": 1}, {"good": 0, "defect": 1}]
    assert len(orders(["bee", "ant"], 2, known=("ants and others, ant", "bee"))) == 1


def test_an_empty_folder_does_not_switch_matching_off():
    names, empty = ["a", "b", "c", "extra"], {"extra"}
    assert orders(names, 3, empty=empty) == {"in alphabetical order": {"a": 0, "b": 1, "c": 2}}
    assert orders(["a", "b", "c"], 3, empty={"b"})["in alphabetical order"] == {"a": 0, "b": 1, "c": 2}
    assert len(orders([*map(str, range(12)), "unsorted"], 12, empty={"unsorted"})) == 2


def test_composed_and_decomposed_names_are_the_same():
    assert dict(class_orders(["e\u0301te\u0301", "z"], ("z", "\xe9t\xe9"), 2)[0].pairs) == {
        "e\u0301te\u0301": 1,
        "z": 0,
    }
    (chosen,) = resolve_class_map(["e\u0301te\u0301"], (), 2, [("\xe9t\xe9", 1)])
    assert dict(chosen.pairs) == {"e\u0301te\u0301": 1}


CATS = {"cat": 0, "guinea pig": 1, "10": 2}


@pytest.mark.parametrize(
    "text",
    [
        "label,class\ncat,0\nguinea pig,1\n10,2\n",
        "class_index;folder\n0;cat\n1;guinea pig\n2;10\n",
        "sep=;\nName;Index\ncat;0\nguinea pig;1\n10;2\n",
        "cat\nguinea pig\n10\n",
        '{"cat": 0, "guinea pig": 1, "10": 2}',
        '["cat", "guinea pig", "10"]',
    ],
)
def test_a_class_map_is_a_table_a_list_or_json(text):
    assert dict(read_class_map(text.encode())) == CATS
    assert dict(read_class_map(text.encode("utf-16"))) == CATS


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0,0\n1,1\n10,2\n", "Which of its two columns is the class cannot be told"),
        ('{"0": "3", "1": "2"}', "whole numbers .from names., or all of them names"),
        ("7\n8\n", "names are all numbers"),
        ("label,class\ncat,0\ncat,1\n", "names cat more than once"),
        ("label,class\ncat,one\n", "must be a whole number from 0, got 'one'"),
        ("a,b,c\n1,2,3\n", "has 3 columns"),
        ("", "is empty"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_class_maps_that_can_be_read_in_two_ways_or_in_none_are_refused(text, reason):
    with pytest.raises(InvalidDataset, match=reason) as refused:
        read_class_map(text.encode())
    assert "\n" not in str(refused.value)
