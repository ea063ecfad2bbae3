"""lmms-eval's release scores a checkpoint on tasks made here."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from captioning.data import evaluation_transform, load_image
from captioning.models.build import load_trained
from decoding import DecodingSettings
from tests.programs import one_error_line

pytestmark = pytest.mark.slow

pytest.importorskip("lmms_eval", reason="pip install lmms-eval")

VISUALS = "from PIL import Image\n\n\ndef of(doc):\n    return [Image.open(doc['image'])]\n"
TASK = """
task: local_captions
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_visual: !function visuals.of
doc_to_text: "Describe the image."
doc_to_target: target
generation_kwargs: {{max_new_tokens: 6, temperature: 0, num_beams: 3, until: [the]}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


def lmms_eval(repository, folder, model):
    variables = {"LMMS_EVAL_PLUGINS": "captioning.lmms_plugin", "HF_HOME": str(folder / "hf")}
    words = ["--model", "captioner", "--model_args", model, "--tasks", "local_captions"]
    words += ["--include_path", str(folder), "--output_path", str(folder / "out")]
    return subprocess.run(
        [sys.executable, "-m", "lmms_eval", *words, "--batch_size", "3", "--device", "cpu"],
        env={**os.environ, **variables, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_a_checkpoint_is_a_model_of_lmms_eval(checkpoint, photos, repository, tmp_path):
    config, captioner = load_trained(str(checkpoint), None, torch.device("cpu"))
    names = sorted(map(str, photos.rglob("*.png")))[:4]
    transform = evaluation_transform(config.image_size)
    images = torch.stack([transform(load_image(name)) for name in names])
    # A model argument replaces the task's three beams.
    longest = len(captioner.prompt_ids) + 6
    captions = captioner.generate(images, DecodingSettings(longest, 5, num_beams=1))
    targets = [caption.partition("the")[0].strip() for caption in captions]
    targets[3] = "other"
    rows = [{"image": name, "target": target} for name, target in zip(names, targets)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "visuals.py").write_text(VISUALS)
    (tmp_path / "task.yaml").write_text(TASK.format(rows=tmp_path / "rows.jsonl"))
    model = f"checkpoint={checkpoint},num_beams=1"
    done = lmms_eval(repository, tmp_path, model)
    assert done.returncode == 0, done.stderr
    [file] = (tmp_path / "out").rglob("*results.json")
    results = json.loads(file.read_text())["results"]
    assert results["local_captions"]["exact_match,none"] == 0.75


@pytest.mark.parametrize(
    ("kwargs", "changed"),
    [
        ({"temperature": 0, "top_p": 0, "top_k": None}, {"sample": False}),
        ({"temperature": None, "do_sample": None}, {}),
        ({"do_sample": True, "top_k": 0}, {"sample": True, "top_k": 0}),
        ({"temperature": 0.5, "num_beams": 3}, {"sample": True, "temperature": 0.5}),
    ],
)
def test_settings_of_a_task_change_the_captioners(kwargs, changed):
    from captioning.lmms_plugin.models.captioner import CheckpointLmm

    lmm, settings = CheckpointLmm.__new__(CheckpointLmm), DecodingSettings(20, 5)
    lmm.model, lmm.overrides = Mock(settings=settings), {"num_beams": 1}
    assert lmm.settings(kwargs) == replace(settings, **changed)


def test_a_mistake_is_one_line(checkpoint, repository, tmp_path):
    (tmp_path / "task.yaml").write_text(TASK.format(rows="unread"))
    done = lmms_eval(repository, tmp_path, f"checkpoint={checkpoint},beams=1")
    assert one_error_line(done.stderr, "unknown key 'beams'") and done.returncode != 0
