"""No foreign code is run: the sources are searched for it, and every reader meets an attack."""

import ast
from functools import partial

import pytest
import torch
import transformers

from baselines.image_encoder import ImageEncoder
from baselines.vocabulary import Vocabulary, load_word_vectors
from BLIP import read_checkpoint
from captioning.metrics.clip_features import read_cached
from captioning.metrics.openai_clip import read_openai_clip
from captioning.metrics.pretrained import load_pretrained
from captioning.metrics.retrieval import read_features
from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from tests.attacks import attacks
from tests.programs import raises_line
from tests.sources import chains, source_files
from tests.tiny import classic_config

# Calls that run their argument, or read files that can run something.
NEVER = """
eval exec compile __import__ os.system os.popen runpy.run_path pickle.load pickle.loads
pickle.Unpickler shelve.open marshal.loads joblib.load dill.load yaml.load yaml.unsafe_load
YAML.load torch.hub.load torch.jit.load numpy.fromfile np.fromfile shutil.unpack_archive
urllib.request.urlopen urlretrieve requests.get tempfile.mktemp getattr.__import__
"""
# Calls that are allowed in these files, with the arguments that make them safe.
ONLY = {
    "torch.load": ("BLIP/checkpoint.py", {"weights_only": "True"}),
    "np.load": ("captioning/metrics/clip_features.py", {"allow_pickle": "False"}),
    "zipfile.ZipFile": (
        "BLIP/checkpoint.py captioning/metrics/clip_features.py captioning/models/checkpoints.py "
        "app/view.py",
        {},
    ),
    "tarfile.open": ("captioning/files/tars.py", {}),  # reads, and extracts nothing
    "YAML": ("captioning/config/loading.py", {"typ": "'safe'", "pure": "True"}),
    "import_module": ("BLIP/__init__.py", {}),
    "Image.open": ("captioning/data/image.py", {}),
    "urllib.request.build_opener": ("BLIP/download.py", {}),
}


@pytest.fixture(autouse=True)
def no_pickle_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "ran").exists()


def unsafe_calls(name, text):
    """Return what is not allowed in a source file of this name."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            places, needed = ONLY.get(call, (name, {}))
            is_safe = name in places.split() and needed.items() <= given.items()
            if call in NEVER.split() or "shell" in given or not is_safe:
                found.append(call)
    return found


def test_no_source_calls_what_runs_code_or_reads_files_that_can(repository):
    packages, read = chains(repository)[0], set()
    for path in source_files(repository):
        name = path.relative_to(repository).as_posix()
        if path.suffix == ".py" and name.split("/")[0] in packages:
            assert unsafe_calls(name, path.read_text(encoding="utf-8")) == [], name
            read.add(name)
    assert len(read) > 100
    assert unsafe_calls("a.py", "torch.load(a, weights_only=b)") == ["torch.load"]
    assert all(place in read for places, _ in ONLY.values() for place in places.split())


READERS = {
    "resume": checkpoints.read,
    "weights": lambda path: read_checkpoint(str(path)),
    "trusted weights": lambda path: read_checkpoint(str(path), trust_checkpoint=True),
    "CLIP": read_openai_clip,
    "image encoder": lambda path: ImageEncoder(classic_config(), str(path)),
    "word vectors": partial(load_word_vectors, torch.nn.Embedding(5, 2), Vocabulary(["a"])),
}


@pytest.mark.parametrize("torchs_switch", ["0", "1"])  # it makes torch run what is in files
@pytest.mark.parametrize("name", READERS)
def test_readers_of_weights_name_the_file_and_run_no_pickle(
    tmp_path, monkeypatch, name, torchs_switch
):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", torchs_switch)
    pickles, arrays = attacks(tmp_path)
    for path in [*pickles, *arrays]:
        with raises_line((ValueError, UserError), path.name):
            READERS[name](path)


def test_transformers_models_of_metrics_run_no_pickle(tmp_path):
    transformers.GPT2Config(n_layer=1).save_pretrained(str(tmp_path))
    for path in attacks(tmp_path)[0]:
        path.rename(tmp_path / "pytorch_model.bin")
        with raises_line(UserError, f"ppl_model: {tmp_path} cannot be loaded"):
            load_pretrained("ppl_model", str(tmp_path), "AutoModelForCausalLM")


def test_readers_of_arrays_name_the_file_and_run_no_pickle(tmp_path, capsys):
    pickles, arrays = attacks(tmp_path)
    for path in [*pickles, *arrays]:
        with raises_line(UserError, path.stem):
            read_features(path.rename(path.with_suffix(".npz")))
        assert read_cached(path.with_suffix(".npz")) is None
        assert f"{path.with_suffix('.npz')} is damaged" in capsys.readouterr().err
