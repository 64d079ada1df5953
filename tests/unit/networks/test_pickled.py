"""Pickles read as data: the same values as ``pickle`` builds, nothing called, and an end to what is hostile."""

import io
import os
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.checkpoint import read_checkpoint
from senseapp.networks.checkpoints.pickled import Named, PickleReader, Record
from soak import hostile_files

PLAIN = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text() | some.binary(),
    lambda inner: some.lists(inner) | some.tuples(inner, inner) | some.dictionaries(some.text(), inner),
    max_leaves=20,
)


def read(content, **builders):
    reader = PickleReader(builders, lambda found: ("persistent", found))
    return reader.read(io.BytesIO(content)), reader


@given(PLAIN, some.integers(0, 5))
def test_plain_values_are_those_of_pickle(value, protocol):
    content = pickle.dumps(value, protocol=protocol)
    encode = {"_codecs.encode": lambda text, codec: text.encode(codec), "builtins.bytes": bytes}
    assert read(content, **encode)[0] == pickle.loads(content)


@given(PLAIN)
def test_shared_values_stay_shared(value):
    shared = [value]
    found, _ = read(pickle.dumps([shared, {"again": shared}]))
    assert found[0] is found[1]["again"]


def test_names_are_texts_and_nothing_is_called(tmp_path):
    canary = str(tmp_path / "canary")

    class Canary:
        def __reduce__(self):
            return os.mkdir, (canary,)

    value, reader = read(pickle.dumps({"a": Canary(), "b": len}))
    assert isinstance(value["a"], Record)
    assert (value["a"].name, value["a"].arguments) == ("posix.mkdir", (canary,))
    assert isinstance(value["b"], Named)
    assert value["b"].name == "builtins.len"
    assert reader.recorded == {"posix.mkdir"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02R.",
        b"\x80\x02K\x01h\x07.",
        b"\x80\x02(K\x01",
        b"\x80\x020.",
        b"\x80\x02\x97.",  # a buffer outside of the pickle
        b"\x80\x02\x82\x01.",  # a class by its number in the registry of this process
        b"\x80\x02]}b.",  # attributes of a list
        b"\x80\x02cbuiltins\nlen\n}X\x04\x00\x00\x00nameK\x01sb.",  # and of a class
        b"\x80\x02K\x01)R.",  # a call of a number
    ],
)
def test_a_pickle_that_is_not_whole_is_refused(content):
    with pytest.raises(ValueError, match=r".+"):
        read(content)


SOUND = ("many tensors", "marked checkpoint", "shared dicts with weights")  # which belong to no architecture
FAMILIES = [key for key in hostile_files.FAMILIES if key[1] == "checkpoint" and key[0] not in SOUND]


@pytest.mark.parametrize("family", FAMILIES, ids=[name for name, *_ in FAMILIES])
def test_hostile_files_end_soon(tmp_path, family):
    path = tmp_path / f"a{family[2]}"
    path.write_bytes(hostile_files.FAMILIES[family](1, random.Random(0)))
    with pytest.raises(InvalidCheckpoint, match=r"a\.(pth|safetensors)"):
        read_checkpoint(path)
