"""The Analyze page with somebody's own files: proposals to confirm, and refusals that leave nothing behind."""

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.core.errors import NotFound, ReadingStopped
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.backend import Backend
from senseapp.server.process.requester import WorkerRequest
from senseapp.server.service import Service
from tests.cases import first_of
from tests.pages.conftest import open_page, selects, started, texts, wait_for_card
from tests.pictures import class_files, png

CLASSES = tuple("0123456789")


def checkpoint(num_classes: int = 4, **extra: object) -> bytes:
    import timm
    import torch

    network = timm.create_model("resnet10t", num_classes=num_classes)
    file = io.BytesIO()
    torch.save({"state_dict": {f"module.{name}": value for name, value in network.state_dict().items()}, **extra}, file)
    return file.getvalue()


def archive(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return file.getvalue()


def upload_checkpoint(app: AppTest, name: str, content: bytes) -> AppTest:
    app.button_group(key="analyze.model.source").set_value("Your weights (.pt, .safetensors)").run()
    app.file_uploader[0].upload(name, content).run()
    return wait_for_card(app)


def upload_images(app: AppTest, name: str, content: bytes, *, page: str = "analyze") -> AppTest:
    app.button_group(key=f"{page}.data.source").set_value("Upload images").run()
    app.file_uploader[0].upload(name, content).run()
    return wait_for_card(app)


def kept_files(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "uploads").rglob("*") if path.is_file())


def test_an_unknown_checkpoint_is_recognised_and_confirmed(analyze: AppTest, service: Service, tmp_path: Path) -> None:
    upload_checkpoint(analyze, "../../my net.pth", checkpoint())
    assert not analyze.exception
    assert kept_files(tmp_path / "home") == ["my net.pth"]
    picker = selects(analyze)[0]
    assert picker.value == "timm/resnet10t"
    assert picker.options[0] == "timm/resnet10t · every name and shape fits"
    assert "Recognised as timm/resnet10t" in texts(analyze)
    for part in (
        "4 classes (the head is built for them; resnet10t comes with 1,000)",
        "3 channels",
        "`state_dict.module`",
    ):
        assert part in texts(analyze)
    analyze.button_group(key="analyze.data.source").set_value("None").run()
    analyze.button(key="analyze.run").click().run()
    model = started(service).model
    assert (model.title, Path(model.checkpoint).name) == ("timm/resnet10t", "my net.pth")


def test_another_architecture_shows_what_differs(analyze: AppTest) -> None:
    upload_checkpoint(analyze, "net.pth", checkpoint())
    selects(analyze)[0].set_value("timm/resnet18d").run()
    wait_for_card(analyze)
    assert "do not fit timm/resnet18d" in analyze.error[0].value
    assert {"missing"} <= set(analyze.dataframe[0].value["Difference"])
    assert analyze.button(key="analyze.run").disabled
    selects(analyze)[0].set_value("timm/resnet10t").run()
    wait_for_card(analyze)
    assert not analyze.error


def test_averaged_weights_are_a_choice(analyze: AppTest, service: Service) -> None:
    import timm

    averaged = timm.create_model("resnet10t", num_classes=4).state_dict()
    upload_checkpoint(analyze, "net.pth", checkpoint(state_dict_ema=averaged))
    network = next(box for box in analyze.selectbox if box.label == "Network in the file")
    assert network.options == ["state_dict.module", "state_dict_ema"]
    network.set_value("state_dict_ema").run()
    wait_for_card(analyze)
    analyze.button_group(key="analyze.data.source").set_value("None").run()
    analyze.button(key="analyze.run").click().run()
    assert started(service).model.network == "state_dict_ema"


def test_a_bad_checkpoint_is_said_beside_its_field_and_is_gone(analyze: AppTest, tmp_path: Path) -> None:
    upload_checkpoint(analyze, "notes.pth", b"these are not weights, they are words\n" * 40)
    assert ["is a text file, not weights" in error.value for error in analyze.error] == [True]
    assert kept_files(tmp_path / "home") == []
    assert analyze.button(key="analyze.run").disabled
    assert analyze.file_uploader


