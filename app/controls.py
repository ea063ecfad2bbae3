"""The page's controls of checkpoints and decoding settings."""

from typing import Any, NamedTuple

import gradio as gr

from app.options import LONGEST, MOST_BEAMS, Options, defaults_of, read_options
from app.service import CaptionService

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


def controls(service: CaptionService) -> Controls:
    """Make them, at the place of the page that is being built."""
    defaults = defaults_of(service.checkpoints[0])
    labels = [checkpoint.label for checkpoint in service.checkpoints]
    made: dict[str, gr.components.Component] = {}

    def slider(name: str, label: str, least: float, most: float, step: float) -> None:
        value = defaults[name]
        made[name] = gr.Slider(least, most, value=value, step=step, label=label, min_width=200)

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
                slider("min_length", "Shortest caption, tokens", 0, LONGEST, 1)
                slider("max_length", "Longest caption, tokens", 1, LONGEST, 1)
            made["prompt"] = gr.Textbox(
                label="Prompt",
                info="What a caption starts with; empty: the checkpoint's own. Its tokens count.",
                placeholder=service.checkpoints[0].captioner.prompt.strip(),
                max_lines=1,
            )
            with gr.Group(elem_classes=["smile-beams"]):
                slider("num_beams", "Beams", 1, MOST_BEAMS, 1)
            with gr.Group(elem_classes=["smile-sampling"]):
                with gr.Row():
                    slider("top_p", "Nucleus (top-p)", 0.05, 1, 0.05)
                    slider("temperature", "Temperature", 0.05, 3, 0.05)
                with gr.Row():
                    top_k = defaults["top_k"]
                    made["top_k"] = gr.Number(top_k, label="Top-k (0: all)", precision=0)
                    made["seed"] = gr.Number(0, label="Seed", precision=0)
            slider("repetition_penalty", "Repetition penalty", 0.5, 2, 0.05)
    return Controls([chosen, way, *made.values()], list(made))
