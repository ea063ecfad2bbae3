"""Settings that would make a run another one as it goes on: the exact line for each."""

import pytest

from captioning.config import load_config
from captioning.runtime.errors import UserError
from captioning.training.resume import starting_point
from tests.tiny_run import leave_an_epoch

OTHER = "the run in {run} had other settings ({told}); give another output_dir, or resume=never, "
OTHER += "which moves that run aside"
LENGTH = (
    "the run in {run} was to be of another length (max_epoch was 3, is 4): under lr_schedule "
    "{schedule} its epochs so far would have had other learning rates; set it as it was, or give "
    "resume=never, which moves that run aside, and from the start an lr_schedule whose past does "
    "not change (exponential or plateau)"
)
BATCHES = (
    "the run in {run} stopped with 8 images a step (8 batch_size, 1 processes, 1 "
    "accumulation_steps); with {images} ({now}) the rest would be of another run: set them so that "
    "they make as many, or as they were"
)


def other(told):
    return OTHER.replace("{told}", told)


ROWS = [  # what the run had, what it is given, the line
    ([], "tokenizer=other.txt", other("tokenizer was '{data}/vocab.txt', is 'other.txt'")),
    ([], "precision=bf16", other("precision was 'fp32', is 'bf16'")),
    (
        ["skip_bad_images=true"],
        "skip_bad_images=false",
        other("skip_bad_images was True, is False"),
    ),
    ([], "max_epoch=4", LENGTH.replace("{schedule}", "cosine")),
    (["lr_schedule=cosine_steps"], "max_epoch=4", LENGTH.replace("{schedule}", "cosine_steps")),
    (
        ["lr_schedule=cosine_restarts"],
        "max_epoch=4",
        LENGTH.replace("{schedule}", "cosine_restarts"),
    ),
    (
        [
            *("teacher_forcing=inverse_sigmoid", "teacher_forcing_middle=0.5"),
            *("lr_schedule=exponential", "metrics=[length]"),
        ],
        "max_epoch=4",
        "the run in {run} was to be of another length (max_epoch was 3, is 4): with "
        "teacher_forcing_middle its epochs so far would have read other words; set it as it was, "
        "or give resume=never, which moves that run aside",
    ),
    (
        [],
        "batch_size=4",
        BATCHES.replace("{images}", "4").replace(
            "{now}", "4 batch_size, 1 processes, 1 accumulation_steps"
        ),
    ),
    (
        [],
        "accumulation_steps=2",
        BATCHES.replace("{images}", "16").replace(
            "{now}", "8 batch_size, 1 processes, 2 accumulation_steps"
        ),
    ),
]


@pytest.mark.parametrize(("had", "given", "line"), ROWS, ids=[row[1] for row in ROWS])
def test_the_line_is(scenes_config, scenes, tmp_path, had, given, line):
    run = tmp_path / "run"
    config = load_config(scenes_config, had, {"output_dir": str(run)})
    leave_an_epoch(config)
    assert starting_point(config)["epoch"] == 0
    with pytest.raises(UserError) as error:
        starting_point(load_config(scenes_config, [*had, given], {"output_dir": str(run)}))
    assert str(error.value) == line.replace("{run}", str(run)).replace("{data}", str(scenes))
    assert (run / "checkpoint_00.pth").exists()  # nothing is lost
