"""The scripts train and evaluate with the shipped COCO configuration on real photos."""

import json
import os
import subprocess
import sys

import pytest

from tests.tiny import log_of

SMALL = [
    "pretrained=",
    "vit={embed_dim: 48, depth: 2, num_heads: 4}",
    "med_config={hidden_size: 48, num_hidden_layers: 1, num_attention_heads: 4}",
    "med_config.intermediate_size=48",
    *("image_size=48", "batch_size=15", "captions_per_image=5", "num_workers=1"),
    *("init_lr=3e-3", "max_epoch=1", "lr_schedule=exponential", "max_length=20", "log_every=1"),
]


@pytest.mark.slow
def test_the_scripts_train_in_two_processes_and_evaluate_in_one(repository, tmp_path, shared_data):
    folders = [f"image_root={shared_data}/photos", f"tokenizer={shared_data}/bert-base-uncased"]
    folders += [f"{key}={shared_data}/annotation" for key in ("ann_root", "coco_gt_root")]

    def script(name, processes, *metrics):
        variables = {"VENV": "", "PYTHON": "", "VIRTUAL_ENV": sys.prefix}
        variables["NPROC_PER_NODE"] = processes
        command = ["bash", str(repository / "scripts" / name), "configs/caption_coco.yaml"]
        command += [*folders, f"output_dir={tmp_path}", *SMALL, *metrics]
        options = {"env": {**os.environ, **variables}, "capture_output": True, "timeout": 280}
        result = subprocess.run(command, text=True, **options)
        assert result.returncode == 0, result.stderr
        return result.stderr

    shown = script("train.sh", "2", "metrics=[length]")
    losses = [line["loss"] for line in log_of(tmp_path, "step")]
    assert "epoch 1/1: loss" in shown and len(losses) == 330 // 30
    assert losses[-1] < 0.9 * losses[0]
    shown = script("eval.sh", "1", "metrics=[coco]")
    assert f"loaded {tmp_path / 'checkpoint_best.pth'}" in shown and "CIDEr" in shown
    captions = json.loads((tmp_path / "result" / "test.json").read_text())
    truth = json.loads((shared_data / "annotation" / "coco_karpathy_test_gt.json").read_text())
    assert [entry["image_id"] for entry in captions] == [entry["id"] for entry in truth["images"]]
    scores = json.loads((tmp_path / "result" / "test" / "metrics.json").read_text())
    assert scores["metrics"]["Bleu_1"]["n"] == 50
