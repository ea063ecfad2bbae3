"""Folders of tiny models, and photos of different sizes."""

import functools

import pytest
from PIL import Image

from smile import Objective
from tests.vlm import folders
from vlm.captioner import VlmCaptioner
from vlm.library import load_model
from vlm.prompt import load_prompt_processor


@pytest.fixture(scope="session")
def vlm_folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("vlm")

    @functools.cache
    def folder(name):
        path = str(root / name.replace(", ", "_"))
        return path, folders.write(name, path)

    return folder


@pytest.fixture(scope="session")
def vlm_photos():
    drawn = Image.radial_gradient("L").convert("RGB"), Image.linear_gradient("L").convert("RGB")
    sizes = [(20, 12), (9, 30), (16, 16)]
    return [drawn[n % 2].resize(size) for n, size in enumerate(sizes)]


@pytest.fixture
def make_vlm(vlm_folder):
    def make(name, objective=None, max_tokens=20):
        folder, prompt = vlm_folder(name)
        processor, model = load_prompt_processor(folder, prompt), load_model(folder, True)
        return VlmCaptioner(model, processor, objective or Objective(), max_tokens).eval()

    return make
