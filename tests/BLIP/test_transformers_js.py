"""The transformers.js folder: torch's greedy captions in Node."""

import json
import shutil
import subprocess

import pytest
import torch

from BLIP.export import export_onnx
from decoding import DecodingSettings

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.slow
SIZE = 48
# As in ViT-L, the encoder is wider and deeper than the decoder, with more heads.
VIT = {"embed_dim": 64, "depth": 4, "num_heads": 8, "drop_path_rate": 0.1}
# Prints the tokens of each image of a file of float32 (N, 3, SIZE, SIZE).
PROGRAM = f"""
import {{ readFileSync }} from "node:fs";
import {{ AutoModelForVision2Seq, Tensor, env }} from "@huggingface/transformers";
const [folder, name] = process.argv.slice(1);
env.allowRemoteModels = false;
env.localModelPath = folder;
const model = await AutoModelForVision2Seq.from_pretrained(name, {{ dtype: "fp32" }});
const pixels = new Float32Array(readFileSync(`${{folder}}/pixels`).buffer);
const size = 3 * {SIZE} * {SIZE};
for (let at = 0; at < pixels.length; at += size) {{
  const inputs = new Tensor("float32", pixels.slice(at, at + size), [1, 3, {SIZE}, {SIZE}]);
  const tokens = await model.generate({{ inputs, max_length: 16, min_length: 6 }});
  console.log(JSON.stringify(tokens.tolist()[0].map(Number)));
}}
"""


def test_node_finds_the_tokens_of_torch(make_captioner, repository, tmp_path):
    if not shutil.which("node") or not (repository / "web/node_modules").is_dir():
        pytest.skip("no Node or no web/node_modules: run npm ci --prefix web")
    torch.manual_seed(0)
    captioner = make_captioner(vit={**VIT, "initializer_range": 0.3})
    captioner.text_decoder.cls["predictions"].bias.data[captioner.tokenizer.end] = 4
    export_onnx(captioner, tmp_path / "tiny", layout="transformers.js")
    images = 2 * torch.randn(12, 3, SIZE, SIZE)
    images.numpy().tofile(tmp_path / "pixels")
    command = ["node", "--input-type=module", "-e", PROGRAM, tmp_path, "tiny"]
    found = subprocess.run(command, cwd=repository / "web", capture_output=True, text=True)
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(lines) == len(images), found.stderr
    settings = DecodingSettings(num_beams=1, max_length=16, min_length=6)
    for image, tokens in zip(images.split(1), lines):
        expected = captioner.generate_details(image, settings).token_ids[0, 0]
        assert tokens == expected[: len(tokens)].tolist()
        assert len(tokens) == 16 or tokens[-1] == captioner.tokenizer.end
    assert len(set(map(tuple, lines))) > 1
