"""Label tables in the forms that languages and spreadsheets give them: the right label, or a refusal that says why.

The reference is the list of (picture, label) that each text is made from; nothing here parses a table.
"""

import unicodedata

import pytest

from senseapp.core.errors import InvalidDataset
from senseapp.data.arrangement import arrange
from senseapp.data.contents import Contents
from tests.cases import first_of
from tests.unit.data.test_arrangement import ListedFiles

CLASSES = ("0", "1", "10", "2")
FILES = {f"img_{number:02d}.png": CLASSES[number % 4] for number in range(12)}
PAIRS = tuple(FILES.items())
NUMBERS = {f"{number:05d}.png": CLASSES[(7 * number) % 4] for number in range(12)}


def lines(form: str, header: str = "", pairs=PAIRS) -> str:
    """Return ``header`` and one line of ``form`` for each pair; fields: f (file), s (without suffix), y, i."""
    rows = (form.format(f=f, s=f.rpartition(".")[0], y=y, i=i) for i, (f, y) in enumerate(pairs))
    return "".join(f"{row}\n" for row in ([header] if header else []) + list(rows))


def one_hot(mark: str = ",", on: str = "1", off: str = "0") -> str:
    rows = (mark.join([f, *(on if y == each else off for each in CLASSES)]) for f, y in PAIRS)
    return "\n".join([mark.join(["image", *CLASSES]), *rows])


def labels_of(text: str | bytes, files=FILES, place: str = "") -> dict[str, str]:
    found = arrange(ListedFiles(*(place + file for file in files), labels=text))
    return {entry.name.removeprefix(place): label for entry, label in zip(found.entries, found.labels, strict=True)}


