"""Whether a run resumes, and with which settings it may: the roles of keys decide."""

import os

import pytest
import torch

from captioning import train
from captioning.config import Config, config_class, keys_of, load_config
from captioning.config.keys import ROLES, roles_of
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.training.checkpointing import resume_content
from captioning.training.output_folder import OutputFolder
from tests.processes import Processes
from tests.programs import raises_line
from tests.tiny import leave_an_epoch

KEYS = config_class("blip")  # with the options of all metrics


def resumed(config, num_items=24):
    return resume_content(config, OutputFolder(config.output_dir), num_items)


@pytest.mark.slow
def test_rank_0_decides_where_all_begin(scenes_config, tmp_path):
    """Two processes have separate folders; only rank 0's has a checkpoint."""

    def in_its_own(arguments):
        return train.main([*arguments, "--output_dir", str(tmp_path / os.environ["RANK"])])

    given = ["--config", str(scenes_config), "batch_size=4"]
    given.append("lr_schedule=exponential")  # allows more epochs
    for epochs in (1, 2):
        run = Processes(in_its_own, [*given, f"max_epoch={epochs}"], tmp_path / "output", 2)
        assert run.wait() == [0, 0], run.said()
    assert f"resuming from {tmp_path / '0' / 'checkpoint_00.pth'}" in run.said()
    assert not list(tmp_path.glob("1/*.pth"))


@pytest.fixture
def at(scenes_config, tmp_path):
    """Return a function that loads the configuration of a run in the test's folder."""
    return lambda *overrides: load_config(scenes_config, overrides, {"output_dir": str(tmp_path)})


def test_every_key_has_one_role_and_every_role_a_key():
    for keys in (Config, config_class()):
        assert set(roles_of(keys)) == set(keys.model_fields)
        named = [key for role in ROLES for key in keys_of(role, keys)]
        assert sorted(named) == sorted(keys.model_fields)
    assert all(keys_of(role, config_class()) for role in ROLES)


@pytest.fixture
def with_another(at):
    """Return a function that resumes a run after a key got a value which differs."""

    def resume(key):
        config = KEYS(**at("max_epoch=2").model_dump())
        leave_an_epoch(config)
        value = getattr(config, key)
        number = value in (None, True, False) and value != 1
        # The value of `reward` is read, so that it has to be valid.
        value = {"facts": 1.0} if key == "reward" else 1 if number else "another"
        return resumed(config.model_copy(update={key: value}))

    return resume


MAY_CHANGE = ("speed", "upkeep", "data", "generation", "scoring", "machine")


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize(
    "key", [*keys_of("run", KEYS), *(r for m in MAY_CHANGE for r in keys_of(m, KEYS))]
)
def test_another_value_of_a_run_key_is_another_run_and_of_the_others_is_not(with_another, key):
    if key == "output_dir":  # chooses the run
        return
    # skip_bad_images may be turned on: the run met no bad image. See below for off.
    if key in keys_of("run", KEYS) and key != "skip_bad_images":
        with pytest.raises(
            UserError, match=f"had other settings \\({key} was .*, is .*set the old"
        ):
            with_another(key)
    else:
        assert with_another(key)["epoch"] == 0


def test_a_run_of_before_a_key_existed_goes_on(at):
    leave_an_epoch(at(), without="augmentation")
    assert resumed(at())["epoch"] == 0
    with pytest.raises(UserError, match="augmentation was 'blip', is 'none'"):
        resumed(at("augmentation=none"))
    leave_an_epoch(at(), without="exif")  # of a version that turned no photo
    assert resumed(at("exif=false"))["epoch"] == 0
    with raises_line(UserError, "had other settings (exif was False, is True)"):
        resumed(at())


def test_a_run_with_a_key_that_is_gone_goes_on_if_the_key_had_no_effect(at, tmp_path):
    leave_an_epoch(at())
    path = tmp_path / "checkpoint_00.pth"
    content = torch.load(path)
    content["config"] |= {"resume": "auto", "checkpoint_format": "whole", "reward_kl": 0.0}
    torch.save(content, path)
    assert resumed(at())["epoch"] == 0
    content["config"]["reward_kl"] = 0.2
    torch.save(content, path)
    line = "reward_kl is 0.2, which commit f445f286 was the last to support): finish it with"
    with raises_line(UserError, line):
        resumed(at())


