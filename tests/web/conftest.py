"""A page with two tiny captioners, as `web/build.mjs` builds it, and photos for it."""

import shutil
import subprocess

import numpy as np
import pytest
import torch
from PIL import Image

from tests.web.host import Host


@pytest.fixture(scope="session")
def build(repository):
    """Return a function that runs `web/build.mjs`; skip the test where it cannot run."""
    if not shutil.which("node"):
        pytest.skip("no Node: install Node 20 to build the page")
    if not (repository / "web/node_modules").is_dir():
        pytest.skip("no web/node_modules: run npm ci --prefix web")

    def run(*arguments):
        command = ["node", "web/build.mjs", *map(str, arguments)]
        return subprocess.run(command, cwd=repository, capture_output=True, text=True)

    return run


@pytest.fixture(scope="session")
def captioner(make_captioner):
    """Return a tiny captioner whose captions differ from photo to photo."""
    torch.manual_seed(0)
    vit = {"embed_dim": 32, "depth": 2, "num_heads": 4, "initializer_range": 0.3}
    captioner = make_captioner(vit=vit)
    captioner.text_decoder.cls["predictions"].bias.data[captioner.tokenizer.end] = 4
    return captioner


@pytest.fixture(scope="session")
def export(build, captioner, tmp_path_factory):
    """Return the captioner's folder of transformers.js."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from BLIP.export import export_onnx

    folder = tmp_path_factory.mktemp("export") / "tiny"
    export_onnx(captioner, folder, layout="transformers.js")
    return folder


@pytest.fixture(scope="session")
def built(build, export, tmp_path_factory):
    """Return the folder of the page."""
    folder = tmp_path_factory.mktemp("built") / "page"
    built = build(folder, f"one=The first={export}", f"two=The second={export}")
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="session")
def host(built):
    host = Host(built)
    yield host
    host.stop()


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Return a folder of photos and of files that are none."""
    folder = tmp_path_factory.mktemp("photos")
    noise = np.random.default_rng(0).integers(0, 256, (50, 80, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "first.png")
    Image.effect_mandelbrot((70, 90), (-2, -1.5, 1, 1.5), 20).convert("RGB").save(
        folder / "second.png"
    )
    (folder / "notes.jpg").write_text("no photo at all")
    Image.new("1", (20_000, 10_000)).save(folder / "huge.png")
    return folder