def test_class_folders_are_matched_and_previewed(analyze: AppTest, service: Service) -> None:
    upload_images(analyze, "digits.zip", archive(class_files(CLASSES, each=2)))
    assert not analyze.exception
    assert "20 images · 10 classes · from class folders" in texts(analyze)
    assert "10 of 10 labels found in the model, by number" in analyze.expander[0].label
    assert "the model gets 98.4 % of 256 images right" in texts(analyze)
    analyze.button(key="analyze.run").click().run()
    assert started(service).data.class_map == ()
    assert started(service).data.kind == "archive"
    session, turned = analyze.session_state["senseapp.session"], tuple((name, 9 - int(name)) for name in CLASSES)
    for by, kept in (("person", turned), ("labels", ())):  # what images chose, they choose again
        data = replace(started(service).data, class_map=turned, evidence=(("classes", by),))
        session.draft = replace(session.draft, data=data)
        wait_for_card(open_page(analyze, "pages/analyze.py")).button(key="analyze.run").click().run()
        assert started(service).data.class_map == kept


def test_a_folder_without_a_class_is_left_out_only_with_a_word(analyze: AppTest, service: Service) -> None:
    upload_images(analyze, "digits.zip", archive(class_files(("0", "1", "7", "cat"), each=2)))
    assert [warning.value for warning in analyze.warning] == ["Left out, as no class is given for them: cat."]
    analyze.button(key="analyze.run").click().run()
    assert started(service).data.class_map == (("0", 0), ("1", 1), ("7", 7))


def without_head() -> bytes:
    import timm
    import torch

    weights = timm.create_model("resnet10t").state_dict()
    file = io.BytesIO()
    torch.save({name: value for name, value in weights.items() if not name.startswith("fc.")}, file)
    return file.getvalue()


def test_a_checkpoint_without_classifier_is_measured_only_when_that_is_wanted(analyze: AppTest, service) -> None:
    upload_checkpoint(analyze, "features.pth", without_head())
    assert selects(analyze)[0].options[0] == "timm/resnet10t · all fits, the classifier is missing"
    assert "those of timm/resnet10t without its classifier" in analyze.warning[0].value
    assert analyze.button(key="analyze.run").disabled
    analyze.toggle(key="analyze.model.head.timm/resnet10t").set_value(True).run()
    analyze.button_group(key="analyze.data.source").set_value("None").run()
    analyze.button(key="analyze.run").click().run()
    assert started(service).model.title == "timm/resnet10t"
    assert started(service).model.num_classes == 1000


def test_folders_that_mean_nothing_can_be_measured_without_labels(analyze: AppTest, service: Service) -> None:
    upload_images(analyze, "pets.zip", archive(class_files(("cat", "dog"), each=2)))
    assert "measure without labels" in analyze.error[0].value
    assert analyze.button(key="analyze.run").disabled
    selects(analyze)[0].set_value("none").run()
    wait_for_card(analyze)
    analyze.button(key="analyze.run").click().run()
    assert started(service).data.labels == "none"


def test_pictures_in_one_folder_that_means_no_class_are_not_called_a_class(analyze: AppTest) -> None:
    upload_images(analyze, "heap.zip", archive(class_files(("images",), each=4)))
    said = texts(analyze)
    assert "4 images" in said
    assert not [each for each in ("1 class", "All pictures are of one class") if each in said]


def test_a_table_of_labels_can_be_chosen_among_several(analyze: AppTest, service: Service) -> None:
    table = b"file,label\na.png,3\nb.png,5\n"
    files = {"a.png": png(0), "b.png": png(1), "truth.csv": table, "other.csv": table}
    upload_images(analyze, "digits.zip", archive(files))
    assert "There are no labels" in texts(analyze)
    selects(analyze)[0].set_value("truth.csv").run()
    wait_for_card(analyze)
    assert "2 images · 2 classes · from a table" in texts(analyze)
    analyze.button(key="analyze.run").click().run()
    assert started(service).data.labels == "truth.csv"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("up.zip", archive({"../../outside.png": png()}), "outside"),
        (
            "photos.zip",
            archive(dict.fromkeys(("cats/0.png", "dogs/0.png"), b"no")),
            "the first cats/0.png (not a picture)",
        ),
    ],
)
def test_a_bad_archive_is_said_beside_its_field_and_is_gone(
    analyze: AppTest, tmp_path: Path, name: str, content: bytes, sentence: str
) -> None:
    upload_images(analyze, name, content)
    assert [sentence in error.value for error in analyze.error] == [True]
    assert kept_files(tmp_path / "home") == []
    run = analyze.button(key="analyze.run")
    assert run.disabled
    assert run.help in texts(analyze)
    assert analyze.error[0].value.startswith(run.help.rstrip("."))


