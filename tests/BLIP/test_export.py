"""The exported graphs in onnxruntime: the eager model's numbers and captions."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from BLIP.convert import hf_config, settings_of
from BLIP.export import SETTINGS, export_onnx
from BLIP.onnx_runner import OnnxCaptioner
from BLIP.tokenizer import CaptionTokenizer
from captioning.data.image import evaluation_transform, load_image
from decoding import DecodingSettings
from tests.programs import one_error_line, raises_line, refused, run_program, unchanged

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.slow
SIZE = 48
SHORT = {"max_length": 16, "min_length": 6}


@pytest.fixture(scope="module")
def make_exported(tmp_path_factory, vocabulary, make_captioner):
    def make(words="", **settings):
        folder = tmp_path_factory.mktemp("onnx")
        (folder / "words.txt").write_text(vocabulary.read_text() + words)
        torch.manual_seed(0)
        vit = {"embed_dim": 32, "depth": 2, "num_heads": 4, "initializer_range": 0.3}
        settings = {"tokenizer": str(folder / "words.txt"), "vit": vit, **settings}
        captioner = make_captioner(**settings)
        bias = captioner.text_decoder.cls["predictions"].bias.data
        bias[captioner.tokenizer.end] = 4  # so that some captions end before others
        bias[[captioner.tokenizer.bert.token_to_id(word) for word in words.split()]] += 12
        config = {**settings_of(hf_config(captioner)), **settings}
        path = str(folder / "checkpoint.pth")
        torch.save({"model": captioner.state_dict(), "config": config}, path)
        assert run_program("BLIP.export", path, folder).code == 0
        return captioner, folder

    return make


@pytest.fixture(scope="module")
def exported(make_exported):
    return make_exported()


@pytest.fixture(scope="module")
def int8_folder(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("int8")
    with pytest.MonkeyPatch.context() as patched:
        copy = lambda _, path, *__: shutil.copy(exported[1] / path.name, path)  # noqa: E731
        patched.setattr("BLIP.export.export_graph", copy)
        path = exported[1] / "checkpoint.pth"
        assert run_program("BLIP.export", path, folder, "--int8").code == 0
    return folder


def encoded(folder, images):
    return OnnxCaptioner(folder).encoder.run(None, {"image": images})[0]


def test_the_runner_reads_tokens_as_the_tokeniser_does(vocabulary, tmp_path):
    """Punctuation, clitics, pieces, special tokens; after a prompt with an apostrophe."""
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


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_beams": 1}, {"num_beams": 5, "length_penalty": -1.0}, {"min_length": 14}],
    ids=str,
)
def test_the_runner_searches_as_torch_does(exported, changes):
    captioner, folder = exported
    settings = DecodingSettings(**{**SHORT, **changes})
    names = ("num_beams", "max_length", "min_length", "length_penalty")
    runner, found = OnnxCaptioner(folder, threads=1), []
    for image in (2 * torch.randn(12, 3, SIZE, SIZE)).split(1):
        expected = captioner.generate_details(image, settings)
        ours = runner.generate(image.numpy(), **{name: getattr(settings, name) for name in names})
        tokens = expected.token_ids[0, 0, : len(ours.tokens)].tolist()
        assert ours.tokens == tokens and captioner.tokenizer.pad not in tokens
        assert runner.text(tokens) == expected.captions[0][0]
        # A sum of sixteen log-probabilities in float32. The score of greedy search is another one.
        score = expected.scores[0, 0].item()
        assert settings.num_beams == 1 or ours.score == pytest.approx(score, rel=1e-4)
        found.append(tuple(tokens))
    assert len(set(found)) > 1 and (len(set(map(len, found))) > 1 or "min_length" in changes)


def test_a_shifted_first_token_is_a_word_outside_the_graph(make_exported):
    pieces = "##a\n##the\n"
    captioner, folder = make_exported(words=pieces, first_token_shift=True)
    runner, start = OnnxCaptioner(folder), len(captioner.prompt_ids)
    settings, first = DecodingSettings(num_beams=1, **SHORT), set()
    for image in (3 * torch.randn(8, 3, SIZE, SIZE)).split(1):
        ids = captioner.generate_details(image, settings).token_ids[0, 0]
        ours = runner.generate(image.numpy(), num_beams=1, **SHORT).tokens
        assert ours == captioner.shift.undo(ids, start)[: len(ours)].tolist()
        first.add(captioner.tokenizer.token(ours[start]))
    assert first and first <= {"a", "the"}


def test_int8_changes_the_encoder_only(exported, int8_folder):
    import onnx

    images = (2 * torch.randn(12, 3, SIZE, SIZE)).numpy()
    exact, ours = (encoded(folder, images) for folder in (exported[1], int8_folder))
    assert 0 < np.abs(ours - exact).mean() < 0.05 * np.abs(exact).mean()
    nodes = onnx.load(int8_folder / "encoder.onnx").graph.node
    matrices = [node for node in nodes if node.op_type == "MatMulInteger"]
    assert len(matrices) == 2 * 4 + 2 * 2  # of the blocks; keys and values of the decoder's layers
    steps = [(path / "decoder_step.onnx").read_bytes() for path in (exported[1], int8_folder)]
    assert steps[0] == steps[1]


def test_the_runner_needs_neither_torch_nor_transformers(exported, repository, tmp_path):
    from PIL import Image

    captioner, folder = exported
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    image = evaluation_transform(SIZE)(load_image(tmp_path / "a.png"))[None]
    expected = captioner.generate_details(image, DecodingSettings()).captions[0][0]
    code = (
        "import runpy, sys\nsys.argv[:] = sys.argv[1:]\n"
        "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally:\n    print({'torch', 'transformers', 'BLIP'} & set(sys.modules))\n"
    )
    runner = str(repository / "BLIP" / "onnx_runner.py")
    for photo, returncode in (("a.png", 0), ("b.png", 2)):
        command = [sys.executable, "-c", code, runner, str(folder), photo]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == returncode, done.stderr
        if returncode:
            one_error_line(done.stderr, photo)
        else:
            assert done.stdout == f"a.png\t{expected}\nset()\n"


def test_the_runner_reads_16_bits_and_refuses_damaged_graphs(exported, tmp_path):
    from PIL import Image

    folder = tmp_path / "damaged"
    shutil.copytree(exported[1], folder)
    ramp = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as photo:
        pixels = OnnxCaptioner(folder).pixels(photo)
    expected = evaluation_transform(SIZE)(load_image(tmp_path / "a.png"))[None].numpy()
    assert np.abs(pixels - expected).max() < 0.02
    for damage in (lambda path: path.write_bytes(b"no graph"), lambda path: path.unlink()):
        damage(folder / "encoder.onnx")
        with raises_line(ValueError, "encoder.onnx cannot be run"):
            OnnxCaptioner(folder)


def test_an_export_that_fails_leaves_the_files_before_it(make_captioner, tmp_path, monkeypatch):
    command = ["BLIP.export", tmp_path / "none.pth", tmp_path / "onnx"]
    refused(*command, part="none.pth does not exist")
    names = [SETTINGS, "decoder_step.onnx", "encoder.onnx", "vocab.txt"]
    for name in (*names, "notes.txt"):
        (tmp_path / name).write_text("before")

    def export(graph, path, inputs, outputs):
        path.write_text("half")
        if path.name in full:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("BLIP.export.export_graph", export)
    full = []
    for name in ("encoder.onnx", "decoder_step.onnx"):
        full[:] = [name]
        with unchanged(tmp_path), pytest.raises(OSError, match="No space left"):
            export_onnx(make_captioner(), tmp_path)
    full.clear()
    export_onnx(make_captioner(), tmp_path)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found.keys() == {*names, "notes.txt"}
    assert [name for name, content in found.items() if content == "before"] == ["notes.txt"]
