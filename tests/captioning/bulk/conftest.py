"""A checkpoint of a tiny captioner, photos, and the program called as a user calls it."""

import contextlib
import json
import os
import shutil
import signal
from unittest import mock

import pytest
import torch

from captioning import caption
from captioning.bulk import model
from captioning.config import load_config
from captioning.data.image import evaluation_transform, load_image
from captioning.models.build import captioner_from, load_trained
from decoding import DecodingSettings
from tests.processes import Processes
from tests.programs import run_program


@pytest.fixture(scope="session")
def checkpoint(scenes_config, tmp_path_factory):
    """Return the path of a checkpoint of a captioner whose captions of the photos all differ."""
    settings = ["max_length=9", 'prompt="a "', "num_beams=2", "batch_size=4", "seed=3"]
    settings += ["med_config.initializer_range=0.6"]
    config = load_config(scenes_config, settings)
    captioner, _ = captioner_from(config, None)
    path = tmp_path_factory.mktemp("trained") / "checkpoint_best.pth"
    torch.save({"model": captioner.state_dict(), "config": config.model_dump()}, path)
    return path


@pytest.fixture
def photos(scenes, tmp_path):
    """Return a folder of ten photos, one of them in a subfolder."""
    folder = tmp_path / "photos"
    (folder / "within").mkdir(parents=True)
    for path in sorted((scenes / "images").glob("*.png"))[:10]:
        shutil.copy(path, folder)
    last = max(folder.glob("*.png"))
    last.rename(folder / "within" / last.name)
    return folder


def read_lines(path):
    """Return the objects of a file of JSON lines; [] without the file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def contents(folder):
    """The bytes of each file in a folder by its name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@contextlib.contextmanager
def stopped_after(batches, of=model.CheckpointModel):
    """Within the block, this process gets SIGTERM after so many batches.

    Yields a list of the images that are captioned.
    """
    caption, counted, images = of.captions, [], []

    def caption_and_count(self, batch):
        images.extend(entry["image"] for entry in batch.entries)
        counted.append(batch)
        if len(counted) == batches:
            os.kill(os.getpid(), signal.SIGTERM)
        return caption(self, batch)

    with mock.patch.object(of, "captions", caption_and_count):
        yield images


@pytest.fixture
def given(checkpoint, photos, tmp_path):
    """Return a function that makes the program's arguments, by default to caption the photos."""

    def arguments(*flags, source=photos, out=tmp_path / "out/captions.jsonl"):
        return list(map(str, [checkpoint, source, "--out", out, "--device", "cpu", *flags]))

    return arguments


@pytest.fixture
def start(given, tmp_path):
    """Return a function that starts the program in a process with a hook; see `given`."""

    def begin(*flags, hook, **named):
        log = tmp_path / f"log{os.urandom(4).hex()}"
        return Processes(caption.main, given(*flags, **named), log, hook=hook)

    return begin


@pytest.fixture
def run(given, tmp_path):
    """Return a function that captions an input, and returns the lines and the log.

    out: a file in a store. folder: of the output otherwise, in the test's folder.
    """

    def captioned(source, *arguments, code=0, folder="out", out=None):
        file = tmp_path / folder / "captions.jsonl"
        words = given(*arguments, source=source, out=out or file)
        found, said, log = run_program("captioning.caption", *words)
        log = said + log
        assert found == code and "Traceback" not in log and "S3CR3T" not in log, log
        return (read_lines(file) if code == 0 else []), log

    return captioned


@pytest.fixture
def failed(tmp_path):
    """Return a function that reads the reasons of the images that failed: {file name: reason}."""

    def read(folder="out"):
        lines = read_lines(tmp_path / folder / "captions.failed.jsonl")
        return {os.path.basename(line["image"]): line["error"] for line in lines}

    return read


@pytest.fixture
def expected(checkpoint):
    """Return a function that calls the captioner for one photo: its captions and scores."""
    config, captioner = load_trained(str(checkpoint), None, torch.device("cpu"))
    transform = evaluation_transform(config.image_size)

    def call(path, **settings):
        settings = DecodingSettings(**{"max_length": 9, "num_beams": 2, **settings})
        found = captioner.generate_details(transform(load_image(path)).unsqueeze(0), settings)
        return found.captions[0], found.scores[0].tolist()

    return call


@pytest.fixture
def load():
    """Return a mock that is called for each checkpoint whose weights the program loads."""
    with mock.patch.object(model, "captioner_from", wraps=model.captioner_from) as load:
        yield load
