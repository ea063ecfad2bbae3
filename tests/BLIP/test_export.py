"""The folder for transformers.js has the eager model's numbers and captions."""

import numpy as np
import pytest
import torch

from BLIP.checkpoint import settings_of
from BLIP.convert import hf_config
from BLIP.export import CONFIG, export_onnx
from decoding import DecodingSettings
from decoding.search import decode
from tests.programs import run_program

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.slow
SIZE = 48
SHORT = {"max_length": 16, "min_length": 6}
# As in ViT-L, the encoder is wider and deeper than the decoder, with more heads.
VIT = {"embed_dim": 64, "depth": 4, "num_heads": 8, "initializer_range": 0.3}
PIECES = ("##a", "##the")


class OnnxStep:
    """A step function of `decoding` for one image, (1, 3, S, S), by the folder's graphs."""

    def __init__(self, folder, image, precision=""):
        encoder, self.decoder = (
            onnxruntime.InferenceSession(folder / f"onnx/{name}{precision}.onnx")
            for name in ("encoder_model", "decoder_model_merged")
        )
        [self.image] = encoder.run(None, {"pixel_values": image.numpy()})
        _, num_past, heads, _, width = self.image.shape
        self.past = [np.zeros((1, heads, 0, width), np.float32)] * num_past

    def __call__(self, tokens, rows=None):
        past = self.past if rows is None else [values[rows[0].numpy()] for values in self.past]
        values = [tokens[0].numpy(), self.image, *past]
        names = [argument.name for argument in self.decoder.get_inputs()]
        logits, *self.past = self.decoder.run(None, dict(zip(names, values)))
        return torch.from_numpy(logits).transpose(0, 1)  # (1, rows, V)


def test_tokens_and_scores_are_those_of_torch(vocabulary, make_captioner, tmp_path):
    (tmp_path / "words.txt").write_text(f"{vocabulary.read_text()}##a\n##the\n")
    settings = {"tokenizer": str(tmp_path / "words.txt"), "vit": VIT, "first_token_shift": True}
    captioner = make_captioner(**settings)
    tokenizer, prompt = captioner.tokenizer, captioner.prompt_ids
    # Many captions begin with a piece of a word, and some end before others.
    ids = [*map(tokenizer.bert.token_to_id, PIECES), tokenizer.end]
    captioner.text_decoder.cls["predictions"].bias.data[ids] = 4
    config = {**settings_of(hf_config(captioner)), **settings}
    torch.save({"model": captioner.state_dict(), "config": config}, tmp_path / "checkpoint.pth")
    assert run_program("BLIP.export", tmp_path / "checkpoint.pth", tmp_path / "onnx").code == 0
    for changes in ({}, {"num_beams": 1}, {"num_beams": 5, "length_penalty": -1.0}):
        settings, found = DecodingSettings(**{**SHORT, **changes}), set()
        for image in (2 * torch.randn(8, 3, SIZE, SIZE)).split(1):
            step = OnnxStep(tmp_path / "onnx", image)
            ids, scores = decode(step, prompt[None], tokenizer.end, tokenizer.pad, settings)
            expected = captioner.generate_details(image, settings)
            assert ids.tolist() == expected.token_ids.tolist()
            torch.testing.assert_close(scores, expected.scores, rtol=1e-4, atol=0)
            found.add(tuple(ids.flatten().tolist()))
        assert len(found) > 1
        assert set(PIECES) & {tokenizer.token(ids[len(prompt)]) for ids in found}
    for precision, tolerance in (("_fp16", 5e-3), ("_quantized", 0.2)):
        smaller = OnnxStep(tmp_path / "onnx", image, precision).image
        assert 0 < np.abs(smaller - step.image).mean() < tolerance * np.abs(step.image).mean()


def test_after_an_export_that_fails_the_folder_is_not_loaded(make_captioner, tmp_path, monkeypatch):
    (tmp_path / CONFIG).write_text("before")
    monkeypatch.setattr("BLIP.export._write_graphs", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_onnx(make_captioner(), tmp_path)
    assert not (tmp_path / CONFIG).exists()
