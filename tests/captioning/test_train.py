"""The program from its command line: train, evaluate, and the one line of an error."""

import json
import pathlib

import pytest
import torch

from captioning import train


def run(config, folder, *arguments):
    return train.main(["--config", str(config), "--output_dir", str(folder), *arguments])


def test_train_then_evaluate_the_best(scenes_config, tmp_path, capsys):
    assert run(scenes_config, tmp_path, "max_epoch=1", "--seed", "3") == 0
    assert run(scenes_config, tmp_path, "--evaluate", "--eval_split", "test") == 0
    assert f"loaded {tmp_path / 'checkpoint_best.pth'}" in capsys.readouterr().err
    captions = json.loads((tmp_path / "result" / "test.json").read_text())
    assert len(captions) == 7 and all(entry["caption"] for entry in captions)
    metrics = json.loads((tmp_path / "result" / "test" / "metrics.json").read_text())
    assert {"Bleu_4", "ROUGE_L", "CIDEr"} <= metrics["metrics"].keys()
    record = (tmp_path / "config.yaml").read_text()
    given = f"pretrained={tmp_path / 'checkpoint_00.pth'}"
    assert run(scenes_config, tmp_path, "--evaluate", given, "num_beams=1") == 0
    assert "checkpoint_00.pth: every key matched" in capsys.readouterr().err
    assert (tmp_path / "result" / "val.json").exists()
    assert (tmp_path / "config.yaml").read_text() == record  # of the training, not of this
    assert "num_beams: 1" in (tmp_path / "result" / "val" / "config.yaml").read_text()
    assert run(scenes_config, tmp_path, "--evaluate", "pretrained=") == 0  # empty is not given
    assert f"loaded {tmp_path / 'checkpoint_best.pth'}" in capsys.readouterr().err


def test_without_a_run_pretrained_is_evaluated_and_so_said(scenes_config, tmp_path, capsys):
    assert run(scenes_config, tmp_path / "a", "max_epoch=1") == 0
    config = tmp_path / "given.yaml"
    pretrained = tmp_path / "a" / "checkpoint_00.pth"
    config.write_text(scenes_config.read_text() + f"pretrained: {pretrained}\n")
    capsys.readouterr()
    assert run(config, tmp_path / "mistyped", "--evaluate") == 0
    shown = capsys.readouterr().err
    assert "mistyped/checkpoint_best.pth does not exist: evaluating pretrained" in shown


def test_trust_and_spice_reach_where_they_matter(scenes_config, tmp_path, capsys):
    assert run(scenes_config, tmp_path, "max_epoch=1") == 0
    path = tmp_path / "checkpoint_best.pth"
    torch.save({**torch.load(path), "config": pathlib.PurePosixPath("x")}, path)
    assert run(scenes_config, tmp_path, "--evaluate") == 2
    assert "set trust_checkpoint: true" in capsys.readouterr().err
    assert run(scenes_config, tmp_path, "--evaluate", "trust_checkpoint=true", "spice=true") == 0
    assert "SPICE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--evaluate"], "nothing to evaluate: "),
        (["--evaluate", "pretrained=absent.pth"], "checkpoint absent.pth does not exist"),
        (["max_length=4", "min_length=1"], "max_length is 4; with this prompt, of 4 tokens"),
        (["max_length=600"], "it must be 5 to 512"),
        (["max_tokens=5"], "max_tokens is 5; with this prompt"),
        (["med_config={hidden_sise: 3}"], "unknown key 'hidden_sise'"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    scenes_config, tmp_path, capsys, arguments, message
):
    assert run(scenes_config, tmp_path / "run", *arguments) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1 and message in errors[0]
