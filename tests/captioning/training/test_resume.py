"""Whether a run resumes, and with which settings it may: the roles of keys decide."""

import pytest
import torch

from captioning.config import Config, keys_of, load_config
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.training.checkpointing import resume_content
from captioning.training.output_folder import OutputFolder
from tests.programs import raises_line
from tests.tiny import leave_an_epoch


def resumed(config, num_items=24):
    return resume_content(config, OutputFolder(config.output_dir), num_items)


@pytest.fixture
def at(scenes_config, tmp_path):
    return lambda *overrides: load_config(scenes_config, overrides, {"output_dir": str(tmp_path)})


MAY_CHANGE = ("speed", "upkeep", "data", "generation", "scoring", "machine")
# output_dir chooses the run; skip_bad_images may be turned on, see SETTINGS for off.
RUN_KEYS = sorted({*keys_of("run")} - {"skip_bad_images"})
FREE_KEYS = sorted({key for role in MAY_CHANGE for key in keys_of(role)} - {"output_dir"})


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("key", [*RUN_KEYS, *FREE_KEYS, "skip_bad_images"])
def test_another_value_of_a_run_key_is_another_run_and_of_the_others_is_not(at, key):
    config = Config(**at("max_epoch=2").model_dump())
    leave_an_epoch(config)
    value = getattr(config, key)
    number = value in (None, True, False) and value != 1
    # The value of `reward` is read, so that it has to be valid.
    value = {"facts": 1.0} if key == "reward" else 1 if number else "another"
    config = config.model_copy(update={key: value})
    if key in RUN_KEYS:
        with raises_line(UserError, f"had other settings ({key} was ", "; set the old ones"):
            resumed(config)
    else:
        assert resumed(config)["epoch"] == 0


BUCKETS, HALVES = ["bucket_batches=true"], ["batch_size=2", "accumulation_steps=2"]
PLATEAU = ["lr_schedule=plateau", "metrics=[coco]"]
CLIPSCORE, CIDER = "reward={clipscore: 1}", "reward={cider: 1}"
SETTINGS = [  # of the run; others on 2 processes; a part of the error line, None if it resumes
    ([], ["batch_size=4", "tokenizer=other.txt"], "had other settings (tokenizer was '"),
    (["skip_bad_images=true"], ["batch_size=4"], "(skip_bad_images was True, is False)"),
    *(
        ([name], ["batch_size=4", name, "max_epoch=4"], "(max_epoch was 3, is 4)")
        for name in ("seed=42", "lr_schedule=cosine_steps", "lr_schedule=cosine_restarts")
    ),
    (PLATEAU, [*PLATEAU, *HALVES, "max_epoch=9"], None),
    ([], [], "images per step were the product of {'batch_size': 8, 'processes': 1, 'accum"),
    (BUCKETS, [*BUCKETS, *HALVES], "images per step were "),
    ([CLIPSCORE], [CLIPSCORE, "batch_size=4", "clip_model=another"], "(clip_model was"),
    ([CIDER], [CIDER, "batch_size=4", "clip_model=another"], None),
]


@pytest.mark.parametrize(("had", "given", "part"), SETTINGS)
def test_a_setting_of_another_run_is_one_line(at, tmp_path, monkeypatch, had, given, part):
    leave_an_epoch(at(*had))
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    if part is None:
        assert resumed(at(*given))["epoch"] == 0
        return
    with raises_line(UserError, part, start=f"the run in {tmp_path} "):
        resumed(at(*given))
    assert (tmp_path / "checkpoint_00.pth").exists()  # nothing is lost


def test_more_epochs_than_asked_and_other_data_are_refused(at):
    leave_an_epoch(at(), epoch=2)
    with raises_line(UserError, "; max_epoch is 2, but 3 epochs have begun"):
        resumed(at("max_epoch=2"))
    with raises_line(UserError, "it had 24 training items, now there are 13); set the"):
        resumed(at(), num_items=13)


def test_a_run_of_an_earlier_version_goes_on_if_its_keys_mean_the_same(at, tmp_path):
    leave_an_epoch(at(), without="augmentation")
    with raises_line(UserError, "augmentation was 'blip', is 'none'"):
        resumed(at("augmentation=none"))
    leave_an_epoch(at(), without="exif")  # of a version that turned no photo
    assert resumed(at("exif=false"))["epoch"] == 0
    with raises_line(UserError, "had other settings (exif was False, is True)"):
        resumed(at())
    leave_an_epoch(at())
    path = tmp_path / "checkpoint_00.pth"
    content = torch.load(path)
    for former in (0.0, 0.2):
        content["config"]["reward_kl"] = former  # a key that is gone
        torch.save(content, path)
        if not former:  # it had no effect
            assert resumed(at())["epoch"] == 0
    line = "reward_kl is 0.2, which commit f445f286 was the last to support): finish it with"
    with raises_line(UserError, line):
        resumed(at())


def test_a_run_goes_on_with_another_signature_of_an_address(at):
    address = "pretrained=https://me:{0}@host/{1}.pth?X-Signature={0}"
    leave_an_epoch(at(address.format("FIRST", "a")))
    assert "FIRST" not in str(resumed(at(address.format("SECOND", "a"))))
    with raises_line(UserError, "pretrained was 'https://host/a.pth'") as error:
        resumed(at(address.format("SECOND", "b")))
    assert "FIRST" not in str(error.value) and "SECOND" not in str(error.value)
