"""Lines of YOLO files with more than a box: what they hold is decided by all lines of a set."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from senseapp.tasks.detection.annotations.yolo import Columns, Row, columns_of, points_of, read_yolo, told_in
from tests.cases import first_of

Box = tuple[float, float, float, float]
Line = Callable[[np.random.Generator, Box], list[float]]


def box(generator: np.random.Generator, size: float) -> Box:
    width, height = generator.uniform(0.3, 1, 2) * size
    x, y = (generator.uniform(side / 2, 1 - side / 2) for side in (width, height))
    return x, y, width, height


def points(count: int, marks: str = "") -> Line:
    """Return what writes a box with key points inside; marks are integers, scores or nothing."""

    def line(generator: np.random.Generator, found: Box) -> list[float]:
        x, y, width, height = found
        values = list(found)
        for _ in range(count):
            values += [x + generator.uniform(-0.5, 0.5) * width, y + generator.uniform(-0.5, 0.5) * height]
            values += {"": [], "whole": [generator.integers(0, 3)], "score": [generator.uniform()]}[marks]
        return values

    return line


def outline(least: int, most: int, *, score: bool = False) -> Line:
    """Return what writes corners on an ellipse in the box."""

    def line(generator: np.random.Generator, found: Box) -> list[float]:
        x, y, width, height = found
        angles = np.sort(generator.uniform(0, 2 * np.pi, generator.integers(least, most + 1)))
        corners = np.stack([x + width / 2 * np.cos(angles), y + height / 2 * np.sin(angles)], axis=1)
        return [*corners.ravel().tolist(), *([generator.uniform()] if score else [])]

    return line


def turned(generator: np.random.Generator, found: Box) -> list[float]:
    """Return four corners of a turned box."""
    x, y, width, height = found
    angle = generator.uniform(0, np.pi)
    along = np.array([np.cos(angle), np.sin(angle)]) * min(width, height) / 3
    across = np.array([-along[1], along[0]])
    return np.concatenate(
        [[x, y] + one * along + other * across for one, other in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    )


def plus(*more: Callable[[np.random.Generator], float]) -> Line:
    return lambda generator, found: [*found, *(float(each(generator)) for each in more)]


SCORE, TRACK = (lambda generator: generator.uniform()), (lambda generator: generator.integers(0, 2**31))


def a_set(line: Line, size: float, seed: int, pictures: int = 40) -> list[list[Row]]:
    generator = np.random.default_rng(seed)
    return [
        [(0, [float(value) for value in line(generator, box(generator, size))]) for _ in range(3)]
        for _ in range(pictures)
    ]


@pytest.mark.parametrize("size", first_of([0.2, 0.05, 0.6]))
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (points(17, "whole"), "box"),
        (points(1, "whole"), "box"),
        (points(4, "score"), "box"),
        (points(1), "box"),
        (points(2), "box"),
        (points(5), "box"),
        (plus(SCORE), "box"),
        (plus(TRACK), "box"),
        (plus(SCORE, TRACK), "box"),
        (plus(lambda generator: 15 * generator.integers(0, 12)), "unknown"),  # angles in degrees, and
        (plus(lambda generator: generator.uniform(-1.5, 1.5)), "unknown"),  # in radians
        (outline(3, 9), "outline"),
        (outline(3, 3), "outline"),
        (outline(4, 4), "outline"),
        (outline(7, 7), "outline"),
        (outline(4, 4, score=True), "unknown"),
        (turned, "outline"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_columns_of_a_set(line: Line, expected: str, size: float) -> None:
    for seed in range(5):
        columns, said = columns_of(a_set(line, size, seed))
        assert (columns if isinstance(columns, str) else "box") == expected
        assert said.startswith("Lines of ")


def test_few_lines_that_may_be_either_are_not_read() -> None:
    either = [[(0, [0.5, 0.5, 0.4, 0.4, 0.45, 0.55])]]
    columns, said = columns_of(either)
    assert columns == "unknown"
    assert said == (
        "Lines of 7 numbers may hold a box with key points or an outline, so they are not read. kpt_shape in data.yaml "
        "tells key points."
    )
    assert columns_of(either, (1, 2))[0] == 6
    with pytest.raises(ValueError, match="line 1 has 7 numbers, of unknown meaning"):
        read_yolo(b"0 0.5 0.5 0.4 0.4 0.45 0.55", columns)


def test_lines_of_another_length_are_not_read() -> None:
    assert columns_of([[(0, [0.5, 0.5, 0.4, 0.4])]]) == ("unknown", "")
    for columns in (8, "unknown"):
        with pytest.raises(ValueError, match="line 2 has 7 numbers, of unknown meaning"):
            read_yolo(b"0 .4 .5 .2 .4\n0 .4 .5 .2 .4 .4 .4", columns)  # type: ignore[arg-type]


@pytest.mark.parametrize(("columns", "expected"), [(6, (0.3, 0.3, 0.5, 0.7)), ("outline", (0.2, 0.4, 0.4, 0.5))])
def test_boxes_of_a_line(columns: Columns, expected: Sequence[float]) -> None:
    np.testing.assert_allclose(read_yolo(b"0 .4 .5 .2 .4", columns).boxes[0], (0.3, 0.3, 0.5, 0.7))
    np.testing.assert_allclose(read_yolo(b"0 .4 .5 .2 .4 .4 .4", columns).boxes[0], expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kpt_shape: [17, 3]", (17, 3)),
        ("kpt_shape:\n- 5\n- 2\n", (5, 2)),
        ("kpt_shape: 17", None),
        ("kpt_shape: [1:1, 2]", None),
        ("kpt_shape: [999999999, 3]", None),
        ("names: {", None),
        ("[" * 60_000, None),
        ("a: &a [*a]", None),
    ],
)
def test_key_points_in_yaml(text: str, expected: tuple[int, int] | None) -> None:
    assert points_of(told_in(text.encode()).get("kpt_shape")) == expected