def test_another_file_takes_the_place_of_one_that_no_run_reads(analyze: AppTest, tmp_path: Path) -> None:
    upload_images(analyze, "first.zip", archive(class_files(CLASSES, each=1)))
    assert kept_files(tmp_path / "home") == ["first.zip"]
    for place in range(3):
        analyze.button(key="analyze.images.replace").click().run()
        assert "first.zip" in kept_files(tmp_path / "home")  # it can be chosen again
        analyze.file_uploader[0].upload(f"{place}.zip", archive({"0/a.png": png(place)})).run()
    analyze.button(key="analyze.images.replace").click().run()
    assert kept_files(tmp_path / "home") == ["0.zip", "1.zip", "2.zip"]
    assert analyze.file_uploader


def test_the_files_of_a_run_are_there_when_its_settings_are_used_again(analyze: AppTest, service, tmp_path) -> None:
    upload_images(analyze, "first.zip", archive(class_files(CLASSES, each=1)))
    analyze.button(key="analyze.run").click().run()
    service.inputs.discard_upload(Path(started(service).data.path))
    assert kept_files(tmp_path / "home") == ["first.zip"]


def test_a_model_of_the_draft_that_is_gone_leaves_an_uploader(analyze: AppTest, tmp_path: Path) -> None:
    analyze.session_state["senseapp.session"].draft = RunSpec(
        model=ModelSpec(library="auto", checkpoint=str(tmp_path / "gone.pth")),
        data=DataSpec(kind="archive", path=str(tmp_path / "gone.zip")),
    )
    analyze.run()
    assert not analyze.exception


@pytest.mark.parametrize("what", first_of(["checkpoint", "images"]))
def test_a_file_whose_reader_was_killed_is_said_and_read_again(
    analyze: AppTest, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def killed(question: WorkerRequest[object], *_: object) -> object:
        raise ReadingStopped(f"{question.subject} ended the process that read it.")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "answer", killed)
        if what == "checkpoint":
            upload_checkpoint(analyze, "net.pth", checkpoint())
        else:
            upload_images(analyze, "photos.zip", archive(class_files()))
    assert not analyze.exception
    assert ["ended the process that read it" in error.value for error in analyze.error] == [True]
    assert len(kept_files(tmp_path / "home")) == 1
    next(button for button in analyze.button if button.label == "Try again").click().run()
    wait_for_card(analyze)
    assert not analyze.error


def send(app: AppTest, files: dict[str, bytes]) -> AppTest:
    app.button_group(key="analyze.data.source").set_value("Upload images").run()
    app.file_uploader[0].set_value([(name, content, "") for name, content in files.items()]).run()
    return wait_for_card(app)


def test_loose_pictures_become_one_archive(analyze: AppTest, service: Service, tmp_path: Path) -> None:
    files = {name: png(place) for place, name in enumerate(("a/x.png", "b/x.png", "y.PNG"))}
    send(analyze, files)
    assert not analyze.error
    assert kept_files(tmp_path / "home") == ["3 pictures.zip"]  # none of the parts is left
    assert ":material/description: `3 pictures`" in [text.value for text in analyze.markdown]
    assert "3 pictures" in next(text.value for text in analyze.markdown if text.value.startswith("**Images**"))
    analyze.button(key="analyze.run").click().run()
    data = started(service).data
    assert data.kind == "archive"
    with zipfile.ZipFile(data.path) as opened:
        assert [opened.read(name) for name in opened.namelist()] == list(files.values())
        assert len(set(opened.namelist())) == len(files)


def test_too_many_loose_files_are_refused_and_a_zip_advised(analyze: AppTest, tmp_path: Path) -> None:
    send(analyze, {f"{place}.png": png(place) for place in range(301)})
    assert "Send them as a zip" in analyze.error[0].value
    assert kept_files(tmp_path / "home") == []
    analyze.button_group(key="analyze.data.source").set_value("None").run()
    analyze.button_group(key="analyze.data.source").set_value("Upload images").run()
    assert not analyze.error  # what was wrong with those is of no interest any more


