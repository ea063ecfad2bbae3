"""The page's controls of how captions are drawn."""

from typing import Any, NamedTuple

import gradio as gr

from app.desk import Desk
from app.options import LONGEST, MOST_BEAMS, Options, defaults_of, read_options

BEAM, SAMPLING = "Beam search", "Sampling"


class Controls(NamedTuple):
    """inputs: of an event; their values, in this order, are `read`'s arguments."""

    inputs: list[gr.components.Component]
    names: list[str]

    def read(self, values: tuple[Any, ...]) -> tuple[list[str], Options]:
        """The labels of the chosen checkpoints, and the options. Raises UserError."""
        labels, way, *others = values
        given = dict(zip(self.names, others))
        given["prompt"] = given["prompt"] or None
        return labels or [], read_options({**given, "sample": way == SAMPLING})


def controls(desk: Desk) -> Controls:
    """Put them where the page is being built."""
    defaults = defaults_of(desk.checkpoints[0])
    labels = [checkpoint.label for checkpoint in desk.checkpoints]
    made: dict[str, gr.components.Component] = {}
    classes = ["smile-controls", *(["sampling"] if defaults["sample"] else [])]
    with gr.Column(elem_classes=classes):
        chosen = gr.CheckboxGroup(labels, value=labels, label="Checkpoints")
        way = gr.Radio(
            [BEAM, SAMPLING],
            value=SAMPLING if defaults["sample"] else BEAM,
            label="Words are found by",
        )
        with gr.Accordion("Lengths, prompt and more", open=False):
            with gr.Row():
                made["min_length"] = _slider(
                    "Shortest caption, tokens", 0, LONGEST, 1, defaults["min_length"]
                )
                made["max_length"] = _slider(
                    "Longest caption, tokens", 1, LONGEST, 1, defaults["max_length"]
                )
            made["prompt"] = gr.Textbox(
                label="Prompt",
                info="What a caption starts with; empty: the checkpoint's own. Its tokens count.",
                placeholder=desk.checkpoints[0].captioner.prompt.strip(),
                max_lines=1,
            )
            with gr.Group(elem_classes=["smile-beams"]):
                made["num_beams"] = _slider("Beams", 1, MOST_BEAMS, 1, defaults["num_beams"])
            with gr.Group(elem_classes=["smile-sampling"]):
                with gr.Row():
                    made["top_p"] = _slider("Nucleus (top-p)", 0.05, 1, 0.05, defaults["top_p"])
                    made["temperature"] = _slider(
                        "Temperature", 0.05, 3, 0.05, defaults["temperature"]
                    )
                with gr.Row():
                    made["top_k"] = gr.Number(
                        defaults["top_k"], label="Top-k (0: all)", precision=0
                    )
                    made["seed"] = gr.Number(0, label="Seed", precision=0)
            made["repetition_penalty"] = _slider(
                "Repetition penalty", 0.5, 2, 0.05, defaults["repetition_penalty"]
            )
    return Controls([chosen, way, *made.values()], list(made))


def _slider(label: str, least: float, most: float, step: float, value: float) -> gr.Slider:
    return gr.Slider(least, most, value=value, step=step, label=label, min_width=200)
