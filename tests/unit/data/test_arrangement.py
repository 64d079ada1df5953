"""Class folders, splits, tables and heaps of pictures."""

import pytest

from senseapp.core.errors import InvalidDataset
from senseapp.data.arrangement import arrange
from senseapp.data.contents import Contents
from senseapp.tasks import CLASSIFICATION


class ListedFiles:
    """A source that holds names, and text for its tables."""

    title = "set.zip"

    def __init__(self, *names, **tables):
        self.contents = Contents()
        self._tables = {name.replace("__", "/") + ".csv": text for name, text in tables.items()}
        for position, name in enumerate((*names, *self._tables)):
            if name.endswith("/"):
                self.contents.add_folder(name.rstrip("/"))
            else:
                self.contents.add_file(name, position)

    def add_table(self, name, text):
        self._tables[name] = text
        self.contents.add_file(name, 99)

    def read(self, entry):
        text = self._tables[entry.name]
        return text if isinstance(text, bytes) else text.encode()

    def close(self):
        pass


def pairs(arrangement):
    names = [entry.name for entry in arrangement.entries]
    return list(zip(names, arrangement.labels, strict=True)) if arrangement.labels else names


@pytest.mark.parametrize(
    ("files", "found", "notes"),
    [
        (
            ("b/2.png", "a/1.png", "b/1.png", "a-b/1.png"),  # in the order of their names
            {"a/1.png": "a", "a-b/1.png": "a-b", "b/1.png": "b", "b/2.png": "b"},
            (),
        ),
        (("x/set/a/1.png", "x/set/b/1.png", "x/readme.txt"), {"x/set/a/1.png": "a", "x/set/b/1.png": "b"}, ()),
        (("a/x/1.png", "b/y/z/1.png"), {"a/x/1.png": "a", "b/y/z/1.png": "b"}, ()),
        (
            ("a/1.png", "b/1.png", "overview.png"),
            {"a/1.png": "a", "b/1.png": "b"},
            ("1 picture outside of the class folders left out.",),
        ),
        (("test/1.png", "cat/1.png"), {"cat/1.png": "cat", "test/1.png": "test"}, ()),  # a class, and no split
        (
            ("train/a/1.png", "train/b/1.png", "test/1.png"),
            {"train/a/1.png": "a", "train/b/1.png": "b"},
            ("Taken from the folder train; not used: test.",),
        ),
    ],
)
def test_class_folders(files, found, notes):
    arranged = arrange(ListedFiles(*files))
    assert (arranged.layout, pairs(arranged), arranged.notes) == ("class folders", list(found.items()), notes)
    assert arranged.label_names == tuple(sorted({*found.values()}))


def test_one_folder_is_one_class():
    found = arrange(ListedFiles("a/1.png", "a/2.png"))
    assert found.labels == ("a", "a")
    note = "All pictures are of one class, a: accuracy says little about the others."
    assert CLASSIFICATION.label_notes(found.labels) == (note,)
    assert CLASSIFICATION.label_notes(("a", "b")) == ()


def test_empty_classes_are_told_and_keep_their_place():
    found = arrange(ListedFiles("a/1.png", "c/1.png", "b/", "d/notes.txt", "d/x/"))
    assert found.label_names == ("a", "b", "c", "d")
    assert found.notes == ("2 class folders hold no picture: b, d.",)


@pytest.mark.parametrize(
    ("folders", "chosen"),
    [
        (("train", "val", "test"), "val"),
        (("train", "test"), "test"),
        (("Training", "Validation"), "Validation"),
        (("train", "valid"), "valid"),
    ],
)
def test_of_splits_one_that_was_not_trained_on_is_taken(folders, chosen):
    found = arrange(ListedFiles(*[f"data/{folder}/{label}/1.png" for folder in folders for label in "ab"]))
    assert pairs(found) == [(f"data/{chosen}/a/1.png", "a"), (f"data/{chosen}/b/1.png", "b")]
    others = ", ".join(sorted(set(folders) - {chosen}))
    assert found.notes == (f"Taken from the folder {chosen}; not used: {others}.",)


def test_without_labels_every_picture_is_taken():
    found = arrange(ListedFiles("train/a/1.png", "val/a/1.png", "0.png"), with_labels=False)
    assert (found.layout, len(found.entries), found.labels) == ("unlabelled", 3, ())


def test_table_at_the_top_is_found():
    found = arrange(ListedFiles("x/1.png", "x/2.png", labels="file,label\nx/1.png,cat\nx/2.png,dog\n"))
    assert found.layout == "table"
    assert pairs(found) == [("x/1.png", "cat"), ("x/2.png", "dog")]
    assert found.notes == ("Labels are read from labels.csv.",)


