"""The study on real photographs: the parts of the photos, the judge, differences over seeds; and
all of it, on a small data set of scenes."""

import json

import numpy as np
import pytest
import torch

from benchmarks.real_photos import judge, parts, summary
from captioning.config import load_config
from captioning.data import read_annotations, read_split
from tests.programs import refused, run_program

TINY = [
    *("model=lstm", "encoder=shufflenet_v2_x0_5", "encoder_weights=none", "encoder_lr=1e-3"),
    *("image_size=32", "embed_dim=16", "hidden_dim=16", "max_epoch=1", "batch_size=8"),
    *("prompt=''", "metrics=[length, diversity]", "init_lr=1e-2"),
]


def test_a_judge_has_seen_no_photo_of_its_captioner(scenes_config, tmp_path):
    """Every training photo is one's or the other's, the judge's in turn; and never a test photo."""
    config = load_config(scenes_config, TINY)
    training = {sample.image_id for sample in read_split(config, "train")}
    validation = {sample.image_id for sample in read_split(config, "val")}
    judged = []
    for seed in range(4):
        files = parts.write_parts(config, seed, tmp_path)
        own, others = (
            {sample.image_id for sample in read_annotations(files[name])}
            for name in (parts.START, parts.JUDGE)
        )
        assert not own & others and own <= training and others - training == validation
        assert own | others == training | validation and len(own) == 16
        judged.append(frozenset(others - validation))
    assert frozenset.union(*judged[:3]) == training and judged[3] == judged[0]


class Judge(torch.nn.Module):
    """Finds the words of a caption the likelier the more the photo's number is theirs."""

    def predictions(self, image, captions):
        numbers = image[:, 0, 0, 0].round()
        words = torch.tensor([[float(text.split()[0]) for text in group] for group in captions])
        near = -(numbers.unsqueeze(1) - words).abs().flatten()  # (R,)
        logits = torch.stack([near, torch.zeros_like(near)], 1).unsqueeze(1).repeat(1, 2, 1)
        return logits, torch.tensor([[0, -100]]).expand(len(near), -1)


@pytest.mark.parametrize("crowd", [4, 7])
def test_a_photos_place_is_after_those_found_likelier_and_amid_ties(
    scenes_config, monkeypatch, crowd
):
    """Photo n has the value n; caption n says n, but for two that say another number."""
    config = load_config(scenes_config, TINY)
    samples = read_split(config, "test")
    assert len(samples) == 7
    numbers = {sample.image_id: n for n, sample in enumerate(samples)}

    def numbered(photos, config):
        images = [torch.full((3, 2, 2), float(numbers[photo.image_id])) for photo in photos]
        return [{"image": torch.stack(images)}], 1

    monkeypatch.setattr(judge, "build_image_loader", numbered)
    monkeypatch.setattr(judge, "GROUP_SIZE", crowd)
    stated = {**{n: n for n in range(7)}, 0: 6, 3: 100}
    captions = {str(image_id): f"{stated[n]} of them" for image_id, n in numbers.items()}
    found = judge.photo_ranks(Judge(), config, samples, captions)
    assert len(found) == crowd
    tried = {numbers[image_id] for image_id in numbers if str(image_id) in found}
    for image_id, n in numbers.items():
        if n in tried:
            distance = [abs(other - stated[n]) for other in tried]
            before = sum(d < abs(n - stated[n]) for d in distance)
            ties = sum(d == abs(n - stated[n]) for d in distance) - 1
            assert found[str(image_id)] == 1 + before + ties / 2


def test_differences_are_of_the_same_images_and_seeds():
    random = np.random.default_rng(0)
    shared = random.normal(size=40) * 100
    first = [{"a": shared + random.normal(size=40), "b": shared} for _ in range(3)]
    second = [{"a": each["a"] + 2 + 0.1 * random.normal(size=40)} for each in first]
    second[0]["a"][:3] = np.nan
    found = summary.paired_differences(first, second)
    assert list(found) == ["a"] and found["a"].n == 37
    assert 1.9 < found["a"].low < 2 < found["a"].high < 2.1


@pytest.mark.soak
def test_all_of_it_and_again(scenes_config, tmp_path, monkeypatch):
    """Two objectives from one start, scored and judged; finished runs are not repeated.

    A line for each decoding has the mean over seeds of photos found.
    """
    command = ["benchmarks.real_photos", "--config", scenes_config, "--output_dir", tmp_path, *TINY]
    command += ["--seeds", "2", "--objectives", "mle,focal", "--decodings", "greedy,judge"]
    code, table, _ = run_program(*command)
    lines = table.splitlines()
    assert code == 0 and "| Finds its photo, % |" in lines[0] and "Length, words" in lines[0]
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| Humans", "| MLE", "| focal"]
    assert lines[6].startswith("Photo: ") and lines[8].startswith("MLE: ")
    content = json.loads((tmp_path / "results.json").read_text())
    for label in ("Humans", "MLE", "focal"):
        scores, seeds = content["scores"][label], content["seeds"][label]
        assert 0 <= scores["found"]["value"] <= 100
        assert scores["found"]["value"] == pytest.approx(sum(seeds["found"]) / 2)
    assert scores.keys() == seeds.keys() > {"cap_len", "found"}
    assert {"cap_len", "found"} <= content["differences_from_mle"]["focal"].keys()
    for name in ("plane.svg", "report.html", "table.md"):
        assert (tmp_path / name).stat().st_size
    decodings = (tmp_path / "decodings.md").read_text()
    heading, _, *rows = decodings.partition("\n\nfocal")[0].splitlines()[2:]
    column = heading.split(" | ").index("Finds its photo, %")
    assert table.endswith(decodings) and len(rows) == 2
    for row, title, name in zip(rows, ("| beam 3", "| greedy"), ("beam3", "greedy")):
        hits = []
        for seed in ("seed0", "seed1"):
            path = tmp_path / seed / "judge/result" / f"judged_mle_decodings_{name}.json"
            hits += [place == 1 for place in json.loads(path.read_text())["places"].values()]
        cells = row.split(" | ")
        assert cells[0] == title
        assert cells[column].startswith(f"{100 * sum(hits) / len(hits):.1f} (")
    monkeypatch.setattr(judge, "photo_ranks", None)
    shown = run_program(*command)
    assert shown[:2] == (0, table) and "begun" not in shown.err
    shown = run_program(*command, "init_lr=0.5")
    assert shown.code == 2 and "had other settings (init_lr was 0.01, is 0.5)" in shown.err


def test_no_seed_or_an_unknown_objective_is_one_line(scenes_config, tmp_path):
    command = ["benchmarks.real_photos", "--config", scenes_config, "--output_dir", tmp_path, *TINY]
    refused(*command, "--seeds", "0", part="error: --seeds is 0; it must be 1 or more")
    line = "error: 'reward' is not an objective; give some of mle, smile"
    refused(*command, "--objectives", "mle,reward", part=line)
