"""The figures of the report, and the cost of each token, against formulas in float64."""

import re

import pytest
import torch
from PIL import Image

from captioning.metrics.intervals import Estimate
from captioning.report import tokens as token_costs
from captioning.report.comparison import Comparison, Row, read_comparison
from captioning.report.figures import assign_styles, draw_curves, draw_lengths
from captioning.report.picture import load_picture
from captioning.report.plane import draw_plane
from captioning.report.runs import read_runs


@pytest.mark.usefixtures("undrawn")
def test_the_axes_are_chosen_by_the_metrics_of_two_rows():
    for names, axes in [
        ("true_facts wrong_facts CIDEr", "facts that are right (%) against true facts a caption"),
        ("cap_len CIDEr", "CIDEr against words a caption: $a at 20.00, 20.00"),
        ("cap_len CLIPScore CIDEr", "CLIPScore against words a caption"),
        ("cap_len CHAIRi CIDEr", "there (%) against words a caption: $a at 20.00, 80.00; b at"),
    ]:
        metrics = {name: Estimate(20.0, 15.0, 30.0, 5) for name in names.split()}
        rows = [Row(label, "mle", {}, metrics) for label in ("$a", "b")]
        assert axes in draw_plane([*rows, Row("without", "mle", {}, {})])
        assert draw_plane(rows[:1]) is None


def test_the_plane_is_a_file_with_a_legend_error_bars_and_a_line():
    rows = [
        Row(label, kind, {}, {"cap_len": Estimate(n, *interval), "CIDEr": Estimate(2.0 * n)})
        for n, label, kind, interval in [(1, "one", "mle", ()), (2, "two", "smile", (1.0, 4.0))]
    ]
    drawing = draw_plane(rows, {"joined": [*rows, Row("without", "x", {}, {})]})
    assert drawing.startswith("<svg ") and 'xmlns="http://www.w3.org/2000/svg"' in drawing
    colours = (style.colour for style in assign_styles(["mle", "smile"]))
    for text in ("<!-- one -->", "<!-- two -->", "<!-- joined -->", *colours):
        assert text in drawing
    assert "without" not in drawing and drawing == draw_plane(rows, {"joined": rows})


def test_each_objective_and_the_validation_have_a_figure_of_curves(runs, make_run):
    titles, drawings = zip(*draw_curves(read_runs(runs, "test")))
    assert titles == ("MLE loss in training", "SMILE loss in training", "Validation: CIDEr")
    assert "MLE+SMILE 0.3:0.7 ends at 0.500" in drawings[2]
    assert "SMILE ends" not in drawings[0].replace("MLE+SMILE", "")
    line = '{{"event": "step", "step": {}, "reward": {}, "length": 4.0, "facts": 1.0}}\n'
    run = make_run("scst", None, log=False, reward={"facts": 1.0, "cider": 0.5})
    (run / "log.jsonl").write_text(line.format(10, 5) + line.format(20, 7) + line.format(20, 10))
    (read,) = read_runs([run], "test")
    assert (read.kind, read.label) == ("reward", "reward true facts+CIDEr-D 1:0.5")
    titles, drawings = zip(*draw_curves([read]))
    assert titles == ("Reward in training", "Length in training")
    assert "ends at 10.000" in drawings[0]  # the resumed run's value of step 20


def test_the_lengths_have_their_means_and_the_figure_ids_of_its_own():
    rows = [Row("Humans", "humans", {1: "a b", 2: "a b c d"}, {}), Row("MLE", "mle", {1: "a"}, {})]
    drawing = draw_lengths(rows)
    assert "Humans, mean 3.0; MLE, mean 1.0" in drawing
    ids = re.findall(r'\bid="([^"]+)"', drawing)
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', drawing)
    assert all(name.startswith("lengths-") for name in ids) and set(used) <= set(ids)


def test_a_picture_is_embedded_in_less_than_100_kb(tmp_path):
    Image.new("RGB", (96, 96)).save(tmp_path / "small.png")
    Image.effect_noise((1200, 900), 90).save(tmp_path / "large.png")
    assert load_picture(tmp_path / "small.png").pixelated
    large = load_picture(tmp_path / "large.png")
    assert large.source.startswith("data:image/jpeg;base64,") and len(large.source) < 100_000
    assert load_picture(tmp_path / "absent.png") is None


@torch.no_grad()
def test_the_costs_of_words_are_those_computed_token_by_token(make_captioner):
    captioner = make_captioner()
    image = torch.randn(1, 3, 48, 48)
    caption = "the man with a red ball and the dogs on a box"
    tokens = token_costs.token_losses(captioner, image, caption)
    labels = "the man with a red ball and the dog -s on a box (end)"
    assert " ".join(token.label for token in tokens) == labels
    ids = captioner.tokenizer.encode([captioner.prompt + caption], 40)
    embedded, prompt = captioner.visual_encoder(image), len(captioner.prompt_ids)
    own = sorted(set(ids[0, prompt:].tolist()))
    for n, token in enumerate(tokens, prompt):
        scores = captioner.text_decoder.logits(ids[:, :n], embedded)[0, -1].double()
        costs = [(some.logsumexp(0) - scores[ids[0, n]]).item() for some in (scores, scores[own])]
        assert (token.mle, token.smile) == pytest.approx(costs, abs=1e-4)
        best = scores.softmax(0).topk(5)
        for prediction, probability, i in zip(token.predictions, *map(torch.Tensor.tolist, best)):
            assert prediction.probability == pytest.approx(probability, abs=1e-4)
            assert prediction.in_caption == (i in own)
            piece = captioner.tokenizer.token(i)
            assert prediction.word in (piece, piece.replace("##", "-"), "(end)")
    assert n == ids.size(1) - 1


def test_the_word_that_smile_spares_most_is_told():
    """Not the first word, which first-token MLE charges."""
    costs = [("one", False, 9.0, 0.0), ("crimson", False, 3.0, 0.5)]
    costs += [("navy", False, 2.0, 0.2), ("near", True, 5.0, 1.0)]
    tokens = []
    for word, is_known, *both in costs:
        best = token_costs.Prediction(word, 0.5, is_known)
        tokens.append(token_costs.Token("red", [best], *both))
    figure = token_costs.TokenFigure(None, "", None, tokens)
    assert figure.spared == (2, tokens[1])
    assert figure._replace(tokens=tokens[:1]).spared is None


def test_words_are_shown_of_ten_words_and_of_mle_if_it_can_be_loaded(runs):
    references = {1: ["a b", "a " * 13], 2: ["a b c", "b " * 9], 3: ["c " * 9]}
    comparison = Comparison("test", [], [], 0, [], references=references)
    assert token_costs.choose_caption(comparison) == (2, "b " * 9)
    for content, label in (None, "MLE"), ({}, "SMILE"):
        if content is not None:
            torch.save({"model": content}, runs[0] / "checkpoint_best.pth")
        assert token_costs.token_figure(read_comparison([runs[1], runs[0]])).run.label == label
