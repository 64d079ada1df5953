"""The text of the Guide page: ten short entries and a glossary."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.core.files import SITE
from senseapp.core.markdown import md

PICTURES = SITE / "assets" / "screenshots"
"""Made by ``scripts/take_screenshots.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideEntry:
    """One entry: a question, its answer in Markdown, and what it looks like.

    Attributes:
        question: of a beginner.
        answer: with emphasis where that helps.
        picture: name of a file in :data:`PICTURES`, without suffix.
        caption: says what the picture shows, also to those who cannot see it.
    """

    question: str
    answer: str
    picture: str
    caption: str


ENTRIES = (
    GuideEntry(
        question="What is sensitivity?",
        answer="How much a model loses when one of its layers is compressed and all others stay as they are. A layer "
        "that loses much is fragile: leave it alone or compress it little. A layer that surely loses little can "
        "give up most of its weights.",
        picture="heat_map",
        caption="The heat map: every layer at every level, from robust (blue) to fragile (red).",
    ),
    GuideEntry(
        question="How do I read the bars?",
        answer="One bar per layer, from the input of the network at the top to its output at the bottom. A bar to the "
        "right of the zero line is a loss; a bar to the left is a small gain, nearly always by chance; tables use the "
        "same sign. The thin line through the bar is the 95 % interval: where the true loss lies, had you measured on "
        "all images like yours. A ring at zero marks a layer whose interval holds zero. Blue is a loss of at most one "
        "point (harm 0.02) at the far end of its interval; yellow, orange and red are more, in steps that the "
        "legend names and that are the same in every view. Grey: your images cannot tell whether it is tolerable.",
        picture="results",
        caption="The results page: one bar per layer with its interval, and the most fragile layers beside it.",
    ),
    GuideEntry(
        question="Estimated or measured?",
        answer="Pale bars are estimates of all layers at once, made from one backward pass in seconds, the largest "
        "corrected by passes over a few images. Solid bars are measured: the layer was really compressed and the "
        "images run through. Estimates rank layers well; before you rely on a number, measure it.",
        picture="run",
        caption="A run in its middle: pale estimates give way to measured bars.",
    ),
    GuideEntry(
        question="Which compression?",
        answer=md(
            "**Sparsity** sets weights to zero. The file gets smaller; speed needs hardware or kernels that skip "
            "zeros. **Pruning** removes whole channels: smaller and faster everywhere, and it costs more accuracy. "
            "**Quantization** stores weights with fewer bits: four times smaller at 8 bits, mostly for free."
        ),
        picture="analyze",
        caption="The start page: model, images and compression are filled in with the demo.",
    ),
    GuideEntry(
        question="Which metric?",
        answer="The share of right answers is the easiest to explain, but it moves in steps of one image, so that it "
        "ranks layers only from 381 labelled images on. Harm compares the output with that of the original, needs "
        "no labels and sees the smallest changes: it is the better guide for schedules. With Expert on, there are more "
        "metrics, by their names in the field: harm is the KL divergence, for example.",
        picture="curves",
        caption="Curves: how the loss of each layer grows with compression.",
    ),
    GuideEntry(
        question="How many images are enough?",
        answer="Look at the headline: it says how small a loss your images can show. 20 images cannot show drops in "
        "accuracy under 16 points, 100 under 4, 400 under 1; what they cannot show is painted grey, and not taken for "
        "no loss. A few hundred images usually settle harm; accuracy needs about four times as many for "
        "intervals half as long.",
        picture="compare",
        caption="Compare: two runs beside each other, their bars in pairs and their ranks.",
    ),
    GuideEntry(
        question="What do I do with a fragile layer?",
        answer="Spare it: a schedule for a budget takes more from robust layers instead. First and last layers are "
        "often fragile and small, so sparing them costs little. If a large layer is fragile, try a finer granularity, "
        "another criterion, or more bits.",
        picture="network",
        caption="The network as its module tree: long and blue means much to save at little cost.",
    ),
    GuideEntry(
        question="Why is a layer without a value?",
        answer="Some layers cannot be compressed alone: their channels are added to those of other layers, or the "
        "network needs their exact width. They are listed apart with the reason. They are not robust; they were not "
        "measured.",
        picture="results",
        caption="Results: the answer, and the layers below it.",
    ),
    GuideEntry(
        question="What is a schedule, and how far can I trust it?",
        answer=md(
            "One amount per layer for one budget. How much? The curve on the Schedule page is flat at first, then "
            "bends: click a dot before the bend, or say with **Largest loss** what you can afford. The prediction is "
            "made from layers that were measured alone; together they may lose more or less. Check it before you ship "
            "it, and fine-tune it if you can."
        ),
        picture="schedule",
        caption="A schedule: the amount of each layer, and what it is predicted to cost.",
    ),
    GuideEntry(
        question="Which file do I need?",
        answer="JSON holds everything and is read by senseapp itself. CSV opens in any spreadsheet. YAML is for "
        "configuration files. The format picker on the Schedule page says of each further format which tool reads it. "
        "The report shows a run to people: one HTML file with its charts, tables and settings.",
        picture="report",
        caption="The report of a run, a file that opens in any browser without a network.",
    ),
)

GLOSSARY = {
    "Layer": md("A convolution or linear layer of the network, known by its dotted name, such as `layer1.0.conv1`."),
    "Level": "How strongly a layer is compressed: percent of zeros or channels, or bits.",
    "Metric drop": "How much worse the metric gets. Above zero is worse, for every metric, in every chart and table.",
    "Multiplications": "Those that a layer, or the whole network, does for one image, each with an addition (MACs).",
    "Group": "Layers whose channels depend on each other, so that they are pruned together.",
    "95 % interval": "A range that holds the true value in 95 of 100 such measurements.",
}
