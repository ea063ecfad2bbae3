"""A sweep's runs: published ones, each once and valid; its decodings and the choice of weights."""

import json
import os
from types import SimpleNamespace

import pytest
import torch

from captioning.config import config_class, load_config
from captioning.runtime.errors import UserError
from captioning.sweep.decoding_table import write_decodings
from captioning.sweep.decodings import (
    DECODINGS,
    applicable_decodings,
    count_tokens,
    decoding_folder,
    drop_shares,
    with_drop_shares,
)
from captioning.sweep.runs import choose_judge
from captioning.sweep.variants import ABLATIONS, mle_share, plan, read_names, with_seeds
from decoding import DecodingSettings
from smile import OBJECTIVES
from tests.programs import refused, run_program


@pytest.fixture
def settings_of(scenes_config):
    return lambda variant: load_config(scenes_config, variant.overrides)


def test_mixtures_are_run_once_in_the_order_of_their_weights(settings_of):
    variants = plan([1, 0.01, 0, 0.5, 0.01])
    assert [variant.name for variant in variants] == ["smile", "mle0.01", "mle0.5", "mle"]
    assert [variant.weight for variant in variants] == [0, 0.01, 0.5, 1]
    objectives = [settings_of(variant).objective for variant in variants]
    mixed = [{"mle": 0.01, "smile": 0.99}, {"mle": 0.5, "smile": 0.5}]
    assert objectives == ["smile", *mixed, "mle"]
    assert [mle_share(settings_of(variant)) for variant in variants] == [0, 0.01, 0.5, 1]


def test_the_ablations_are_the_published_ones(settings_of):
    def told(name):
        found = []
        for variant in plan(ablations=[name], sizes=[3, 10]):
            config = settings_of(variant)
            keys = (config.first_token_mle, config.first_token_shift, config.random_subset_size)
            found.append((config.objective, *keys))
        return found

    usual, drawn = (True, False, 10), (False, False, 10)
    assert told("objective") == [
        ("mle", *usual),
        ("smile", *usual),
        ("random", *drawn),
        ("reverse", *usual),
        ({"reverse": 0.5, "mle": 0.5}, *usual),
    ]
    assert told("first_token_mle") == [("smile", *usual), ("smile", False, False, 10)]
    assert told("first_token_shift") == [("smile", *usual), ("smile", False, True, 10)]
    assert told("subset_size") == [("random", False, False, 3), ("random", *drawn)]


def test_what_two_ablations_share_is_run_once(settings_of):
    variants = plan([0, 0.01, 1], ablations=ABLATIONS)
    told = [variant.name for variant in variants]
    assert len(told) == len(set(told)) == 10
    assert len({str(settings_of(variant)) for variant in variants}) == 10
    assert told[:3] == ["smile", "mle0.01", "mle"]  # mixtures first
    assert [variant.weight is None for variant in variants] == [False] * 3 + [True] * 7


@pytest.mark.parametrize(
    ("objective", "share"),
    [("random", None), ("{mle: 1, reverse: 1}", None), ("{mle: 1, smile: 3}", 0.25)],
)
def test_the_share_of_mle_is_its_weight_among_mle_and_smile(scenes_config, objective, share):
    assert mle_share(load_config(scenes_config, [f"objective={objective}"])) == share


def test_every_objective_is_compared_once_alone_and_some_mixtures_are(settings_of):
    variants = plan(objectives=read_names("all", OBJECTIVES, "an objective"))
    found = [settings_of(variant).build_objective().weights for variant in variants]
    assert [w for w in found if len(w) == 1] == [
        {name: 1.0} for name in ("smile", "mle", *OBJECTIVES[2:])
    ]
    mixed = [w for w in found if len(w) > 1]
    assert mixed == [{"mle": m, "smile": 1 - m} for m in (0.01, 0.1, 0.5)]
    assert len({variant.name for variant in variants}) == len(variants)
    some = read_names("focal,mle,focal", OBJECTIVES, "an objective")
    assert [v.name for v in plan(objectives=some)] == ["mle", "focal"]
    with pytest.raises(UserError, match="'focl' is not an objective; give some of mle, smile"):
        read_names("mle,focl", OBJECTIVES, "an objective")


def test_seeds_are_runs_of_their_own(settings_of):
    variants = plan(objectives=["mle", "gem"])
    assert with_seeds(variants, 1) == variants
    seeded = with_seeds(variants, 3)
    assert [v.name for v in seeded][:3] == ["mle_seed0", "gem_seed0", "mle_seed1"]
    assert [settings_of(v).seed for v in seeded] == [0, 0, 1, 1, 2, 2]
    assert {v.label for v in seeded} == {v.label for v in variants}


def test_every_decoding_is_a_possible_configuration(tiny_config):
    for decoding in DECODINGS.values():
        keys = [f"{key}={value}" for key, value in {**decoding.keys, "rerank_judge": "a"}.items()]
        config = load_config(tiny_config, [key.replace("True", "true") for key in keys])
        assert decoding.keys.items() <= config.model_dump().items()


