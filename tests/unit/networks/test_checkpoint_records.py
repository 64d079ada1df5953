"""Checkpoints of training programs: weights beside records of every kind are read, and the records are left alone."""

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import logging
import pathlib
import random
import re
import sys
import types
import uuid

import numpy as np
import pandas as pd
import pytest
import torch
import torchvision
from torch import nn

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.architectures import architecture_named
from senseapp.networks.checkpoints.checkpoint import read_checkpoint
from senseapp.networks.checkpoints.stored_networks import find_networks
from tests.checkpoints import MODEL, Canary, network

__all__ = ["network"]


class Split(enum.Enum):
    TRAIN = 1


class Kept(collections.OrderedDict):
    """A kind of OrderedDict, as detectron2 and others have them."""


class AttributeDict(dict):
    """What Lightning keeps hyperparameters in."""


class Averaged:
    """What YOLO's and timm's helpers keep averaged weights in."""

    def __init__(self, module):
        self.module = module
        self.updates = 7


@dataclasses.dataclass
class Settings:
    lr: float = 0.1
    classes: tuple = ("a", "b")


Point = collections.namedtuple("Point", "x y")


def assert_same(path, network):
    """The weights in the file are those of ``network``, wherever they are in it; returns what was read."""
    checkpoint = read_checkpoint(path)
    (found,) = find_networks(checkpoint, architecture_named("timm", MODEL))
    assert found.fits
    for name, tensor in network.state_dict().items():
        assert torch.equal(found.tensors[name], tensor), name
    return checkpoint


@pytest.fixture
def foreign():
    """Make classes of packages that this machine lacks; they are gone when the file is read."""
    before = set(sys.modules)

    def make(module, name, base=object):
        for end in range(1, module.count(".") + 2):
            part = ".".join(module.split(".")[:end])
            sys.modules.setdefault(part, types.ModuleType(part))
        made = type(name, (base,), {"__module__": module, "__qualname__": name})
        setattr(sys.modules[module], name, made)
        return made

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def history(foreign):
    made = foreign("mmengine.logging.history_buffer", "HistoryBuffer")()
    made._log_history, made._count_history = np.arange(3.0), np.ones(3, dtype=np.int64)
    return {"message_hub": {"log_scalars": {"loss": made}}}


def omega_config(foreign):
    kind, node = foreign("omegaconf.dictconfig", "DictConfig"), foreign("omegaconf.nodes", "AnyNode")
    made, inner = kind(), node()
    inner._val, inner._parent = 0.1, made
    made._content, made._parent = {"lr": inner, "model": {"name": "resnet"}}, None
    for place in range(40):  # each knows the whole
        made._content[f"setting {place}"] = node()
        made._content[f"setting {place}"]._parent = made
    return {"cfg": made}


def config_node(foreign):
    made = foreign("yacs.config", "CfgNode", dict)(lr=0.1)
    made.__dict__["__immutable__"] = True
    return {"cfg": made}