@pytest.mark.parametrize("name", ["labels.tsv", "Labels.CSV", "set/labels.tsv"])
def test_a_table_of_tabs_and_of_another_case_is_found_too(name):
    source = ListedFiles("set/images/1.png", "set/images/2.png")
    source.add_table(name, "file\tlabel\n1.png\tcat\n2.png\tdog\n")
    assert arrange(source).labels == ("cat", "dog")


def test_the_only_table_is_taken_where_it_names_pictures():
    source = ListedFiles("1.png", "2.png")
    source.add_table("truth.csv", "file,label\n1.png,cat\n2.png,dog\n")
    found = arrange(source)
    assert (found.layout, found.labels, found.notes) == ("table", ("cat", "dog"), ("Labels are read from truth.csv.",))
    folders = ListedFiles("a/1.png", "b/2.png")
    folders.add_table("truth.csv", "file,label\na/1.png,cat\nb/2.png,dog\n")
    assert arrange(folders).labels == ("a", "b")  # class folders come first


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "val.csv",
            "The table val.csv cannot be read. Neither commas, semicolons, tabs nor spaces separate its columns: the "
            "first line is 'cat'. Write lines such as file,label.",
        ),
        ("labels.txt", ""),  # often the names of the classes
    ],
)
def test_files_beside_unlabelled_pictures_that_may_hold_labels_are_named(name, says):
    source = ListedFiles("1.png", "2.png")
    source.add_table(name, "cat\ndog\n")
    found = arrange(source)
    assert (found.layout, found.notes) == ("unlabelled", (says,) if says else ())
    folders = ListedFiles("cat/1.png", "dog/2.png")
    folders.add_table(name, "cat\ndog\n")
    assert arrange(folders).notes == ()


def test_annotations_that_a_task_does_not_read_are_named_with_the_reason() -> None:
    (note,) = ListedFiles("1.png", "instances.json").contents.notes()
    assert note.startswith("Labels are not read from instances.json: boxes, masks and points are labels of detectors")


@pytest.mark.parametrize(
    "text",
    [
        "images/1.png,cat\nimages/2.png,dog",
        "file;label\n1.png;cat\n2.png;dog\n",
        "\ufefffile\tlabel\r\n./images/1.png\tcat\r\nimages\\2.png\tdog\r\n\r\n",
        '"1.png","cat",0.8\n"2.png", dog ,0.9',
    ],
)
def test_ways_to_write_a_table(text):
    found = arrange(ListedFiles("set/images/1.png", "set/images/2.png", set__labels=text))
    assert found.labels == ("cat", "dog")


def test_a_named_table_wins_over_the_obvious_one():
    source = ListedFiles("1.png", labels="1.png,cat", other="1.png,dog")
    assert arrange(source, table="other.csv").labels == ("dog",)


def test_lines_and_pictures_that_do_not_match_are_told():
    found = arrange(ListedFiles("1.png", "2.png", labels="file,label\n1.png,cat\n9.png,dog"))
    assert found.notes[1:3] == ("1 line of it names no picture: 9.png.", "1 picture without a line in it left out.")


def test_a_bare_name_that_two_pictures_have_is_not_guessed():
    with pytest.raises(InvalidDataset, match=r"names none of the 2 pictures: .* found .*1\.png"):
        arrange(ListedFiles("x/1.png", "y/1.png", labels="file,label\n1.png,cat"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.png,cat\n1.png,dog", "two labels"),
        ("1.png\n", r"Neither commas, .* the first line is '1\.png'"),
        ("1.png,\n", "must hold a file and a label"),
        ("1.png,cat\n2.png,dog,5", "Line 2 has 3 cells where the first line has 2: '2.png,dog,5'"),
        ("", "is empty"),
        ("8.png,a\n9.png,b", r"names none of the 1 picture.*found .*9\.png"),
        (b"\xff\xfe1\x00.", "It is not text in UTF-8"),
        ("1.png," + "x" * 200_000, "is not CSV"),
    ],
)
def test_tables_that_are_refused(text, words):
    with pytest.raises(InvalidDataset, match=words):
        arrange(ListedFiles("1.png", labels=text))


def test_a_table_that_is_not_there():
    with pytest.raises(InvalidDataset, match=r"no file truth\.csv in set\.zip; tables there: labels\.csv"):
        arrange(ListedFiles("1.png", labels="1.png,a"), table="truth.csv")
