"""The roles of keys decide which settings a resumed run may change."""

import pytest

from captioning.config import Config, config_class, keys_of, load_config
from captioning.config.keys import ROLES, roles_of
from captioning.report.runs import EXCLUDED_KEYS
from captioning.runtime.errors import UserError
from captioning.sweep.variants import ablation_variants, own_keys, plan
from captioning.training.checkpointing import resume_content
from captioning.training.output_folder import OutputFolder
from tests.tiny import leave_an_epoch


def test_every_key_has_one_role_and_every_role_a_key():
    for keys in (Config, config_class()):
        assert set(roles_of(keys)) == set(keys.model_fields)
        named = [key for role in ROLES for key in keys_of(role, keys)]
        assert sorted(named) == sorted(keys.model_fields)
    assert all(keys_of(role, config_class()) for role in ROLES)


# `resume_content` reads the values of this key, so that it needs a valid one.
ANOTHER = {"reward": {"facts": 1.0}}


@pytest.fixture
def begun(scenes_config, tmp_path):
    """Return a function that resumes a run of one epoch after keys have changed.

    other: a key that gets a value which differs, whatever else it is.
    """

    def resume(overrides=(), other=None, **changed):
        config = load_config(
            scenes_config, ["max_epoch=2", *overrides], {"output_dir": str(tmp_path / "run")}
        )
        config = config_class("blip")(**config.model_dump())  # with the options of all metrics
        leave_an_epoch(config)
        if other:
            value = getattr(config, other)
            number = value in (None, True, False) and value != 1
            changed[other] = ANOTHER.get(other, 1 if number else "another")
        output = OutputFolder(config.output_dir)
        return resume_content(config.model_copy(update=changed), output, num_items=24)

    return resume


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
# skip_bad_images may change in one direction, see below.
@pytest.mark.parametrize(
    "key", [key for key in keys_of("run", config_class("blip")) if key != "skip_bad_images"]
)
def test_another_value_is_another_run(begun, key):
    assert begun()["epoch"] == 0
    with pytest.raises(UserError, match=f"had other settings \\({key} was .*, is .*set the old"):
        begun(other=key)


def test_a_run_that_met_no_bad_image_may_pass_over_those_to_come(begun):
    assert begun(skip_bad_images=True)["epoch"] == 0


MAY_CHANGE = ("speed", "upkeep", "data", "generation", "scoring", "machine")
CHANGING = [
    key
    for role in MAY_CHANGE
    for key in keys_of(role, config_class("blip"))
    if key != "output_dir"  # which chooses the run
]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("key", CHANGING)
def test_a_key_of_these_roles_may_change_as_a_run_goes_on(begun, key):
    assert begun(other=key)["epoch"] == 0


def test_a_run_with_a_schedule_of_no_length_may_get_another(begun):
    """tests/captioning/training/test_resume.py has runs with the exponential schedule."""
    assert begun(["lr_schedule=plateau", "metrics=[coco]"], max_epoch=3)["epoch"] == 0


def test_only_the_images_of_a_step_must_stay(begun):
    assert begun(batch_size=4, accumulation_steps=2)["epoch"] == 0
    with pytest.raises(UserError, match="images per step were 8"):  # loaded at once, and sorted
        begun(["bucket_batches=true"], batch_size=4, accumulation_steps=2)


def test_the_keys_of_sweeps_and_reports_follow_from_the_roles():
    assert set(EXCLUDED_KEYS) == {"output_dir", "device"}
    assert own_keys(plan(ablations=ablation_variants())) == {
        *("objective", "first_token_mle", "first_token_shift", "random_subset_size"),
        "output_dir",
    }
