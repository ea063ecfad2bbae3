"""Builds the Gradio page, with the tabs Compare, Batch and About, and adds it to a server."""

import functools
import tempfile
from abc import ABCMeta
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from gradio import route_utils
from starlette.formparsers import MultiPartException

from app import view
from app.options import LIMITS, Options, page_defaults, read_options
from app.service import CaptionService, caption_all
from app.uploads import CLEANUP_INTERVAL_S, KEEP_FILES_S
from captioning.runtime.errors import UserError

HEADER = (
    '<h1 class="smile-title">What captioners say of a photo</h1>'
    '<p class="smile-lead">Captioners trained with maximum likelihood (MLE), with SMILE, or with '
    "both, side by side. Photos stay with the machine that runs this page.</p>"
)
EMPTY_RESULTS = '<p class="smile-empty">The captions appear here.</p>'
BEAM, SAMPLING = "Beam search", "Sampling"
# Keeps the page's events out of Gradio's public API. Programs should call /api/caption instead.
EVENT_OPTIONS = {"api_visibility": "private"}

_html = functools.partial(gr.HTML, apply_default_css=False)


def _preprocess_upload(field: gr.Image, payload: Any) -> Any:
    """Return an image field's value as (path, the visitor's file name); None for an empty field.

    This replaces Gradio's own preprocessing, which would decode files of any size and raise errors
    that the page could not show. The path is always that of an uploaded file, because the
    middleware `app.uploads.BodyChecks` refuses other paths.
    """
    if payload is None or payload.path is None:
        return None
    return payload.path, payload.orig_name or Path(payload.path).name


# A subclass of gr.Image with the preprocessing above. Setting the method on one instance of
# gr.Image would not be enough: Gradio creates new instances of a field, which would lack the
# method. ABCMeta.__new__ is called instead of a class statement, because a class statement would
# make Gradio write a .pyi file next to this file.
Photo = ABCMeta.__new__(
    type(gr.Image), "Photo", (gr.Image,), {"preprocess": _preprocess_upload, "is_template": True}
)


class FilesOnlyParser(route_utils.GradioMultiPartParser):
    """Parses uploads and rejects form fields that are not files.

    Gradio's own parser would keep such fields in memory, however large they are.
    """

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if self._current_part.file is None:
            raise MultiPartException("an upload has only files")


def add_page(server, service: CaptionService, examples: Sequence[Path], address: str):
    """Mount the page at the root of a FastAPI server; see `build_page`."""
    route_utils.GradioMultiPartParser = FilesOnlyParser  # used by Gradio's upload route
    style, script = (Path(__file__).with_suffix(s).read_text("utf-8") for s in (".css", ".js"))
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    return gr.mount_gradio_app(
        server,
        build_page(service, examples, address),
        path="/",
        theme=gr.themes.Default(primary_hue="blue", neutral_hue="slate", **fonts),
        # The style is not passed as `css`, because Gradio would rewrite it and lose some rules.
        head=f"<style>{style}</style><script>{script}</script>",
        max_file_size=service.limits.upload_bytes,
        ssr_mode=False,
        footer_links=[],
        run_history=False,
    )


def build_page(service: CaptionService, examples: Sequence[Path], address: str) -> gr.Blocks:
    """Build the page.

    examples: image files that visitors can try. address: the server's address, which the tab About
    shows.
    """
    with gr.Blocks(
        title="SMILE captions",
        analytics_enabled=False,
        delete_cache=(CLEANUP_INTERVAL_S, KEEP_FILES_S),
    ) as page:
        _html(HEADER)
        with gr.Tabs():
            with gr.Tab("Compare"):
                _add_compare_tab(service, examples)
            with gr.Tab("Batch"):
                _add_batch_tab(service)
            with gr.Tab("About"):
                _html(view.render_about(service, address))
    page.queue(max_size=service.limits.queue, api_open=False)
    return page


def _add_compare_tab(service: CaptionService, examples: Sequence[Path]) -> None:
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            photo_field = Photo(
                type="filepath",
                sources=["upload", "webcam", "clipboard"],
                label="Photo",
                height=280,
                elem_id="photo",
                buttons=[],  # in particular no button that shares the photo
            )
            button = gr.Button("Caption", variant="primary", elem_id="caption")
            gr.Examples([[str(path)] for path in examples], [photo_field], label="Drawn examples")
            controls = _Controls(service)
        with gr.Column(scale=5, min_width=280):
            results = _html(EMPTY_RESULTS, elem_id="results")

    def caption(file, *values):
        try:
            if file is None:
                raise UserError("no photo: drop one, take one with the camera, or try an example")
            labels, options = controls.read(*values)
            path, name = file
            photo, captions = service.caption_file(Path(path), name, labels, options)
            return view.render_results(name, photo, captions)
        except UserError as error:
            return view.render_error(str(error))

    button.click(
        caption, [photo_field, *controls.inputs], results, scroll_to_output=True, **EVENT_OPTIONS
    )
    photo_field.clear(lambda: EMPTY_RESULTS, None, results, **EVENT_OPTIONS)


