"""Tables with several labels of one picture: the truths, or a refusal that says why.

The reference is the list of true labels that each text is made from; nothing here parses a table.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from senseapp.core.errors import InvalidDataset, InvalidSpec, SeveralLabelsError
from senseapp.data.arrangement import arrange
from senseapp.data.load import load_images
from senseapp.data.pictures import survey_images
from senseapp.measure.preparation_search import choose_preparation
from senseapp.measure.session import Session
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.tasks import CLASSIFICATION, MULTILABEL
from tests.pictures import COLOUR, png
from tests.unit.data.test_arrangement import ListedFiles

LABELS = ("cat", "dog", "bird")
TRUE = {f"{n}.png": tuple(name for place, name in enumerate(LABELS) if n >> place & 1) for n in range(8)}


def columns(mark: str = ",", on: str = "1", off: str = "0", header: str = "file") -> str:
    rows = [mark.join([file, *(on if name in true else off for name in LABELS)]) for file, true in TRUE.items()]
    return "\n".join([mark.join([header, *LABELS]), *rows])


def lists(between: str, *, quote: str = "", header: str = "file,tags", form: str = "{}") -> str:
    rows = [f"{file},{quote}{form.format(between.join(true))}{quote}" for file, true in TRUE.items()]
    return "\n".join([header, *rows])


def truths_of(text: str, *, several: bool = True) -> dict[str, tuple[str, ...]]:
    found = arrange(ListedFiles(*TRUE, labels=text), several=several)
    return {entry.name: truth.true for entry, truth in zip(found.entries, found.several, strict=True)}


READ = {
    "columns": columns(),
    "columns of floats": columns(on="1.0", off="0.0"),
    "columns of words": columns(on="True", off="False"),
    "columns with blanks for no": columns(off=""),
    "semicolons": columns(";"),
    "tabs": columns("\t", header="image"),
    "bars": lists("|"),
    "bars and spaces": lists(" | "),
    "semicolons in a cell": lists(";", quote='"'),
    "commas in quotes": lists(",", quote='"'),
    "commas and spaces in quotes": lists(", ", quote='"'),
    "spaces": lists(" "),
    "a list of Python": "\n".join(["file,labels", *(f'{file},"{list(true)}"' for file, true in TRUE.items())]),
    "a list of JSON": "\n".join(
        ["file;labels", *(f"{file};{json.dumps(list(true))}".replace('"', "'") for file, true in TRUE.items())]
    ),
}


@pytest.mark.parametrize("form", READ)
def test_forms_of_several_labels_are_read(form: str) -> None:
    found = truths_of(READ[form])
    assert {file: set(true) for file, true in found.items()} == {file: set(true) for file, true in TRUE.items()}


def test_lines_that_name_a_picture_again_add_to_its_labels() -> None:
    found = truths_of("\n".join(["file,label", *[f"{file},{name}" for file, true in TRUE.items() for name in true]]))
    assert {file: set(true) for file, true in found.items()} == {file: set(true) for file, true in TRUE.items() if true}


def test_blank_and_uncertain_cells_beside_zeros_are_unknown() -> None:
    text = "file,cat,dog,bird\n0.png,1,,0\n1.png,-1,0,1\n2.png,0,1,u\n"
    found = arrange(ListedFiles(*TRUE, labels=text), several=True).several
    assert [truth.unknown for truth in found] == [("dog",), ("cat",), ("bird",)]
    assert [truth.true for truth in found] == [("cat",), ("bird",), ("dog",)]


def test_columns_of_other_values_are_named() -> None:
    text = columns().replace("file,", "file,age,", 1).replace(".png,", ".png,17,")
    found = arrange(ListedFiles(*TRUE, labels=text), several=True)
    assert any("not read: age" in note for note in found.notes)
    assert found.label_names == LABELS


@pytest.mark.parametrize("form", ["columns", "columns with blanks for no", "bars", "semicolons in a cell"])
def test_what_can_only_be_several_labels_says_so_by_itself(form: str) -> None:
    assert truths_of(READ[form], several=False) == truths_of(READ[form])


SINGLE = {
    "a label with bars": [f"{n}.png,n{n % 4}|kind {n % 4}" for n in range(8)],
    "a label with commas": [f'{n}.png,"tench {n % 4}, fish {n % 4}"' for n in range(8)],
    "one-hot columns": [f"{n}.png,{int(n % 2)},{int(not n % 2)}" for n in range(8)],
    "a label beside marks": [f"{n}.png,kind {n % 4},1,1" for n in range(8)],
}


@pytest.mark.parametrize("form", SINGLE)
def test_one_label_of_each_picture_stays_one(form: str) -> None:
    header = {2: "file,label", 3: "file,cat,dog", 4: "file,label,dark,blurred"}[SINGLE[form][0].count(",") + 1]
    header = "file,label" if '"' in SINGLE[form][0] else header
    found = arrange(ListedFiles(*TRUE, labels="\n".join([header, *SINGLE[form]])))
    assert not found.several
    assert len(found.labels) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,cat,dog\n0.png,1,0\n0.png,0,1\n1.png,1,1", "says two things of 0.png"),
        ("file,age,weight\n0.png,17,3.5\n1.png,18,4.5", "no column of 0 and 1"),
        ("file,tags\n0.png,\n1.png,", "nothing"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidDataset, match=message):
        arrange(ListedFiles(*TRUE, labels=text), several=True)


@pytest.fixture
def folder(tmp_path: Path) -> DataSpec:
    for number, file in enumerate(TRUE):
        (tmp_path / file).write_bytes(png(number))
    (tmp_path / "labels.csv").write_text(columns())
    return DataSpec(kind="folder", path=str(tmp_path))


def test_the_survey_says_which_task_the_labels_call_for(folder: DataSpec) -> None:
    survey = survey_images(folder, num_classes=3, task=CLASSIFICATION)
    assert survey.task == "multilabel"
    assert survey.notes[-1].startswith("Several labels are true of some images")
    assert dict(survey.label_counts) == {name: sum(name in true for true in TRUE.values()) for name in LABELS}
    assert survey.proposal is not None
    assert survey.proposal.pairs == (("cat", 0), ("dog", 1), ("bird", 2))


def test_loaded_truths_are_those_of_the_pictures(folder: DataSpec) -> None:
    images = load_images(folder, COLOUR, num_classes=3, task=MULTILABEL, num_samples=5)
    assert images.labels is not None
    for name, row in zip(images.names, images.labels, strict=True):
        assert row.tolist() == [float(label in TRUE[name]) for label in LABELS]
    with pytest.raises(SeveralLabelsError, match="--task multilabel"):
        load_images(folder, COLOUR, num_classes=3, task=CLASSIFICATION)


def test_what_the_library_says_is_kept(folder: DataSpec) -> None:
    model = ModelSpec(library="timm", name="test_resnet", num_classes=3, task="multilabel")
    chosen = choose_preparation(RunSpec(model=model, data=replace(folder, preparation="auto"))).spec.data
    assert chosen.preparation == "given"
    assert (chosen.mean, chosen.std) == ((), ())


def test_a_run_takes_the_task_that_the_labels_call_for_and_says_so(folder: DataSpec) -> None:
    spec = RunSpec(
        model=ModelSpec(library="timm", name="test_resnet", num_classes=3),
        data=folder,
        sensitivity=SensitivitySpec(levels=(0.5,), metric="kl", mode="quick", device="cpu"),
    )
    session = Session.open(spec)
    assert session.spec.model.task == "multilabel"
    assert any("taken to be multi-label" in note for note in session.notes)
    assert any("is of one class per image" in note for note in session.notes)
    assert any("logit of a label of its own" in note for note in session.notes)
    logits = session.model.module(session.images.batch(0, 8)).double()
    own = torch.tensor([[float(label in TRUE[name]) for label in LABELS] for name in session.images.names])
    list(session.estimates())
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, own.double())
    assert session.baseline["bce"] == pytest.approx(float(expected), rel=1e-5)
    asked = replace(spec, data=replace(folder, labels="none"))
    with pytest.raises(InvalidSpec, match="it needs a model of the task multilabel"):
        Session.open(replace(asked, sensitivity=replace(spec.sensitivity, metric="bernoulli_kl")))
