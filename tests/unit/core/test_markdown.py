"""Text of others as it is written, and markup of ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from senseapp.core.markdown import Markdown, as_written, code, md

JOINER = "\u2060"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("layer1.0.conv1", "layer1.0.conv1"),
        ("resnet18_a1 · 50 % (3 of 4), 1.5 points; a & b", "resnet18_a1 · 50 % (3 of 4), 1.5 points; a & b"),
        ("**bold** _em_ ~~gone~~", r"\*\*bold\*\* \_em\_ \~\~gone\~\~"),
        ("![x](/auth/logout)", "!&#91;x&#93;(/auth/logout)"),
        (":red-badge[x]", f":{JOINER}red-badge&#91;x&#93;"),
        (
            ":material/home: :smile:",
            f":{JOINER}material/home:{JOINER} :{JOINER}smile:{JOINER}".replace(f":{JOINER} ", ": "),
        ),
        ("http://x.org WWW.x.org a@x.org", f"http:{JOINER}//x.org WWW{JOINER}.x.org a@{JOINER}x.org"),
        ("<b>&lt;&#60;", r"\<b>\&lt;\&#60;"),
        ("$x$ `y`", r"\$x\$ \`y\`"),
        ("# one\n\n- two\t three", r"\# one - two three"),
        ("1. one", r"1\. one"),
        ("| a | b |", r"\| a \| b \|"),
        ("a -> -- <= ", f"a -{JOINER}> -{JOINER}- \\<{JOINER}= "),
        ("a\u202eb\x1b[0m", "a\ufffdb\ufffd&#91;0m"),
    ],
)
def test_text_is_written_so_that_it_is_shown_as_it_is(text: str, written: str) -> None:
    assert as_written(text) == written


@given(st.text(alphabet="[]()<>!*_`~$|:/&#;=+-.@1aw \n\\"))
def test_nothing_that_begins_a_construct_is_left_bare(text: str) -> None:
    bare = as_written(text).replace("\\\\", "").replace("&#91;", "").replace("&#93;", "")
    for mark in "*`<~$|":
        assert bare.count(mark) == bare.count(f"\\{mark}")
    assert not {"[", "]", "\n"} & set(bare)
    assert "://" not in bare
    assert not bare.endswith(":")


@given(st.text())
def test_the_letters_stay(text: str) -> None:
    """What Markdown leaves of it, backslashes and numbers of characters taken back, is the text."""
    left = as_written(text).replace(JOINER, "").replace("&#91;", "[").replace("&#93;", "]")
    letters = [letter for letter in left if letter.isalnum()]
    assert letters == [letter for letter in text if letter.isalnum()]


def test_values_in_a_template_are_escaped_unless_they_are_markup() -> None:
    assert md("## {} at {:.1f} %", "a*b", 12.54) == r"## a\*b at 12.5 %"
    assert md("{}: {}", md("**x**"), "**y**") == r"**x**: \*\*y\*\*"
    assert md("- {}", "- x") == r"- \- x"


def test_sums_and_lists_of_markup_are_markup_and_escape_the_rest() -> None:
    assert md("**a**") + "*b*" == r"**a**\*b\*"
    assert "*b*" + md("**a**") == r"\*b\***a**"
    joined = md("\n").join(["*a*", md("*b*")])
    assert (joined, type(joined)) == ("\\*a\\*\n*b*", Markdown)
    assert as_written(joined) == joined
    assert type(as_written(joined)) is str


@pytest.mark.parametrize(
    ("text", "shown"), [("a", "`a`"), ("a`b", "`` a`b ``"), ("`", "`` ` ``"), (" x ", "`  x  `"), ("", "`  `")]
)
def test_code_ends_where_the_text_does(text: str, shown: str) -> None:
    assert code(text) == shown