def _add_batch_tab(service: CaptionService) -> None:
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            files = gr.File(
                file_count="multiple",
                file_types=["image"],
                label=f"Photos, up to {service.limits.photos}",
                height=220,
                elem_id="photos",
            )
            button = gr.Button("Caption all", variant="primary", elem_id="caption-all")
            controls = _Controls(service)
        with gr.Column(scale=5, min_width=280):
            archive = gr.File(
                label="ZIP of the captions", interactive=False, visible=False, elem_id="zip"
            )
            results = _html(EMPTY_RESULTS, elem_id="batch-results")

    progress_bar = gr.Progress()

    def caption_photos(files: Any, progress: Any = progress_bar, *values: Any):
        try:
            if not files:
                raise UserError("no photos: drop some, or choose them")
            labels, options = controls.read(*values)
            photos = [(Path(file), Path(file).name) for file in files]
            generator = caption_all(service, photos, labels, options)
            progress((0, len(photos)), desc="captioning", unit="photos")
            photo_results = []
            for result in generator:
                photo_results.append(result)
                progress((len(photo_results), len(photos)), desc="captioning", unit="photos")
        except UserError as error:
            return gr.update(value=None, visible=False), view.render_error(str(error))
        path = Path(tempfile.mkdtemp()) / "captions.zip"
        view.write_zip(photo_results, path)
        return gr.update(value=str(path), visible=True), view.render_batch_table(photo_results)

    outputs = [archive, results]
    button.click(
        caption_photos, [files, *controls.inputs], outputs, scroll_to_output=True, **EVENT_OPTIONS
    )


class _Controls:
    """The controls for checkpoints and decoding settings, which the constructor adds to the block.

    inputs: the controls whose values `read` takes, in this order.
    """

    def __init__(self, service: CaptionService):
        first = service.checkpoints[0]
        labels = [checkpoint.label for checkpoint in service.checkpoints]
        self._defaults = {**Options().model_dump(), **page_defaults(first)}
        default_method = SAMPLING if self._defaults["sample"] else BEAM
        self._settings: dict[str, gr.components.Component] = {}  # {field of `Options`: control}
        # page.css hides the controls that have no effect with the chosen method. Gradio's events
        # are not used for this: if two events follow each other quickly, Gradio may lose one.
        with gr.Column(elem_classes="smile-controls"):
            checkpoints = gr.CheckboxGroup(labels, value=labels, label="Checkpoints")
            method = gr.Radio([BEAM, SAMPLING], value=default_method, label="Decoding method")
            with gr.Accordion("Lengths, prompt and more", open=False):
                self._add_lengths_and_prompt(first.config.prompt.strip())
                self._add_beam_and_sampling_settings()
                self._add_reranking_settings()
                self._add_penalties_and_guidance()
        self.inputs = [checkpoints, method, *self._settings.values()]

    def read(self, labels: list[str], method: str, *settings: Any) -> tuple[list[str], Options]:
        """Return the labels of the chosen checkpoints, and the options. Raises UserError."""
        values = {"sample": method == SAMPLING}
        for name, value in zip(self._settings, settings):
            values[name] = None if value == "" else value
        return labels, read_options(values)

    def _add_slider(self, name, label, minimum, maximum, step, **options):
        self._settings[name] = gr.Slider(
            minimum, maximum, self._defaults[name], step=step, label=label, min_width=200, **options
        )

    def _add_number(self, name, label):
        self._settings[name] = gr.Number(self._defaults[name], label=label, precision=0)

    def _add_lengths_and_prompt(self, own_prompt: str) -> None:
        """own_prompt: the prompt of the first checkpoint."""
        with gr.Row():
            self._add_slider("min_length", "Shortest caption, tokens", 0, LIMITS["max_length"], 1)
            self._add_slider("max_length", "Longest caption, tokens", 1, LIMITS["max_length"], 1)
        self._settings["prompt"] = gr.Textbox(
            label="Prompt",
            info="What a caption starts with; empty: the checkpoint's own. Its tokens count "
            "towards both lengths.",
            placeholder=own_prompt,
            max_lines=1,
        )

    def _add_beam_and_sampling_settings(self) -> None:
        with gr.Group(elem_classes="smile-beams"):
            self._add_slider("num_beams", "Beams", 1, LIMITS["num_beams"], 1)
        with gr.Group(elem_classes="smile-sampling"):
            with gr.Row():
                self._add_slider("top_p", "Nucleus (top-p)", 0.05, 1, 0.05)
                self._add_slider("temperature", "Temperature", 0.05, 3, 0.05)
            with gr.Row():
                self._add_slider("min_p", "Min-p (0: off)", 0, 1, 0.01)
                self._add_slider("typical_p", "Typical-p (1: off)", 0.05, 1, 0.05)
            with gr.Row():
                self._add_number("top_k", "Top-k (0: all)")
                self._add_number("seed", "Seed")

    def _add_reranking_settings(self) -> None:
        with gr.Row():
            self._settings["rerank"] = gr.Radio(
                [("none", ""), ("mutual information", "mmi"), ("minimum Bayes risk", "mbr")],
                value="",
                label="Rerank samples by",
                elem_classes="smile-rerank",
            )
            maximum, css_class = LIMITS["num_candidates"], "smile-candidate-count"
            label = "Number of samples"
            self._add_slider("num_candidates", label, 2, maximum, 1, elem_classes=css_class)

    def _add_penalties_and_guidance(self) -> None:
        with gr.Row():
            self._add_slider("repetition_penalty", "Repetition penalty", 0.5, 2, 0.05)
            label = "Never repeat this many tokens in a row (0: off)"
            self._add_slider("no_repeat_ngram_size", label, 0, 10, 1)
        maximum = LIMITS["guidance_scale"]
        self._add_slider("guidance_scale", "Guidance by the image (1: none)", 0, maximum, 0.25)
