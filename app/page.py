"""The page: tabs to compare checkpoints on a photo, to caption several photos, and about it."""

import tempfile
from abc import ABCMeta
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from app import view
from app.about import about
from app.batch import caption_all, write_zip
from app.controls import controls
from app.desk import Desk
from app.gradio_versions import private, taken
from app.limits import Limits
from app.photos import read_photo
from captioning.runtime.errors import UserError

HERE = Path(__file__).parent
FONTS = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
# No button that shares or sends a photo elsewhere, in the words of either version.
PLAIN = {"buttons": [], "show_download_button": False, "show_share_button": False}
BARE = {"apply_default_css": False, "padding": False}  # of HTML that has a style of its own
WAITING = '<p class="smile-empty">The captions appear here.</p>'


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


def _html(content: str, **settings: Any) -> gr.HTML:
    return gr.HTML(content, **settings, **taken(gr.HTML.__init__, BARE))


def look() -> dict[str, Any]:
    """Theme, style and script, which Gradio 4 takes with the page and Gradio 6 with the server.

    The style is not given as `css`: Gradio would take it apart, and lose some of it.
    """
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return {
        "theme": gr.themes.Default(primary_hue="blue", neutral_hue="slate", **FONTS),
        "head": f"<style>{style}</style><script>{script}</script>",
    }


def build_page(desk: Desk, limits: Limits, examples: Sequence[Path], address: str) -> gr.Blocks:
    """The page with its events. examples: pictures to try; address: of the server, for About."""
    with gr.Blocks(
        title="SMILE captions",
        analytics_enabled=False,
        delete_cache=(600, 3600),  # seconds: looked through so often, kept so long
        **taken(gr.Blocks.__init__, look()),
    ) as page:
        _html((HERE / "header.html").read_text(encoding="utf-8"))
        with gr.Tabs():
            with gr.Tab("Compare"):
                _compare(desk, limits, examples)
            with gr.Tab("Batch"):
                _batch(desk, limits)
            with gr.Tab("About"):
                _html(about(desk, limits, address))
    page.queue(max_size=limits.queue, api_open=False)
    return page


def _compare(desk: Desk, limits: Limits, examples: Sequence[Path]) -> None:
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            photo = Photo(
                type="filepath",
                sources=["upload", "webcam", "clipboard"],
                label="Photo",
                height=280,
                elem_id="photo",
                **taken(gr.Image.__init__, PLAIN),
            )
            button = gr.Button("Caption", variant="primary", elem_id="caption")
            gr.Examples([[str(path)] for path in examples], [photo], label="Drawn examples")
            settings = controls(desk)
        with gr.Column(scale=5, min_width=280):
            shown = _html(WAITING, elem_id="results")

    def caption(file: Any, *values: Any) -> str:
        try:
            if file is None:
                raise UserError("no photo: drop one, take one with the camera, or try an example")
            labels, options = settings.read(values)
            path, name = file
            read = read_photo(path, name, limits)
            captions = [desk.caption(read, c, options) for c in desk.chosen(labels)]
            return view.results(name, read, captions)
        except UserError as error:
            return view.error(str(error))

    button.click(
        caption,
        [photo, *settings.inputs],
        shown,
        scroll_to_output=True,
        **private(button.click),
    )
    photo.clear(lambda: WAITING, None, shown, **private(photo.clear))


def _batch(desk: Desk, limits: Limits) -> None:
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            files = gr.File(
                file_count="multiple",
                file_types=["image"],
                label=f"Photos, up to {limits.photos}",
                height=220,
                elem_id="photos",
            )
            button = gr.Button("Caption all", variant="primary", elem_id="caption-all")
            settings = controls(desk)
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
            steps = caption_all(desk, photos, desk.chosen(labels), options, limits)
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
        caption_photos,
        [files, *settings.inputs],
        [archive, shown],
        scroll_to_output=True,
        **private(button.click),
    )
