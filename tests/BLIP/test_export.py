"""The exported graphs in onnxruntime: the eager model's numbers and captions, on real photos."""

import json

import numpy as np
import pytest
import torch
from torch.export import Dim

from BLIP.cached_step import CachedStep
from BLIP.export import StepGraph, _export, main
from captioning.data.image import evaluation_transform, load_image
from decoding import DecodingSettings

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.slow
SIZE = 48


class Served:
    """A captioner of the exported files alone; greedy."""

    def __init__(self, folder):
        self.encoder, self.step = (
            onnxruntime.InferenceSession(folder / name, providers=["CPUExecutionProvider"])
            for name in ("encoder.onnx", "decoder_step.onnx")
        )
        self.settings = json.loads((folder / "captioner.json").read_text())

    def begin(self, images):
        self.image_past = self.encoder.run(None, {"image": images})[0]
        shape = list(self.settings["empty_past"])
        shape[2] = len(images)
        self.past = np.zeros(shape, dtype=np.float32)

    def logits(self, tokens):
        inputs = {"tokens": tokens, "past": self.past, "image_past": self.image_past}
        logits, self.past = self.step.run(None, inputs)
        return logits

    def greedy(self, image, length):
        self.begin(image)
        ids = list(self.settings["prompt_ids"])
        tokens = ids
        while len(ids) < length and ids[-1] != self.settings["end"]:
            ids.append(int(self.logits(np.array([tokens]))[0].argmax()))
            tokens = ids[-1:]
        return ids


@pytest.fixture(scope="module")
def exported(tmp_path_factory, vocabulary):
    from BLIP import build_captioner

    torch.manual_seed(0)
    sizes = {
        "tokenizer": str(vocabulary),
        "vit": {"embed_dim": 32, "depth": 2, "num_heads": 4, "initializer_range": 0.3},
        "med_config": {
            **{"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4},
            **{"intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.4},
        },
    }
    captioner = build_captioner(**sizes, image_size=SIZE).eval()
    folder = tmp_path_factory.mktemp("onnx")
    torch.save({"model": captioner.state_dict(), "config": sizes}, folder / "checkpoint.pth")
    assert main([str(folder / "checkpoint.pth"), str(folder)]) == 0
    return captioner, folder


@pytest.fixture
def photos(shared_data):
    paths = sorted((shared_data / "photos/coco").glob("*.jpg"))[:3]
    transform = evaluation_transform(SIZE)
    return torch.stack([transform(load_image(path)) for path in paths])


@torch.no_grad()
def test_logits_of_prompt_and_steps(exported, photos):
    captioner, folder = exported
    served = Served(folder)
    served.begin(photos.numpy())
    step = CachedStep(captioner.text_decoder, captioner.visual_encoder(photos), max_length=8)
    prompts = captioner.prompt_ids.repeat(3, 1)
    rows, tokens = None, prompts
    for _ in range(4):
        expected = step(tokens.unsqueeze(1), rows)[:, 0]
        logits = torch.from_numpy(served.logits(tokens.numpy()))
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        rows, tokens = torch.arange(3).unsqueeze(1), torch.randint(5, 20, (3, 1))


def test_captions_of_photos(exported, photos):
    captioner, folder = exported
    served = Served(folder)
    settings = DecodingSettings(num_beams=1, max_length=16, min_length=1)
    captions = set()
    for photo in photos.split(1):
        expected = captioner.generate_details(photo, settings).token_ids[0, 0].tolist()
        ids = served.greedy(photo.numpy(), 16)
        assert ids == expected
        captions.add(tuple(ids))
    assert len(captions) > 1  # the images matter


def test_a_shifted_first_token_is_a_word_to_the_server(make_captioner, vocabulary, tmp_path):
    """The decoder alone, of the sizes of `make_captioner`; the images are keys and values."""
    pieces = tmp_path / "vocab.txt"
    pieces.write_text(vocabulary.read_text() + "##a\n##the\n")
    captioner = make_captioner(tokenizer=str(pieces), first_token_shift=True)
    words = captioner.tokenizer.bert.convert_tokens_to_ids(["##a", "##the"])
    with torch.no_grad():
        captioner.text_decoder.cls["predictions"].bias[words] += 12
    inputs = {
        "tokens": (torch.zeros(2, 3, dtype=torch.int64), {0: Dim("rows"), 1: Dim("new")}),
        "past": (torch.zeros(2, 2, 2, 4, 4, 6), {2: Dim("rows"), 4: Dim("done")}),
        "image_past": (torch.zeros(2, 2, 2, 4, 10, 6), {2: Dim("rows")}),
    }
    graph = StepGraph(captioner)
    _export(graph, tmp_path / "decoder_step.onnx", inputs, ["logits", "new_past"])
    session = onnxruntime.InferenceSession(tmp_path / "decoder_step.onnx")
    first = set()
    for _ in range(8):
        image_past = torch.randn(2, 2, 1, 4, 10, 6) * 3
        past, given = torch.zeros(2, 2, 1, 4, 0, 6), captioner.prompt_ids[None]
        for step in range(4):
            names = {"tokens": given, "past": past, "image_past": image_past}
            found = session.run(None, {name: value.numpy() for name, value in names.items()})
            with torch.no_grad():
                logits, new_past = graph(given, past, image_past)
            torch.testing.assert_close(torch.from_numpy(found[0]), logits, atol=1e-4, rtol=1e-4)
            past, given = new_past, logits.argmax(1, keepdim=True)
            if step == 0:
                first.add(captioner.tokenizer.token(int(given)))
    assert first and first <= {"a", "the"}


def test_what_cannot_be_exported_is_said_in_a_line(tmp_path, capsys):
    assert main([str(tmp_path / "none.pth"), str(tmp_path / "onnx")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
