"""Intervals, and differences of two programs' captions, against theory and resampling."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from captioning.metrics.base import Scores
from captioning.metrics.intervals import (
    RESAMPLES,
    Estimate,
    mean_estimate,
    median_estimate,
    ratio_estimate,
)
from captioning.metrics.scoring import Difference, compare, format_comparison, p_value, same_images
from captioning.runtime.errors import UserError
from tests.programs import refused, run_program


def scores(**columns):
    return Scores({}, columns)


def about(*values):
    return pytest.approx(values, rel=0.15)  # the ends are percentiles of 1000 draws


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.2, -0.15])
def test_p_is_that_of_the_normal_approximation(shift):
    values = np.random.default_rng(1).normal(size=400)
    values += shift - values.mean()
    z = values.mean() / (values.std() / math.sqrt(400))
    expected = math.erfc(abs(z) / math.sqrt(2))
    assert p_value(values) == pytest.approx(expected, abs=0.03)


def test_pairs_see_what_two_intervals_do_not():
    random = np.random.default_rng(2)
    images = random.normal(50, 20, size=200)  # easy and hard ones, the same for both
    first, second = images + random.normal(0, 1, 200), images + 1 + random.normal(0, 1, 200)
    found = compare(scores(CIDEr=first), scores(CIDEr=second))["CIDEr"]
    assert found.difference == pytest.approx(second.mean() - first.mean())
    assert 0 < found.low < found.difference < found.high
    assert found.p == pytest.approx(1 / (1 + RESAMPLES)) and found.n == 200
    back = compare(scores(CIDEr=second), scores(CIDEr=first))["CIDEr"]
    assert (back.difference, back.p) == pytest.approx((-found.difference, found.p))


def test_equal_captions_differ_by_0_and_a_single_image_has_no_interval():
    same = scores(CIDEr=[1.0, 2.0, 0.0])
    assert compare(same, same)["CIDEr"] == Difference(1, 1, 0, 0, 0, 1, 3)
    found = compare(scores(CIDEr=[1.0]), scores(CIDEr=[2.0]))["CIDEr"]
    assert found == Difference(1, 2, 1, None, None, None, 1)


def test_what_a_set_has_alone_is_laid_side_by_side():
    sets = [Scores({"lex_div": Estimate(v, n=3)}, {"cap_len": [2.0]}) for v in (0.4, 1.0)]
    found = compare(*sets)
    assert list(found) == ["cap_len", "lex_div"]
    assert found["lex_div"].difference == pytest.approx(0.6) and found["lex_div"].p is None
    assert format_comparison(found).splitlines()[2].split()[2:] == ["0.400", "1.000", "0.600"]


def test_captions_without_a_value_are_left_out():
    first = scores(PPL=[10.0, None, 30.0, 5.0], rank=[1, 2, 3, 4], ROUGE_L=[None] * 4)
    second = scores(rank=[1, 2, 3, 5], PPL=[11.0, 2.0, None, 6.0], ROUGE_L=[1.0] * 4)
    found = compare(first, second)
    assert list(found) == ["PPL", "rank"]  # the table's order, then what has no column
    assert (found["PPL"].first, found["PPL"].second, found["PPL"].n) == (7.5, 8.5, 2)
    lines = format_comparison(found).splitlines()
    assert lines[1].split()[:4] == ["PPL", "7.5", "8.5", "1.0"]
    assert len(set(map(len, lines[:-1]))) == 1


def test_the_second_takes_the_ids_and_the_order_of_the_first():
    assert same_images({1: "a", 2: "b"}, {"2": "y", "1": ""}) == {1: "", 2: "y"}
    assert list(same_images({2: "a", 1: "b"}, {1: "x", 2: "y"})) == [2, 1]
    with pytest.raises(UserError, match="image_id 2 has a caption in the first file, none in"):
        same_images({1: "a", 2: "b"}, {1: "x"})
    with pytest.raises(UserError, match="image_id 3 has a caption in the second file, none in"):
        same_images({1: "a"}, {1: "x", 3: "y"})


def test_the_program_compares_two_files_in_one_command(tmp_path):
    files = [str(tmp_path / name) for name in ("a.json", "b.json", "references.json")]
    captions = ["a man", "a", "a cat"], ["a man rides", "a dog", "a cat"]
    contents = [[{"image_id": i, "caption": c} for i, c in enumerate(each)] for each in captions]
    for name, content in zip(files, [*contents, {str(i): ["a man"] for i in range(3)}]):
        Path(name).write_text(json.dumps(content))
    rest = ["--references", files.pop(), "--metrics", "length"]
    given = ["--compare", *files, *rest, "--output_dir", tmp_path / "out"]
    code, out, _ = run_program("captioning.evaluate", *given)
    assert code == 0
    assert out.splitlines()[1].split()[:5] == ["Cap.", "Len.", "1.67", "2.33", "0.67"]
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert list(written["differences"]) == ["cap_len"]
    assert written["differences"]["cap_len"]["n"] == 3 and "--compare" in written["command"]
    for wrong in ([*files, *rest], rest, [files[0], "--compare", *files, *rest]):
        refused("captioning.evaluate", *wrong, part="captioning.evaluate: error: ")  # its usage


def test_the_interval_of_a_median_is_that_of_theory():
    found = median_estimate(np.random.default_rng(1).permutation(np.arange(1, 402)))
    half = 1.96 * 401 / (2 * np.sqrt(401))  # of a uniform distribution
    assert (found.value, found.n) == (201, 401)
    assert (201 - found.low, found.high - 201) == about(half, half)


def test_interval_of_a_ratio_is_that_of_naive_resampling():
    random = np.random.default_rng(2)
    below = random.integers(1, 9, 60)
    above = random.binomial(below, 0.3)
    estimate = ratio_estimate(above, below)
    assert estimate.value == above.sum() / below.sum()
    images = np.random.default_rng(3).integers(60, size=(20000, 60))
    expected = np.percentile(above[images].sum(1) / below[images].sum(1), [2.5, 97.5])
    width = expected[1] - expected[0]
    assert [estimate.low, estimate.high] == pytest.approx(expected, abs=0.07 * width)


def test_ends_are_percentiles_of_whole_resamples():
    # Of two images half of the resamples hold both, and a quarter each of them twice.
    assert mean_estimate([0.0, 1.0]) == Estimate(0.5, 0.0, 1.0, 2)
    assert mean_estimate([4.0]) == Estimate(4.0, None, None, 1) == median_estimate([4.0])
    rare = mean_estimate([1.0] + [0.0] * 199)  # P(at most 3 times) = 0.981
    assert (rare.low, rare.high) == (0.0, 3 / 200)
    # A score that is not defined.
    nothing = ratio_estimate([0, 0], [0, 0])
    assert math.isnan(nothing.value) and nothing.low is nothing.high is None
    # A quarter of the resamples hold the first image alone, and are left out.
    assert ratio_estimate([0, 3], [0, 6]) == Estimate(0.5, 0.5, 0.5, 2)