def test_two_last_uploads_of_one_name_are_two_options(analyze: AppTest, service: Service, tmp_path: Path) -> None:
    upload_images(analyze, "mine.zip", archive(class_files()))
    (first,) = (tmp_path / "home" / "uploads").rglob("mine.zip")
    analyze.button(key="analyze.images.replace").click().run()
    analyze.file_uploader[0].upload("mine.zip", archive({"0/a.png": png()})).run()
    wait_for_card(analyze)
    analyze.button(key="analyze.images.replace").click().run()
    again = analyze.selectbox(key="analyze.images.again")
    assert again.options == ["mine.zip", "mine.zip (2)"]
    again.set_value(service.inputs.upload_name(str(first))).run()
    wait_for_card(analyze)
    analyze.button(key="analyze.run").click().run()
    assert Path(started(service).data.path) == first


def test_a_reload_finds_an_upload_and_a_run_offers_it(analyze: AppTest, another_app, service, backend) -> None:
    upload_images(analyze, "mine.zip", archive(class_files()))
    query = dict(analyze.query_params)
    assert str(backend.home) not in str(query)
    other = another_app()
    for name, text in query.items():
        other.query_params[name] = text
    wait_for_card(other.run())
    assert "`mine.zip`" in texts(other)
    other.button(key="analyze.run").click().run()
    third = wait_for_card(another_app().run())
    third.button_group(key="analyze.data.source").set_value("Upload images").run()
    assert third.selectbox(key="analyze.images.again").options == ["mine.zip"]
    hostile = another_app()
    hostile.query_params["data.kind"] = "archive"
    hostile.query_params["data.path"] = "upload:../../../etc/passwd"
    wait_for_card(hostile.run())
    assert not hostile.exception
    assert hostile.button_group(key="analyze.data.source").value == "Upload images"
    assert hostile.file_uploader
    assert hostile.button(key="analyze.run").disabled
    assert [toast.value for toast in hostile.toast] == ["This upload is no longer there. Upload the file again."]


def test_nobody_opens_the_upload_of_somebody_else(service: Service, backend: Backend) -> None:
    path = service.inputs.reserve_upload()
    name = service.inputs.upload_name(str(path))
    assert service.inputs.upload_named(name) == path
    bob = Service(backend, "bob")
    assert bob.inputs.upload_name(str(path)) == ""
    for hostile in (name, f"../{path.parent.parent.name}/{name}", "", "/", "x" * 10_000, f"{name}/.."):
        with pytest.raises(NotFound):
            bob.inputs.upload_named(hostile)


def folder_files(num_classes: int = 4) -> dict[str, bytes]:
    """The two files of a network on the Hugging Face hub, as timm writes them."""
    import timm
    from safetensors.torch import save

    config = {"architecture": "resnet10t", "num_classes": num_classes, "label_names": list("abcd")[:num_classes]}
    weights = save(timm.create_model("resnet10t", num_classes=num_classes).state_dict())
    return {"config.json": json.dumps(config).encode(), "model.safetensors": weights}


@pytest.mark.parametrize("form", first_of(["two files", "zip"]))
def test_a_model_folder_is_one_upload(analyze: AppTest, service: Service, tmp_path: Path, form: str) -> None:
    files = folder_files()
    sent = files if form == "two files" else {"net.zip": archive({f"net/{name}": each for name, each in files.items()})}
    analyze.button_group(key="analyze.model.source").set_value("Your weights (.pt, .safetensors)").run()
    analyze.file_uploader[0].set_value([(name, content, "") for name, content in sent.items()]).run()
    wait_for_card(analyze)
    assert not analyze.error
    assert kept_files(tmp_path / "home") == ["model.zip" if form == "two files" else "net.zip"]
    assert "config.json names timm/resnet10t: every name and shape fits." in texts(analyze)
    analyze.button_group(key="analyze.data.source").set_value("None").run()
    analyze.button(key="analyze.run").click().run()
    assert started(service).model.title == "timm/resnet10t"


def test_half_a_model_folder_is_said_beside_its_field(analyze: AppTest, tmp_path: Path) -> None:
    upload_checkpoint(analyze, "config.json", folder_files()["config.json"])
    assert "Choose it together with the weights" in analyze.error[0].value
    assert kept_files(tmp_path / "home") == []