def test_guidance_adds_captioners_trained_for_it():
    assert drop_shares(["beam3", "guidance2", "greedy"]) == [0.0, 0.2]
    variants = with_drop_shares(plan([1.0]), [0.0, 0.2])
    assert [variant.name for variant in variants] == ["mle", "mle_dropped"]
    assert [v.overrides[-1] for v in variants] == ["drop_image=0", "drop_image=0.2"]
    assert drop_shares(["greedy"]) == [0.0]
    names = list(DECODINGS)
    whole, dropped = (
        applicable_decodings(SimpleNamespace(drop_image=share), names) for share in (0.0, 0.2)
    )
    assert whole == names and {"beam3", "guidance3", "mmi1"} < set(dropped) < set(whole)


def test_the_judge_is_mle_of_another_seed():
    variants = with_seeds(with_drop_shares(plan([0.0, 1.0]), [0.0]), 12)
    by_name = {variant.name: variant for variant in variants}
    judges = [choose_judge(by_name[f"smile_seed{seed}"], variants) for seed in (0, 9, 10, 11)]
    assert judges == ["mle_seed1", "mle_seed10", "mle_seed11", "mle_seed0"]


def test_tokens_of_a_decoding_are_counted(make_captioner):
    """Greedily the prompt and each word are read once, whatever the copy of the captioner."""
    captioner = make_captioner()
    settings = DecodingSettings(num_beams=1, max_length=9, min_length=9)
    with count_tokens(captioner) as counts:
        copy = captioner.for_inference(torch.float32)
        copy.generate_details(torch.randn(2, 3, 48, 48), settings)
    assert sum(counts) == 2 * (9 - 1)  # the last word is not read
    captioner.generate_details(torch.randn(2, 3, 48, 48), settings)
    assert sum(counts) == 2 * (9 - 1)


@pytest.mark.parametrize("seeds", [[], ["--seeds", "2", "--mle", "0"]])
def test_an_impossible_judge_is_refused_before_training(tiny_config, tmp_path, seeds):
    command = ["captioning.sweep", tiny_config, "--mle", "1", "--output_dir", tmp_path / "sweep"]
    command += ["--decodings", "judge", *seeds]
    refused(*command, part="needs runs of MLE with two seeds or more")
    assert not (tmp_path / "sweep").exists()


@pytest.mark.slow
def test_a_sweep_decodes_each_run_once(tiny_config, in_process, tmp_path):
    folder = tmp_path / "sweep"
    command = ["captioning.sweep", tiny_config, "--mle", "1", "--output_dir", folder]
    command += ["--decodings", "guidance1.5,mmi0.5,mmi1"]
    code, text, _ = run_program(*command)
    assert code == 0 and text.count("| beam 3 |") == text.count("| guidance 1.5 * |") == 2
    assert text.count("20 samples, mutual information") == 4 and text.count("* |") == 4
    assert (folder / "decodings.svg").exists() and (folder / "decodings.md").read_text() in text
    costs = list(folder.rglob("*_cost.json"))
    # Weights are chosen on the validation split, which beam search does not caption.
    assert len(costs) == 2 * (1 + 2 * 3)
    reranked = json.loads((decoding_folder(folder / "mle", "mmi1") / "test_cost.json").read_text())
    plain = json.loads((decoding_folder(folder / "mle", "beam3") / "test_cost.json").read_text())
    assert reranked["tokens"] > 4 * plain["tokens"] > 0
    times = [path.stat().st_mtime_ns for path in costs]
    costs[0].unlink()
    assert run_program(*command).code == 0
    again = [path.stat().st_mtime_ns for path in costs]
    assert again[1:] == times[1:] and again[0] > times[0]
    # Other weights are captioned again.
    os.utime(folder / "mle" / "checkpoint_best.pth")
    assert run_program(*command).code == 0
    last = [path.stat().st_mtime_ns for path in costs]
    assert all(
        (new > old) == ("mle_dropped" not in str(path))
        for path, new, old in zip(costs, last, again)
    )


def test_weights_are_chosen_by_validation_scores(tmp_path):
    """The weight that is best on the test split is not chosen."""
    names = ["beam3", "mmi0.25", "mmi1"]
    found = {"mmi0.25": {"val": 9, "test": 1}, "mmi1": {"val": 5, "test": 7}}
    for name in names:
        for split in ("val", "test"):
            value = found.get(name, {}).get(split, 0)
            folder = decoding_folder(tmp_path / "mle", name) / "result" / split
            folder.mkdir(parents=True)
            scores = {"scene_R@1": {"value": value, "low": value, "high": value, "n": 5}}
            (folder / "metrics.json").write_text(json.dumps({"metrics": scores}))
            cost = {"tokens": 10, "time": 1 + value}
            (folder.parents[1] / f"{split}_cost.json").write_text(json.dumps(cost))
    config = config_class()(image_root="a", ann_root="b", output_dir="c")
    sweep = SimpleNamespace(folder=tmp_path, variants=plan([1.0]), scored={"mle": config})
    text = write_decodings([sweep], names, tmp_path)
    chosen = [line.split(" | ")[0] for line in text.splitlines() if " * |" in line]
    assert chosen == ["| 20 samples, mutual information 0.25 *"]
    assert "| 20 samples, mutual information 1 | 7.0 (7.0-7.0) | 10 | 8.0 |" in text
