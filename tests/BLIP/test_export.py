"""The exported graphs in onnxruntime: the eager model's numbers and captions, on real photos."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.export import Dim

from BLIP.cached_step import CachedStep
from BLIP.export import StepGraph, _export, export_onnx, main
from BLIP.onnx_runner import OnnxCaptioner
from BLIP.tokenizer import CaptionTokenizer
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
    with torch.no_grad():  # so that some captions end before others
        captioner.text_decoder.cls["predictions"].bias[captioner.tokenizer.end] = 6
    folder = tmp_path_factory.mktemp("onnx")
    torch.save({"model": captioner.state_dict(), "config": sizes}, folder / "checkpoint.pth")
    assert main([str(folder / "checkpoint.pth"), str(folder)]) == 0
    return captioner, folder


@pytest.fixture(scope="module")
def in_8_bits(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("int8")
    assert main([str(exported[1] / "checkpoint.pth"), str(folder), "--int8"]) == 0
    return folder


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
    words = list(map(captioner.tokenizer.bert.token_to_id, ("##a", "##the")))
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


def test_the_runner_reads_tokens_as_the_tokeniser_does(vocabulary, tmp_path):
    """Any: punctuation, clitics, pieces, special ones; after a prompt with an apostrophe."""
    words = tmp_path / "vocab.txt"
    words.write_text(vocabulary.read_text() + "'\ns\nn\nt\nn't\n're\n,\n.\n?\n##a\n")
    tokenizer = CaptionTokenizer(str(words))
    prompt = tokenizer.encode_prompt("a man ' s picture of ")
    runner = OnnxCaptioner.__new__(OnnxCaptioner)  # without its graphs
    runner.settings = {"prompt_ids": prompt.tolist()}
    runner.words = [tokenizer.token(number) for number in range(len(tokenizer))]
    cut = len("a man's picture of ")
    for _ in range(300):
        ids = torch.cat([prompt, torch.randint(len(tokenizer), (12,))])
        assert runner.text(ids.tolist()) == tokenizer.decode(ids)[cut:]


def compared(captioner, folder, photos, settings):
    """Of each photo the runner's best caption, then the captioner's."""
    runner = OnnxCaptioner(folder, threads=1)
    for photo in photos.split(1):
        right = captioner.generate_details(photo, settings)
        made = runner.generate(
            photo.numpy(),
            settings.num_beams,
            settings.max_length,
            settings.min_length,
            settings.length_penalty,
        )
        tokens = right.token_ids[0, 0]
        tokens = tokens[: len(made.tokens)] if len(tokens) > len(made.tokens) else tokens
        assert runner.text(tokens.tolist()) == right.captions[0][0]
        yield made.tokens, tokens.tolist(), made.score, float(right.scores[0, 0])


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_beams": 1}, {"num_beams": 5, "length_penalty": -1.0}, {"min_length": 14}],
    ids=str,
)
def test_the_runner_searches_as_torch_does(exported, changes):
    """Made-up images, of which each has another caption; some captions end before the others."""
    captioner, folder = exported
    words = captioner.tokenizer
    settings = DecodingSettings(**{"max_length": 16, "min_length": 6, **changes})
    lengths = set()
    for ours, right, score, expected in compared(
        captioner, folder, 2 * torch.randn(12, 3, SIZE, SIZE), settings
    ):
        assert ours == right
        # The sum of sixteen words, times its length: digits that single precision has not are lost.
        assert score == pytest.approx(expected, rel=1e-4) or settings.num_beams == 1
        lengths.add(len(ours))
        assert words.pad not in ours
    assert len(lengths) > 1 or changes.get("min_length") == 14


def test_int8_is_the_encoders(exported, in_8_bits):
    """What it makes of images is near, and the decoder's step is as it is without."""
    import onnx

    _, folder = exported
    images = (2 * torch.randn(12, 3, SIZE, SIZE)).numpy()
    pasts = []
    for where in (folder, in_8_bits):
        served = Served(where)
        served.begin(images)
        pasts.append(served.image_past)
    assert 0 < np.abs(pasts[1] - pasts[0]).mean() < 0.05 * np.abs(pasts[0]).mean()
    nodes = onnx.load(in_8_bits / "encoder.onnx").graph.node
    matrices = [node for node in nodes if node.op_type == "MatMulInteger"]
    assert len(matrices) == 2 * 4 + 2 * 2  # of the blocks; keys and values of the decoder's layers
    steps = [(where / "decoder_step.onnx").read_bytes() for where in (folder, in_8_bits)]
    assert steps[0] == steps[1]


def test_the_runner_needs_neither_torch_nor_transformers(exported, repository, tmp_path):
    from PIL import Image

    captioner, folder = exported
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    image = evaluation_transform(SIZE)(load_image(tmp_path / "a.png"))[None]
    right = captioner.generate_details(image, DecodingSettings()).captions[0][0]
    script = (
        "import runpy, sys\n"
        "try:\n    runpy.run_path(sys.argv[1], run_name='__main__')\n"
        "finally:\n    print({'torch', 'transformers', 'BLIP'} & set(sys.modules))\n"
    )
    runner = repository / "BLIP" / "onnx_runner.py"
    code = f"import sys; sys.argv[:] = sys.argv[1:]\n{script.replace('sys.argv[1]', 'sys.argv[0]')}"
    given = [sys.executable, "-c", code, str(runner), str(folder), "a.png"]
    done = subprocess.run(given, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"a.png\t{right}\nset()\n", done.stderr
    missing = subprocess.run([*given[:-1], "b.png"], cwd=tmp_path, capture_output=True, text=True)
    assert missing.returncode == 2 and missing.stderr.startswith("error: ")
    assert missing.stderr.count("\n") == 1


def test_the_runner_sees_16_bits_and_says_what_is_damaged(exported, tmp_path):
    from PIL import Image

    folder = tmp_path / "damaged"
    shutil.copytree(exported[1], folder)
    ramp = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as photo:
        seen = OnnxCaptioner(folder).pixels(photo)
    right = evaluation_transform(SIZE)(load_image(tmp_path / "a.png"))[None].numpy()
    assert np.abs(seen - right).max() < 0.02
    for damage in (lambda path: path.write_bytes(b"no graph"), lambda path: path.unlink()):
        damage(folder / "encoder.onnx")
        with pytest.raises(ValueError, match=r"encoder\.onnx: no graph that can be run") as caught:
            OnnxCaptioner(folder)
        assert "\n" not in str(caught.value)


def test_what_cannot_be_exported_is_said_in_a_line(tmp_path, capsys):
    assert main([str(tmp_path / "none.pth"), str(tmp_path / "onnx")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_an_export_that_breaks_off_leaves_what_was_there(make_captioner, tmp_path, monkeypatch):
    names = ["captioner.json", "decoder_step.onnx", "encoder.onnx", "vocab.txt"]
    for name in [*names, "notes.txt"]:
        (tmp_path / name).write_text("before")

    def export(graph, path, inputs, outputs):
        path.write_text("half")
        if path.name in full:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("BLIP.export._export", export)
    full = []
    for name in ("encoder.onnx", "decoder_step.onnx"):
        full[:] = [name]
        with pytest.raises(OSError, match="No space left"):
            export_onnx(make_captioner(), tmp_path)
        found = {path.name: path.read_text() for path in tmp_path.iterdir()}
        assert found == dict.fromkeys([*names, "notes.txt"], "before")
    full.clear()
    export_onnx(make_captioner(), tmp_path)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(found) == sorted([*names, "notes.txt"]) and found["notes.txt"] == "before"
    assert "before" not in [found[name] for name in names]
