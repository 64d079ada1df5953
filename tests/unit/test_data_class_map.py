"""Which class a folder name means: proposals, confirmed mappings, refusals."""

import pytest
from timm.data.imagenet_info import ImageNetInfo

from senseapp.core.errors import InvalidDataset
from senseapp.tasks.classification.class_map import propose_class_map, resolve_class_map

PETS = ("tabby, tabby cat", "golden retriever", "crane, bird", "crane, machine")


def proposed(names, class_names=(), num_classes=10):
    proposal = propose_class_map(names, class_names, num_classes)
    return proposal.how, dict(proposal.pairs)


def test_indices():
    assert proposed(["0", "7", "10"], num_classes=11) == ("indices", {"0": 0, "10": 10, "7": 7})


def test_indices_with_leading_zeros():
    assert proposed(["000", "001", "010"], num_classes=11) == ("indices", {"000": 0, "001": 1, "010": 10})


def test_numbers_from_one_are_shifted_only_when_they_must_be_and_say_so():
    names = [str(number) for number in range(1, 11)]
    proposal = propose_class_map(names, (), 10)
    assert dict(proposal.pairs) == {name: int(name) - 1 for name in names}
    assert "numbered from 1" in proposal.notes[0]
    assert proposed(["1", "9"]) == ("indices", {"1": 1, "9": 9})


def test_two_spellings_of_one_number_are_no_indices():
    assert proposed(["1", "01"], num_classes=5) == ("nothing", {})


def test_numbers_beyond_the_classes_stay_unmatched():
    assert propose_class_map(["0", "99"], (), 10).unmatched == ("99",)


def test_class_names_whatever_their_case_and_punctuation():
    assert proposed(["Golden_Retriever", "TABBY"], PETS, 4) == ("class names", {"Golden_Retriever": 1, "TABBY": 0})


def test_a_synonym_of_two_classes_is_not_guessed():
    assert propose_class_map(["crane", "tabby"], PETS, 4).unmatched == ("crane",)
    assert proposed(["crane, machine"], PETS, 4) == ("class names", {"crane, machine": 3})


def test_class_names_that_are_numbers_are_indices():
    assert proposed(["3", "1"], tuple("0123456789")) == ("indices", {"1": 1, "3": 3})


def test_imagenet_ids():
    labels = ImageNetInfo().label_names()
    assert proposed([labels[999], labels[0]], num_classes=1000) == ("ImageNet ids", {labels[0]: 0, labels[999]: 999})


def test_imagenet_ids_of_a_larger_set():
    labels = ImageNetInfo("imagenet-22k").label_names()
    assert proposed([labels[5]], num_classes=len(labels)) == ("ImageNet ids", {labels[5]: 5})


def test_imagenet_ids_mean_nothing_to_a_model_with_other_classes():
    assert propose_class_map(["n01440764", "n01443537"], (), 37).unmatched == ("n01440764", "n01443537")


def test_any_names_in_alphabetical_order_when_their_number_is_right():
    proposal = propose_class_map(["zebra", "ant", "Bee"], (), 3)
    assert (proposal.how, dict(proposal.pairs)) == ("order", {"Bee": 0, "ant": 1, "zebra": 2})
    assert "alphabetical order" in proposal.notes[0]


def test_names_win_over_order():
    assert proposed(["b", "a", "c"], ("c", "b", "a"), 3) == ("class names", {"a": 2, "b": 1, "c": 0})


def test_a_proposal_tells_what_it_could_not_match():
    proposal = propose_class_map(["tabby", "unicorn"], PETS, 4)
    assert (dict(proposal.pairs), proposal.unmatched) == ({"tabby": 0}, ("unicorn",))


def test_what_is_proposed_never_gives_two_folders_one_class_by_name():
    assert propose_class_map(["tabby", "tabby cat"], PETS, 4).pairs == ()


def test_names_that_fit_nothing_are_refused_with_what_to_do():
    with pytest.raises(InvalidDataset) as caught:
        resolve_class_map(["unicorn", "tabby"], PETS, 4)
    message = str(caught.value)
    assert message.startswith("1 of 2 classes in the images match none of the model's 4: unicorn. Expected")
    assert message.endswith("Confirm which class each folder means, or measure without labels.")


def test_a_confirmed_mapping_is_taken_as_it_is():
    chosen = resolve_class_map(["a", "b"], (), 4, [("b", 0), ("a", 3)])
    assert dict(chosen.pairs) == {"a": 3, "b": 0}


def test_two_folders_may_be_confirmed_as_one_class():
    assert dict(resolve_class_map(["a", "b"], (), 4, [("b", 1), ("a", 1)]).pairs) == {"a": 1, "b": 1}


def test_folders_outside_of_a_confirmed_mapping_are_left_out_and_told():
    chosen = resolve_class_map(["a", "b"], (), 4, [("a", 3)])
    assert dict(chosen.pairs) == {"a": 3}
    assert chosen.notes == ("1 class without a place in the mapping left out: b.",)


@pytest.mark.parametrize("index", [-1, 4])
def test_a_confirmed_class_must_exist(index):
    with pytest.raises(InvalidDataset, match=rf"from 0 to 3, got a → {index}"):
        resolve_class_map(["a"], (), 4, [("a", index)])


def test_a_confirmed_mapping_for_other_images():
    with pytest.raises(InvalidDataset, match="names x, and the images have a, b: no name is in both"):
        resolve_class_map(["a", "b"], (), 4, [("x", 1)])


def test_a_word_among_numbers_is_left_unmatched():
    proposal = propose_class_map(["0", "1", "2", "odd"], (), 9)
    assert proposal.how == "indices"
    assert dict(proposal.pairs) == {"0": 0, "1": 1, "2": 2}
    assert proposal.unmatched == ("odd",)


def test_a_name_without_pictures_may_mean_nothing():
    names = ["0", "1", "notes"]
    assert dict(resolve_class_map(names, (), 9, empty={"notes"}).pairs) == {"0": 0, "1": 1}
    with pytest.raises(InvalidDataset, match="1 of 3 classes in the images match none of the model's 9: notes"):
        resolve_class_map(names, (), 9)


def test_an_image_set_keeps_its_own_order():
    names = ["zebra", "ant", "cow"]
    assert dict(propose_class_map(names, (), 3, own_order=True).pairs) == {"zebra": 0, "ant": 1, "cow": 2}
    assert dict(propose_class_map(names, (), 3).pairs) == {"ant": 0, "cow": 1, "zebra": 2}