def scheduler(_):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    return {"lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "optimizer": optimizer}


def random_states(_):
    return {"numpy": np.random.get_state(), "python": random.getstate(), "torch": torch.get_rng_state()}


def default_dict(_):
    found = collections.defaultdict(list)
    found["loss"].append(0.5)
    return {"meters": found}


RECORDS = {
    "history buffer": history,
    "omegaconf": omega_config,
    "yacs": config_node,
    "lightning": lambda _: {"hyper_parameters": AttributeDict(lr=0.1), "callbacks": {"a": {"best": torch.tensor(1.0)}}},
    "arrays": lambda _: {"confusion": np.eye(3), "names": np.array(["a", "b"]), "any": np.array([{}, None])},
    "array scalars": lambda _: {"best": np.float64(0.9), "done": np.bool_(True), "day": np.datetime64("2026-01-01")},
    "structured array": lambda _: {"log": np.zeros(2, dtype=[("a", "i4"), ("b", "f4")])},
    "random states": random_states,
    "defaultdict": default_dict,
    "counter": lambda _: {"classes": collections.Counter(a=2)},
    "kind of OrderedDict": lambda _: {"meta": Kept(a=1)},
    "dates": lambda _: {"at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "took": datetime.timedelta(1)},
    "enum": lambda _: {"split": Split.TRAIN, "by": {Split.TRAIN: 3}},
    "namespaces": lambda _: {"args": types.SimpleNamespace(lr=0.1), "more": argparse.Namespace(a=[1])},
    "partial": lambda _: {"act": functools.partial(nn.GELU, approximate="tanh")},
    "criterion": lambda _: {"criterion": nn.CrossEntropyLoss(weight=torch.ones(5))},
    "transforms": lambda _: {"transform": torchvision.transforms.Compose([torchvision.transforms.ToTensor()])},
    "scheduler and optimizer": scheduler,
    "dataclass": lambda _: {"settings": Settings()},
    "namedtuple": lambda _: {"at": Point(1, 2)},
    "values": lambda _: {"id": uuid.UUID(int=3), "eps": decimal.Decimal("0.1"), "z": 1j, "raw": b"\xff", "r": range(3)},
    "sets": lambda _: {"frozen": {"a", "b"}, "more": frozenset({1})},
    "classes and functions": lambda _: {
        "kind": nn.Linear,
        "call": len,
        "dtype": torch.float16,
        "size": torch.Size([2]),
    },
    "paths and patterns": lambda _: {"out": pathlib.PurePosixPath("runs"), "skip": re.compile("bn.*")},
    "logger": lambda _: {"log": logging.getLogger("training")},
    "table": lambda _: {"history": pd.DataFrame({"loss": [0.5, 0.4]})},
}


@pytest.mark.parametrize("name", RECORDS)
def test_weights_beside_records_are_read(tmp_path, network, foreign, name):
    torch.save({"epoch": 3, "state_dict": network.state_dict(), **RECORDS[name](foreign)}, tmp_path / "a.pth")
    for module in [module for module in sys.modules if module.split(".")[0] in ("mmengine", "omegaconf", "yacs")]:
        del sys.modules[module]
    assert_same(tmp_path / "a.pth", network)
    assert not {"mmengine", "omegaconf", "yacs"} & set(sys.modules)


def test_what_was_left_out_is_said_and_plain_values_are_not(tmp_path, network, foreign):
    records = {"epoch": 3, "best": np.float32(1), "d": collections.OrderedDict(a=1), "s": {1}, "t": torch.Size([2])}
    torch.save({"state_dict": network.state_dict(), **records}, tmp_path / "a.pth")
    assert read_checkpoint(tmp_path / "a.pth").notes == ()
    torch.save({"state_dict": network.state_dict(), **history(foreign)}, tmp_path / "a.pth")
    (note,) = read_checkpoint(tmp_path / "a.pth").notes
    assert note.startswith("Left out, unread: objects of mmengine.logging.history_buffer.HistoryBuffer, numpy.core")
    assert note.endswith("No code from the file was run.")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
def test_every_protocol_of_pickle_is_read_in_both_of_torchs_forms(tmp_path, network, protocol, zipped):
    payload = {"state_dict": network.state_dict(), "args": argparse.Namespace(lr=0.1)}
    path = tmp_path / "a.pth"
    torch.save(payload, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    assert_same(path, network)


WRITTEN: dict = {
    "parameters": lambda path, net: torch.save(net.state_dict(keep_vars=True), path),
    "a whole network": lambda path, net: torch.save(net, path),
    "a whole network, averaged": lambda path, net: torch.save({"epoch": 1, "ema": Averaged(net)}, path),
    "an object's attribute": lambda path, net: torch.save(types.SimpleNamespace(weights=net.state_dict()), path),
    "a kind of OrderedDict": lambda path, net: torch.save(Kept(net.state_dict()), path),
    "a defaultdict": lambda path, net: torch.save(collections.defaultdict(int, net.state_dict()), path),
    "five dicts deep": lambda path, net: torch.save({"a": {"b": {"c": {"d": {"e": net.state_dict()}}}}}, path),
    "in a list": lambda path, net: torch.save([{"epoch": 1}, net.state_dict()], path),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_weights_are_found_wherever_they_are_kept(tmp_path, network, how):
    WRITTEN[how](tmp_path / "a.pth", network)
    assert_same(tmp_path / "a.pth", network)


def test_arrays_in_place_of_tensors_are_refused(tmp_path, network):
    torch.save({name: tensor.numpy() for name, tensor in network.state_dict().items()}, tmp_path / "a.pth")
    with pytest.raises(InvalidCheckpoint, match=r"objects of numpy\.core.*torch\.save\(model\.state_dict"):
        read_checkpoint(tmp_path / "a.pth")


@pytest.mark.parametrize("zipped", [True, False])
def test_weights_beside_code_are_read_and_the_code_is_not_run(tmp_path, network, zipped):
    canary = tmp_path / "canary"
    payload = {"hook": Canary(canary), "state_dict": network.state_dict(), "args": Canary(canary)}
    torch.save(payload, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    read = assert_same(tmp_path / "a.pth", network)
    assert not canary.exists()
    assert any("Left out, unread: objects of posix.system" in note for note in read.notes)


def test_a_module_of_the_file_is_not_imported(tmp_path, network, monkeypatch):
    (tmp_path / "trap_module.py").write_text("import pathlib\npathlib.Path(__file__).with_name('canary').touch()\n")
    trap = types.ModuleType("trap_module")
    trap.Kind = type("Kind", (), {"__module__": "trap_module", "__qualname__": "Kind"})
    monkeypatch.setitem(sys.modules, "trap_module", trap)
    torch.save({"state_dict": network.state_dict(), "cfg": trap.Kind()}, tmp_path / "a.pth")
    monkeypatch.delitem(sys.modules, "trap_module")
    monkeypatch.syspath_prepend(tmp_path)
    assert_same(tmp_path / "a.pth", network)
    assert not (tmp_path / "canary").exists()
    assert "trap_module" not in sys.modules