READ = {
    "header": lines("{f},{y}", "file,label"),
    "no header": lines("{f},{y}"),
    "floats of pandas": lines("{f},{y}.0", "file,label"),
    "floats with decimal commas": lines("{f};{y},0", "file;label"),
    "floats of NumPy": lines("{f},{y}.000e+00", "file,label").replace("10.000e+00", "1.000e+01"),
    "signs": lines("{f},+{y}", "file,label"),
    "floats beside whole numbers": lines("{f},{y}.0", "file,label").replace("img_03.png,2.0", "img_03.png,2"),
    "space before quotes": lines('"{f}", "{y}"', '"file", "label"'),
    "all in quotes": lines('"{f}","{y}"', '"file","label"'),
    "semicolons": lines("{f};{y}", "file;label"),
    "tabs": lines("{f}\t{y}", "file\tlabel"),
    "bars": lines("{f}|{y}", "file|label"),
    "spaces": lines("{f} {y}"),
    "many spaces": lines("  {f}    {y}  "),
    "spaces with a header": lines("{f} {y}", "image label"),
    "spaces after semicolons": lines("{f} ; {y}", "file ; label"),
    "separator line": "sep=;\r\n" + lines("{f};{y}", "file;label"),
    "separator line, quoted": '"sep=;"\n' + lines("{f};{y}", "file;label"),
    "separator tab": "SEP=\t\n" + lines("{f}\t{y}", "file\tlabel"),
    "byte-order mark": "\ufeff" + lines("{f},{y}", "file,label"),
    "UTF-16": lines("{f},{y}", "file,label").encode("utf-16"),
    "line ends of old Macs": lines("{f},{y}", "file,label").replace("\n", "\r"),
    "blank lines and comments": "# made by hand\n\n" + lines("{f},{y}\n", "file,label") + "# end\n",
    "commas at the ends": lines("{f},{y},", "file,label,"),
    "commas at the ends of rows": lines("{f},{y},,", "file,label"),
    "index of pandas": lines("{i},{f},{y}", ",file,label"),
    "index with a name": lines("{i},{f},{y}", "Unnamed: 0,file,label"),
    "index without a header": lines("{i},{f},{y}"),
    "label first": lines("{y},{f}", "label,file"),
    "label first, no header": lines("{y} {f}"),
    "no suffix": lines("{s},{y}", "id,label"),
    "no suffix, no header": lines("{s},{y}"),
    "suffix in capitals": lines("{s}.PNG,{y}", "file,label"),
    "another suffix": lines("{s}.jpeg,{y}", "file,label"),
    "names in capitals": lines("IMG_{s},{y}", "file,label").replace("IMG_img_", "IMG_"),
    "paths of Windows": lines("C:\\data\\val\\{f},{y}", "file,label"),
    "paths of Linux": lines("/home/me/val/{f} {y}"),
    "addresses": lines("https://host/val/{f},{y}", "url,label"),
    "a score beside": lines("{f},{y},0.9{i}", "file,label,score"),
    "a score beside, no header": lines("{f},{y},0.9{i}"),
    "a split beside": lines("{f},{y},val", "file,label,split"),
    "name and number": lines("{f},{y},class {y}", "file,class_id,class_name"),
    "other words in the header": lines("{f},{y}", "Dateiname,Klasse"),
    "one-hot": one_hot(),
    "one-hot floats": one_hot(on="1.0", off="0.0"),
    "one-hot in decimal commas": one_hot(";", "1,0", "0,0"),
    "one-hot truth": one_hot(on="True", off="False"),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("place", first_of(["val/", ""]))
def test_the_labels_are_those_that_the_table_was_made_from(name, place):
    assert labels_of(READ[name], place=place) == FILES


def test_what_is_not_usual_is_said():
    def notes(name: str) -> str:
        return " ".join(arrange(ListedFiles(*FILES, labels=READ[name])).notes)

    assert notes("header") == "Labels are read from labels.csv."
    assert "12 pictures matched to a name in it without regard to capitals and suffix." in notes("no suffix")
    assert "columns are separated by semicolons" in notes("semicolons")
    assert "0.0 is taken as 0" in notes("floats of pandas")
    assert "Each column is one class" in notes("one-hot")
    assert "the column label; not read: score" in notes("a score beside")
    assert "'Dateiname,Klasse', was taken as a header" in notes("other words in the header")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_composed_and_decomposed_names_and_labels_are_the_same(form):
    other = {"NFC": "NFD", "NFD": "NFC"}[form]
    files = [unicodedata.normalize(form, f"žába_{number}.png") for number in range(4)]
    text = "".join(unicodedata.normalize(other, f"žába_{number}.png,é{number}\n") for number in range(4))
    assert list(labels_of(text, files).values()) == [unicodedata.normalize("NFC", f"é{number}") for number in range(4)]


def test_zeros_that_pandas_dropped_from_numbers_do_not_matter():
    text = "id,label\n" + "".join(f"{int(file[:-4])},{label}\n" for file, label in NUMBERS.items())
    assert labels_of(text, NUMBERS) == NUMBERS
    assert labels_of(text.replace(",", ".0,").replace("id.0", "id"), NUMBERS) == NUMBERS


def test_numbers_as_names_are_not_mixed_up_with_labels_or_an_index():
    files = {f"{number}.png": CLASSES[(7 * number) % 4] for number in range(12)}
    turned = dict(reversed(files.items()))
    for form, header in (("{s},{y}", "id,label"), ("{y},{s}", "label,id"), ("{f},{y}", ""), ("{i},{f},{y}", "")):
        assert labels_of(lines(form, header, tuple(turned.items())), files) == files
    assert labels_of(lines("{i},{s},{y}", ",id,label", tuple(turned.items())), files) == files


def test_names_with_spaces_and_commas():
    files = {f"my cat, no {number}.png": CLASSES[number % 4] for number in range(8)}
    pairs = tuple(files.items())
    for form in ('"{f}",{y}', "{f};{y}", "{f}\t{y}", "{f} {y}", "{y};{f}"):
        assert labels_of(lines(form, pairs=pairs), files) == files


def test_labels_with_spaces_and_commas():
    files = {f"{number}.png": ("tench, Tinca tinca", "golden retriever")[number % 2] for number in range(4)}
    for form in ("{f};{y}", '{f},"{y}"', "{f}\t{y}"):
        assert labels_of(lines(form, pairs=tuple(files.items())), files) == files


@pytest.mark.parametrize("mark", [";", "\t", "|", " "])
def test_commas_in_labels_before_a_path_do_not_split_the_line(mark):
    files = {f"{number}.png": f"big dog, {number % 2}" for number in range(4)}
    form = '"{y}"' + mark + "C:\\x\\{f}" if mark == " " else "{y}" + mark + "C:\\x\\{f}"
    assert labels_of(lines(form, pairs=tuple(files.items())), files) == files


def test_a_blank_label_leaves_its_picture_out_and_says_so():
    for blank in ("", "nan", " "):
        text = READ["header"].replace("img_03.png,2", f"img_03.png,{blank}")
        found = arrange(ListedFiles(*FILES, labels=text))
        assert len(found.labels) == 11
        assert found.notes[-1] == "1 picture without a label left out: img_03.png."


def test_a_first_line_of_a_picture_that_is_missing_is_no_header():
    found = arrange(ListedFiles(*FILES, labels="gone.png,2\n" + READ["no header"]))
    assert "1 line of it names no picture: gone.png." in found.notes
    found = arrange(ListedFiles(*FILES, labels="gone,2\n" + READ["no suffix, no header"]))
    assert "1 line of it names no picture: gone." in found.notes


def test_a_table_in_windows_1252_keeps_its_accents_and_says_so():
    found = arrange(ListedFiles("füchse.png", "b.png", labels="füchse.png,Füchse\nb.png,Bär".encode("cp1252")))
    assert found.labels == ("Bär", "Füchse")
    assert any("read as Windows-1252" in note for note in found.notes)


REFUSED = {
    "a label with a bare comma": (READ["header"].replace("png,2", "png,2, or 3", 1), "Line 5 has 3 cells where"),
    "two labels of one picture": (READ["header"] + "img_00.png,2\n", r"gives img_00\.png two labels, 0 and 2"),
    "several classes of one picture": (one_hot().replace("1,0,0,0", "1,1,0,0", 1), "columns of labels.csv may hold"),
    "two whole numbers, no header": (
        "".join(f"{f},{y},{i % 3}\n" for i, (f, y) in enumerate(PAIRS)),
        "2 columns of labels.csv may hold the label",
    ),
    "an open quote": (READ["header"].replace("img_03.png", '"img_03.png'), "is not CSV"),
    "a workbook": (b"PK\x03\x04" + b"\0" * 60, "is a workbook or zip, not text"),
    "zero bytes": (READ["header"].encode() + b"\0\0", "zero bytes"),
    "one column": (lines("{f}"), "Neither commas"),
    "names alone": (lines("{f},"), "must hold a file and a label"),
    "no label at all": (lines("{f},nan", "file,label"), "gives no picture a label"),
    "numbers that may be either": ("".join(f"{i},{(i + 1) % 3}\n" for i in range(3)), "2 columns .* may name"),
    "a quoted tail": (READ["header"].replace("img_03.png,2", '"img_03.png"x,2'), "is not CSV"),
    "very long lines": ("a.png," * 200_000, "has more than 1,000,000 letters"),
    "very many columns": (",".join("abcdefgh"[i % 8] for i in range(40_000)) + "\n" + "img_00.png,1", "20,000 columns"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_read_in_two_ways_or_in_none_is_refused_with_the_reason(name):
    text, reason = REFUSED[name]
    files = [*FILES, "0.png", "1.png", "2.png", "x.png"] if name == "numbers that may be either" else FILES
    with pytest.raises(InvalidDataset, match=reason) as refused:
        labels_of(text, files)
    assert "\n" not in str(refused.value)


def test_a_name_that_two_pictures_have_in_a_tolerant_spelling_names_neither():
    text = "id,label\nimg_1,0\nimg_2,1\n"
    found = arrange(ListedFiles("img_1.png", "img_1.jpg", "img_2.png", labels=text))
    assert [entry.name for entry in found.entries] == ["img_2.png"]
    assert "1 line of it names no picture: img_1." in found.notes


def test_a_path_in_another_folder_is_another_picture():
    with pytest.raises(InvalidDataset, match="names none of the 2 pictures"):
        arrange(ListedFiles("a/1.png", "b/1.png", labels="c/1.png,0\nd/1.png,1\n"))
    found = arrange(ListedFiles("a/1.png", "b/2.png", labels="a/1.png,0\nc/2.png,1\n"))
    assert [entry.name for entry in found.entries] == ["a/1.png"]


def test_two_folders_of_the_table_that_are_one_here_are_refused():
    with pytest.raises(InvalidDataset, match="two labels"):
        arrange(ListedFiles("1.png", "2.png", labels="file,label\ntrain/1.png,0\nval/1.png,1\nval/2.png,1\n"))


def test_lists_in_text_files_are_tables_too_and_are_offered_where_they_are_few():
    source = ListedFiles(*FILES, labels=READ["spaces"])
    source.contents.tables["val.txt"] = source.contents.tables.pop("labels.csv")
    assert arrange(source).layout == "unlabelled"
    assert tuple(source.contents.notes()) == ("1 other file left out: .txt.",)
    found = arrange(source, table="val.txt")
    assert tuple(source.contents.notes()) == ()
    assert {entry.name: label for entry, label in zip(found.entries, found.labels, strict=True)} == FILES
    contents = Contents()
    for position, name in enumerate(["a.csv", "b.TSV", *(f"labels/{number}.txt" for number in range(30))]):
        contents.add_file(name, position)
        if position == 3:
            assert contents.offered_tables() == ("a.csv", "b.TSV", "labels/0.txt", "labels/1.txt")
    assert contents.offered_tables() == ("a.csv", "b.TSV")
