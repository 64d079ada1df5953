"""Analyze: say what is needed, choose a model and images, and run."""

from dataclasses import replace

import streamlit as st

from senseapp.app.analyze.blocks import Block, compression_line, follow_address, images_line, keep_address, model_line
from senseapp.app.analyze.compression import choose_goal, choose_sensitivity, choose_target, say_what_pays
from senseapp.app.analyze.images import choose_images
from senseapp.app.analyze.model import choose_model, model_card
from senseapp.app.analyze.onnx_file import TASK_KEY
from senseapp.app.analyze.start import offer_demos, start_bar, start_run
from senseapp.app.analyze.understood import UNDERSTOOD, understand
from senseapp.app.common.backend import service
from senseapp.app.common.notices import errors_here
from senseapp.app.common.state import session
from senseapp.compat.streamlit_internals import drawn_before
from senseapp.descriptions.targets import TARGETS
from senseapp.records.goal import with_goal
from senseapp.records.spec import RunSpec
from senseapp.tasks import task_named

if drawn_before():  # what was pressed there may not have happened, and Run has not
    again = "The server was started again, or this page was away for long: press Run, or what you pressed, once more."
    st.toast(again, duration="long")
follow_address()
session().complaint, session().told = "", ()
draft = session().draft

with st.container(horizontal_alignment="center"), st.container(width=960):
    st.title(
        "What do you need?",
        anchor=False,
        help="A network is a stack of layers. Its weights are the numbers that it has learned, each of 32 bits (zeros "
        "and ones); they make up most of its file. Fewer bits for each make the file smaller.",
    )
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute", gap="xsmall"):
        goal = choose_goal(draft.goal)
        target = choose_target(draft.target, goal)
    with errors_here():
        TARGETS[target].check_installed()
    demos = st.container()
    with st.container(gap="xsmall"):
        names = {"Model": "", "Images": "", UNDERSTOOD: "reading", "Compression": ""}
        blocks = {title: Block(title, name) for title, name in names.items()}
    aim = st.container(gap="small")
    with blocks["Model"].fields:
        model = choose_model(draft.model)
        card = st.container()  # filled below: the images may choose the architecture and the size of its input
    with blocks["Images"].fields:
        model, chosen_images = choose_images(draft.data, model)
    with blocks[UNDERSTOOD].fields:
        seen = understand(model, chosen_images, task_key=TASK_KEY)
        model, images = seen.model, seen.images
    available = service().inputs.most_images(chosen_images) if chosen_images else None
    with card:
        profile = model_card(model) if model else None
    with blocks["Compression"].fields:
        task = task_named((model or draft.model).task)
        sensitivity = choose_sensitivity(draft.sensitivity, profile, task, available=available)
    if sensitivity:
        with aim:
            say_what_pays(sensitivity.compression.description, goal)
    blocks["Model"].summarise(model_line(model, profile))
    blocks["Images"].summarise(images_line(chosen_images, sensitivity.num_samples if sensitivity else None, available))
    blocks[UNDERSTOOD].summarise(seen.line)
    blocks["Compression"].summarise(compression_line(sensitivity))
    spec = None
    if model and (shown := images or chosen_images) and sensitivity:
        spec = RunSpec(model=model, data=shown, sensitivity=sensitivity, goal=goal, target=target)
        keep_address(spec)
    session().shown = spec
    with demos:
        demo = offer_demos(spec if images else None)
    if demo:
        start_run(replace(with_goal(demo, goal), target=target))
    start_bar(spec if images and TARGETS[target].runtime.is_installed else None, profile, seen)
