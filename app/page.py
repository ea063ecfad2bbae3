"""The page: tabs to compare checkpoints on a photo, to caption several photos, and about it."""

import functools
import tempfile
from abc import ABCMeta
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from app import view
from app.batch import caption_all, write_zip
from app.controls import controls
from app.photos import read_photo
from app.service import CaptionService
from captioning.runtime.errors import UserError

HERE = Path(__file__).parent
FONTS = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
HEADER = (
    '<h1 class="smile-title">What captioners say of a photo</h1>'
    '<p class="smile-lead">Captioners trained with maximum likelihood (MLE), with SMILE, or with '
    "both, side by side. Photos stay with the machine that runs this page.</p>"
)
WAITING = '<p class="smile-empty">The captions appear here.</p>'
# An event of the page is no endpoint for programs: /api/caption is.
EVENT = {"api_visibility": "private"}

_html = functools.partial(gr.HTML, apply_default_css=False)


def _as_uploaded(field: gr.Image, payload: Any) -> Any:
    """(file, the visitor's name of it) of what an image field holds, whatever that is.

    Gradio's own way decodes it, without bounds, and fails without a word for a visitor. That the
    file is an uploaded one was checked before.
    """
    if payload is None or payload.path is None:
        return None
    return payload.path, payload.orig_name or Path(payload.path).name


# An image field with that way. Gradio remakes a field whose value it sets, so the class must have
# it; made by a class statement, Gradio would write a .pyi file beside this one.
Photo = ABCMeta.__new__(
    type(gr.Image), "Photo", (gr.Image,), {"preprocess": _as_uploaded, "is_template": True}
)


def look() -> dict[str, Any]:
    """Theme, style and script, as arguments of `gr.mount_gradio_app`.

    The style is not given as `css`: Gradio would take it apart, and lose some of it.
    """
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return {
        "theme": gr.themes.Default(primary_hue="blue", neutral_hue="slate", **FONTS),
        "head": f"<style>{style}</style><script>{script}</script>",
    }


def build_page(service: CaptionService, examples: Sequence[Path], address: str) -> gr.Blocks:
    """The page with its events. examples: pictures to try; address: of the server, for About."""
    with gr.Blocks(
        title="SMILE captions",
        analytics_enabled=False,
        delete_cache=(600, 3600),  # seconds: looked through so often, kept so long
    ) as page:
        _html(HEADER)
        with gr.Tabs():
            with gr.Tab("Compare"):
                _compare(service, examples)
            with gr.Tab("Batch"):
                _batch(service)
            with gr.Tab("About"):
                _html(view.about(service, address))
    page.queue(max_size=service.limits.queue, api_open=False)
    return page


def _compare(service: CaptionService, examples: Sequence[Path]) -> None:
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            photo = Photo(
                type="filepath",
                sources=["upload", "webcam", "clipboard"],
                label="Photo",
                height=280,
                elem_id="photo",
                buttons=[],  # none that shares or sends a photo elsewhere
            )
            button = gr.Button("Caption", variant="primary", elem_id="caption")
            gr.Examples([[str(path)] for path in examples], [photo], label="Drawn examples")
            settings = controls(service)
        with gr.Column(scale=5, min_width=280):
            shown = _html(WAITING, elem_id="results")

    def caption(file: Any, *values: Any) -> str:
        try:
            if file is None:
                raise UserError("no photo: drop one, take one with the camera, or try an example")
            labels, options = settings.read(values)
            path, name = file
            read = read_photo(path, name, service.limits)
            captions = [service.caption(read, c, options) for c in service.chosen(labels)]
            return view.results(name, read, captions)
        except UserError as error:
            return view.error(str(error))

    button.click(caption, [photo, *settings.inputs], shown, scroll_to_output=True, **EVENT)
    photo.clear(lambda: WAITING, None, shown, **EVENT)


def _batch(service: CaptionService) -> None:
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
            settings = controls(service)
        with gr.Column(scale=5, min_width=280):
            archive = gr.File(
                label="ZIP of the captions", interactive=False, visible=False, elem_id="zip"
            )
            shown = _html(WAITING, elem_id="batch-results")

    bar = gr.Progress()

    def caption_photos(given: Any, progress: Any = bar, *values: Any) -> tuple[Any, str]:
        try:
            if not given:
                raise UserError("no photos: drop some, or choose them")
            labels, options = settings.read(values)
            photos = [(Path(file), Path(file).name) for file in given]
            steps = caption_all(service, photos, service.chosen(labels), options)
            progress((0, len(photos)), desc="captioning", unit="photos")
            done = []
            for captioned in steps:
                done.append(captioned)
                progress((len(done), len(photos)), desc="captioning", unit="photos")
        except UserError as error:
            return gr.update(value=None, visible=False), view.error(str(error))
        path = Path(tempfile.mkdtemp()) / "captions.zip"
        write_zip(done, path)
        return gr.update(value=str(path), visible=True), view.batch_table(done)

    button.click(
        caption_photos, [files, *settings.inputs], [archive, shown], scroll_to_output=True, **EVENT
    )
