"""Checkpoints of tiny captioners with random weights, photos, and the server."""

import contextlib
import os
import subprocess
import sys

import pytest
import torch
from PIL import Image

FLAGS = [
    *("--port", "0", "--host-name", "page.example", "--device", "cpu"),
    *("--max-mb", "1", "--max-pixels", "20000000", "--max-photos", "4"),
]
ALL_ARE_PUBLIC = "import safehttpx\nsafehttpx.is_public_ip = lambda ip: True\n"
NAMES = {"mle": "mle", "smile": "smile", "mle_smile": {"mle": 0.5, "smile": 0.5}}


@pytest.fixture(scope="session")
def run_folders(scenes_config, tmp_path_factory):
    """Return the folders of three runs, with the files that the page reads."""
    from captioning.config import load_config, write_config
    from captioning.models.build import captioner_from

    root = tmp_path_factory.mktemp("runs")
    for seed, (name, objective) in enumerate(NAMES.items()):
        flags = {"objective": objective, "seed": seed, "num_beams": 2, "min_length": 8}
        config = load_config(scenes_config, flags=flags)
        captioner, _ = captioner_from(config, None)
        # Random weights would generate special tokens; only the end is allowed.
        with torch.no_grad():
            captioner.text_decoder.cls["predictions"].bias[[0, 1, 2, 4, -2, -1]] -= 100
        (root / name).mkdir()
        write_config(config, root / name / "config.yaml")
        content = {"model": captioner.state_dict(), "config": config.model_dump()}
        torch.save(content, root / name / "checkpoint_best.pth")
    return [root / name for name in NAMES]


@pytest.fixture(scope="session")
def service(run_folders):
    """Return the page's captions by the three checkpoints."""
    from app.captions import CaptionService
    from app.checkpoints import load_checkpoints

    sources = [str(folder) for folder in run_folders]
    return CaptionService(load_checkpoints(sources, None, torch.device("cpu")))


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Return a folder of photos and of files that are none."""
    folder = tmp_path_factory.mktemp("photos")
    photo = Image.linear_gradient("L").convert("RGB").resize((300, 200))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    photo.save(folder / "photo.jpg", exif=exif)
    photo.rotate(90, expand=True).save(folder / "other.png")
    whole = (folder / "photo.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "notes.jpg").write_text("no photo at all")
    Image.new("1", (6000, 4000)).save(folder / "huge.png")
    return folder


@pytest.fixture(scope="session")
def start_page(run_folders, repository, tmp_path_factory):
    """Return a context manager that starts the page of the three checkpoints with small limits.

    Its arguments are further flags; it gives the address. Gradio fetches from public addresses
    only; all addresses count as public for this server.
    """
    pytest.importorskip("gradio", reason="the web page needs Python 3.10 or later")
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(ALL_ARE_PUBLIC)

    @contextlib.contextmanager
    def start(*flags):
        folder = tmp_path_factory.mktemp("server")
        command = [sys.executable, "-m", "app", *map(str, run_folders), *FLAGS, *flags]
        env = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(site)}
        options = {"cwd": repository, "env": env, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **options) as process:
            line = next((line for line in process.stderr if line.startswith("open http://")), "")
            try:
                yield line.split()[1]
            finally:
                process.terminate()
                _, errors = process.communicate(timeout=200)
        assert process.returncode == 130, errors
        assert not any(path.is_file() for path in folder.rglob("*"))  # the uploads are removed

    return start


@pytest.fixture(scope="session")
def server(start_page):
    """Return the address of the page."""
    with start_page() as address:
        yield address
