"""The Gradio page and its API, /caption."""

import functools
import random
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable

import gradio as gr

from app import view
from app.captions import Answer, CaptionService
from app.options import SAMPLING, SETTINGS, default_settings
from captioning.runtime.errors import UserError
from captioning.scenes.make import draw, random_scene

HEADER = (
    '<h1 class="smile-title">What captioners say of a photo</h1>'
    '<p class="smile-lead">Captioners trained with maximum likelihood (MLE), with SMILE, or with '
    "both, side by side. Photos stay with the machine that runs this page.</p>"
)
EMPTY_RESULTS = '<p class="smile-empty">The captions appear here.</p>'
NUM_EXAMPLES, EXAMPLES_SEED = 6, 11  # scenes like those of the demo
MAX_BATCH = 16  # calls with the same options that are answered at once
DELETE_CACHE = 600, 3600  # seconds between two searches for old uploads, and their age
PRIVATE = {"api_visibility": "private"}  # not in Gradio's description of the API

_html = functools.partial(gr.HTML, apply_default_css=False)


def build_page(service: CaptionService, limits: Namespace) -> gr.Blocks:
    """Build the page. limits: the command line."""
    rng = random.Random(EXAMPLES_SEED)
    samples = [[draw(random_scene(rng), rng)] for _ in range(NUM_EXAMPLES)]
    title = "SMILE captions"
    with gr.Blocks(analytics_enabled=False, title=title, delete_cache=DELETE_CACHE) as page:
        _html(HEADER)
        with gr.Row():
            with gr.Column(scale=2, min_width=280):
                with gr.Tab("Compare"):
                    photo = gr.Image(
                        type="filepath",
                        format="png",  # of the drawn examples
                        sources=["upload", "webcam", "clipboard"],
                        label="Photo",
                        height=280,
                        elem_id="photo",
                        buttons=[],  # in particular no button that shares the photo
                    )
                    button = gr.Button("Caption", variant="primary", elem_id="caption")
                    drawn = gr.Dataset(components=[photo], samples=samples, label="Drawn examples")
                with gr.Tab("Batch"):
                    files = gr.File(
                        file_count="multiple",
                        file_types=["image"],
                        label=f"Photos, up to {limits.max_photos}",
                        height=220,
                        elem_id="photos",
                    )
                    all_button = gr.Button("Caption all", variant="primary", elem_id="caption-all")
                    archive = gr.File(label="ZIP of the captions", visible=False, elem_id="zip")
                controls = _add_controls(service)
            with gr.Column(scale=5, min_width=280):
                results = _html(EMPTY_RESULTS, elem_id="results")
        with gr.Accordion("About this page", open=False):
            values = {"checkpoints": service.checkpoints, "parameters": controls}
            _html(view.render("about.html", limits=limits, **values))

        # The values are validated by `CaptionService`: after an error in Gradio's preprocessing,
        # all calls of a batch would fail. `app.guard` relies on the first two functions.
        options = {"inputs_kwargs": controls, "preprocess": False}
        batch_options = {**options, "batch": True, "max_batch_size": MAX_BATCH}
        show = _answering(service, lambda answer: view.render("results.html", answer=answer))
        button.click(show, photo, results, scroll_to_output=True, **batch_options, **PRIVATE)
        gr.Button(visible=False).click(
            _answering(service, Answer.record),
            photo,
            gr.JSON(label="captions", visible=False),
            api_name="caption",
            api_description='The captions of a photo, or {"error": one line}.',
            **batch_options,
        )
        caption_all = _captioning_all(service, limits.max_photos)
        all_button.click(
            caption_all, files, [archive, results], scroll_to_output=True, **options, **PRIVATE
        )
        photo.clear(lambda: EMPTY_RESULTS, None, results, **PRIVATE)
        drawn.click(lambda sample: sample[0], drawn, photo, **PRIVATE)
    page.state_session_capacity = 1000  # a session takes 60 kB, and every call of the API is one
    return page.queue(max_size=limits.queue)


def _answering(service: CaptionService, render: Callable[[Answer], Any]) -> Callable:
    """Return a function of a batch of calls. Gradio gives it a list of values for each input."""

    def answer(photo, **settings):
        calls = [dict(zip(settings, values)) for values in zip(*settings.values())]
        paths = [file and file["path"] for file in photo]
        return ([render(answer) for answer in service.answer(zip(paths, calls))],)

    return answer


def _captioning_all(service: CaptionService, max_photos: int) -> Callable:
    """Return the function of the tab Batch."""

    def caption_all(files, progress=gr.Progress(), **settings):  # noqa: B008
        if not 0 < len(files or []) <= max_photos:
            error = UserError(f"choose 1 to {max_photos} photos")
            return None, view.render("batch.html", answers=[Answer("", error=error)])
        answers = [
            service.answer([(file["path"], settings)])[0]
            for file in progress.tqdm(files, desc="captioning", unit="photos")
        ]
        path = Path(tempfile.mkdtemp(), "captions.zip")
        view.write_zip(answers, path)
        archive = gr.update(value=str(path), visible=True)
        return archive, view.render("batch.html", answers=answers)

    return caption_all


def _add_controls(service: CaptionService) -> dict[str, gr.components.Component]:
    """Add the controls to the block. Return them by the names of `Options`.

    head.html hides the controls of the other decoding method. Gradio's events are not used for
    this: if two events follow each other quickly, Gradio may lose one.
    """
    config = service.checkpoints[0].config
    labels = [checkpoint.label for checkpoint in service.checkpoints]
    methods = [("Beam search", False), ("Sampling", True)]
    with gr.Column(elem_classes="smile-controls"):
        controls = {
            "checkpoints": gr.CheckboxGroup(labels, value=labels, label="Checkpoints"),
            "sample": gr.Radio(methods, value=config.sample, label="Decoding method"),
        }
        with gr.Accordion("Lengths, prompt and more", open=False):
            controls["prompt"] = gr.Textbox(
                "",  # without a value, the API would require a prompt
                label="Prompt",
                info="What a caption starts with; empty: the checkpoint's own. Its tokens count "
                "towards both lengths.",
                placeholder=config.prompt.strip(),
                max_lines=1,
            )
            for name, default in default_settings(config).items():
                label, minimum, maximum, step, method = SETTINGS[name]
                controls[name] = gr.Slider(
                    minimum, maximum, default, step=step, label=label, elem_classes=method
                )
            controls["seed"] = gr.Number(0, label="Seed", precision=0, elem_classes=SAMPLING)
    return controls
