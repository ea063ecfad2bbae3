"""The transformers.js folder: torch's captions in Node, and Pillow's pixels in the page."""

import json
import shutil
import subprocess

import numpy as np
import pytest
import torch
from PIL import Image

from BLIP.export import export_onnx
from decoding import DecodingSettings

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.slow
SIZE = 48
# As in ViT-L, the encoder is wider and deeper than the decoder, with more heads.
VIT = {"embed_dim": 64, "depth": 4, "num_heads": 8, "drop_path_rate": 0.1}


@pytest.fixture(scope="module")
def node(repository):
    if not shutil.which("node"):
        pytest.skip("no Node: install Node 20 to test captions in it")
    options = {"cwd": repository, "capture_output": True, "text": True, "check": True}
    return lambda *args: subprocess.run(["node", *map(str, args)], **options).stdout


def test_node_finds_the_tokens_of_torch(make_captioner, node, repository, tmp_path):
    if not (repository / "web/node_modules").is_dir():
        pytest.skip("no web/node_modules: run npm ci --prefix web")
    torch.manual_seed(0)
    captioner = make_captioner(vit={**VIT, "initializer_range": 0.3})
    captioner.text_decoder.cls["predictions"].bias.data[captioner.tokenizer.end] = 4
    export_onnx(captioner, tmp_path / "tiny", layout="transformers.js")
    images = 2 * torch.randn(12, 3, SIZE, SIZE)
    images.numpy().tofile(tmp_path / "pixels")
    found = set()
    for beams in (1, 3):
        lengths = {"num_beams": beams, "max_length": 16, "min_length": 6}
        said = node("web/captions.mjs", tmp_path / "tiny", tmp_path / "pixels", json.dumps(lengths))
        for image, line in zip(images.split(1), said.splitlines()):
            expected = captioner.generate_details(image, DecodingSettings(**lengths))
            ours = json.loads(line)
            tokens = expected.token_ids[0, 0, : len(ours["tokens"])].tolist()
            assert (ours["tokens"], ours["text"]) == (tokens, expected.captions[0][0])
            found.add(tuple(tokens))
        assert len(said.splitlines()) == len(images)
    assert len(found) > 1


@pytest.mark.parametrize("size", [(97, 61), (20, 150), (48, 48)], ids=str)
def test_the_page_resizes_as_pillow_does(node, repository, tmp_path, size):
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    pixels[..., 3] = 255
    pixels.tofile(tmp_path / "rgba")
    code = (
        f"const {{ resize }} = await import({json.dumps(str(repository / 'web/page/pixels.js'))});"
        "const { readFileSync, writeFileSync } = await import('node:fs');"
        f"const rgba = readFileSync({json.dumps(str(tmp_path / 'rgba'))});"
        f"writeFileSync({json.dumps(str(tmp_path / 'rgb'))}, "
        f"resize(rgba, {size[0]}, {size[1]}, {SIZE}));"
    )
    node("--input-type=module", "-e", code)
    expected = Image.fromarray(pixels).convert("RGB").resize((SIZE, SIZE), Image.BICUBIC)
    ours = np.fromfile(tmp_path / "rgb", dtype=np.uint8).reshape(SIZE, SIZE, 3)
    assert (ours == np.asarray(expected)).all()
