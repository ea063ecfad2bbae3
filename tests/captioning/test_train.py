"""captioning.train --evaluate: which weights are evaluated, and what is said of them."""

import pathlib

import pytest
import torch

from tests.programs import run_program

pytestmark = pytest.mark.usefixtures("no_java")


@pytest.fixture
def run(scenes_config, tmp_path):
    """Return a function that evaluates, by default in the folder `run`, and returns stderr."""

    def call(*arguments, config=scenes_config, folder=tmp_path / "run"):
        given = ["--config", config, "--output_dir", folder, "--evaluate", *arguments]
        outcome = run_program("captioning.train", *given)
        assert outcome.code == 0, outcome.err
        return outcome.err

    return call


def test_weights_that_are_named_are_evaluated_and_the_record_of_the_training_stays(
    run, trained, tmp_path
):
    folder = trained(tmp_path / "run")
    record, weights = (folder / "config.yaml").read_text(), folder / "checkpoint_00.pth"
    shown = run(f"pretrained={weights}", "num_beams=1")
    assert "checkpoint_00.pth: every key matched" in shown
    assert (folder / "result/val.json").exists() and (folder / "config.yaml").read_text() == record
    assert "num_beams: 1" in (folder / "result/val/config.yaml").read_text()
    shown = run("pretrained=")  # empty is not given
    assert f"loaded {folder / 'checkpoint_best.pth'}" in shown


def test_a_checkpoint_with_objects_is_evaluated_if_it_is_trusted(run, trained, tmp_path):
    path = trained(tmp_path / "run") / "checkpoint_best.pth"
    content = {**torch.load(path), "config": pathlib.PurePosixPath("x")}
    path.unlink()  # the copy's weights are links
    torch.save(content, path)
    assert f"loaded {path}" in run("trust_checkpoint=true")


def test_without_a_run_in_the_folder_pretrained_is_evaluated_and_named(
    run, trained, scenes_config, tmp_path
):
    weights = trained(tmp_path / "run") / "checkpoint_00.pth"
    config = tmp_path / "given.yaml"
    config.write_text(scenes_config.read_text() + f"pretrained: {weights}\n")
    shown = run(config=config, folder=tmp_path / "mistyped")
    assert "mistyped/checkpoint_best.pth does not exist: evaluating pretrained" in shown