def test_a_run_may_get_other_parts_of_a_step_and_more_epochs_of_a_schedule_without_length(at):
    leave_an_epoch(at("lr_schedule=plateau", "metrics=[coco]"))
    more = ["max_epoch=9", "batch_size=4", "accumulation_steps=2"]
    assert resumed(at("lr_schedule=plateau", "metrics=[coco]", *more))["epoch"] == 0


def test_more_epochs_than_asked_and_other_data_are_refused(at):
    leave_an_epoch(at(), epoch=2)
    assert resumed(at())["epoch"] == 2
    with pytest.raises(UserError, match="; max_epoch is 2, but 3 epochs have begun"):
        resumed(at("max_epoch=2"))
    with pytest.raises(UserError, match=r"it had 24 training items, now there are 13\); set the"):
        resumed(at(), num_items=13)


def test_changed_settings_of_captions_and_scores_are_named(at, capsys):
    leave_an_epoch(at())
    assert resumed(at("log_every=7"))["epoch"] == 0 and capsys.readouterr().err == ""
    assert resumed(at("num_beams=7", "language=zh", "val_file=a.json", "log_every=7"))
    changes = (
        "num_beams was 3, is 7; language was 'en', is 'zh'; val_file was 'scenes_val.json', is"
    )
    assert f"had other settings, which finished epochs keep: {changes}" in capsys.readouterr().err


def test_options_of_a_reward_are_the_runs(at):
    leave_an_epoch(at("reward={clipscore: 1}"))
    with pytest.raises(UserError, match=r"other settings \(clip_model was .*'another'\)"):
        resumed(at("reward={clipscore: 1}", "clip_model=another"))
    leave_an_epoch(at("reward={cider: 1}"))
    assert resumed(at("reward={cider: 1}", "clip_model=another"))["epoch"] == 0


def test_a_run_goes_on_with_another_signature_of_an_address(at):
    address = "pretrained=https://me:{0}@host/{1}.pth?X-Signature={0}"
    leave_an_epoch(at(address.format("FIRST", "a")))
    assert "FIRST" not in str(resumed(at(address.format("SECOND", "a"))))
    with pytest.raises(UserError, match=r"pretrained was 'https://host/a\.pth'") as error:
        resumed(at(address.format("SECOND", "b")))
    assert "FIRST" not in str(error.value) and "SECOND" not in str(error.value)


ROWS = [  # the settings of the run, other settings, a part of the error line
    ([], ["tokenizer=other.txt"], "had other settings (tokenizer was '"),
    (["skip_bad_images=true"], ["skip_bad_images=false"], "(skip_bad_images was True, is False)"),
    *(
        (
            [f"lr_schedule={n}"],
            ["max_epoch=4"],
            f"(max_epoch was 3, is 4: learning rates of lr_schedule {n} ",
        )
        for n in ("cosine", "cosine_steps", "cosine_restarts")
    ),
    (["bucket_batches=true"], ["batch_size=2", "accumulation_steps=2"], "images per step were "),
    (
        *([], ["accumulation_steps=2"]),
        "images per step were the product of {'batch_size': 8, 'processes': 1, "
        "'accumulation_steps': 1}, are that of {'batch_size': 8, 'processes': 2, 'accum",
    ),
]


@pytest.mark.parametrize(("had", "given", "part"), ROWS)
def test_a_setting_that_would_make_it_another_run_is_refused_in_one_line(
    at, tmp_path, monkeypatch, had, given, part
):
    leave_an_epoch(at(*had))
    if part.startswith("images"):
        monkeypatch.setattr(distributed, "world_size", lambda: 2)
    with raises_line(UserError, part, start=f"the run in {tmp_path} "):
        resumed(at(*had, *given))
    assert (tmp_path / "checkpoint_00.pth").exists()  # nothing is lost
