"""The figures of the report, and the cost of each token, against formulas in float64."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from captioning.metrics.intervals import Estimate
from captioning.report.comparison import Comparison, Row, read_comparison
from captioning.report.figures import assign_styles, draw_curves, draw_lengths, moving_average
from captioning.report.picture import load_picture
from captioning.report.plane import draw_plane
from captioning.report.runs import read_runs
from captioning.report.tokens import (
    Prediction,
    Token,
    TokenFigure,
    choose_caption,
    token_figure,
    token_losses,
)


def test_an_objective_has_its_own_colour_alone_and_beside_others():
    alone = {kind: assign_styles([kind])[0] for kind in ("humans", "mle", "smile", "mixture")}
    together = assign_styles(["humans", "mle", "mle", "mle", "smile", "mixture"])
    assert [together[i] for i in (0, 1, 4, 5)] == list(alone.values())
    assert len({style.colour for style in together}) == len({s.marker for s in together}) == 6


@pytest.mark.usefixtures("undrawn")
def test_the_axes_are_chosen_by_the_metrics_of_two_rows():
    for names, axes in [
        ("true_facts wrong_facts CIDEr", "facts that are right (%) against true facts a caption"),
        ("cap_len CIDEr", "CIDEr against words a caption: $a at 20.00, 20.00"),
        ("cap_len CLIPScore CIDEr", "CLIPScore against words a caption"),
        ("cap_len CHAIRi CIDEr", "named objects that are there (%) against words a caption"),
        ("cap_len CHAIRi", "$a at 20.00, 80.00; b at 20.00, 80.00"),
    ]:
        metrics = {name: Estimate(20.0, 15.0, 30.0, 5) for name in names.split()}
        rows = [Row(label, "mle", {}, metrics) for label in ("$a", "b")]
        drawing = draw_plane([*rows, Row("without", "mle", {}, {})])
        assert axes in drawing and "without" not in drawing
        assert draw_plane(rows[:1]) is None
    metrics = {"cap_len": Estimate(1.0), "true_facts": Estimate(1.0)}
    assert draw_plane([Row("a", "mle", {}, metrics)] * 2) is None


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


def test_a_curve_is_smoothed_over_a_tenth_of_it_and_less_at_its_ends():
    values = np.arange(40.0) ** 2
    smooth = moving_average(values)
    assert smooth[20] == np.mean(values[18:23]) and smooth[0] == np.mean(values[:3])
    assert moving_average(values[:2]).tolist() == [0, 1]


def test_the_lengths_have_their_means_and_the_figure_ids_of_its_own():
    rows = [Row("Humans", "humans", {1: "a b", 2: "a b c d"}, {}), Row("MLE", "mle", {1: "a"}, {})]
    drawing = draw_lengths(rows)
    assert drawing.startswith("<svg ") and "Humans, mean 3.0; MLE, mean 1.0" in drawing
    ids = re.findall(r'\bid="([^"]+)"', drawing)
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', drawing)
    assert all(name.startswith("lengths-") for name in ids) and set(used) <= set(ids)
    assert drawing == draw_lengths(rows)


def test_a_picture_is_embedded_in_less_than_100_kb_or_left_out(tmp_path):
    Image.new("RGB", (96, 96)).save(tmp_path / "small.png")
    Image.effect_noise((1200, 900), 90).save(tmp_path / "large.png")
    assert load_picture(tmp_path / "small.png").pixelated
    large = load_picture(tmp_path / "large.png")
    assert large.source.startswith("data:image/jpeg;base64,") and len(large.source) < 100_000
    assert load_picture(tmp_path / "absent.png") is None and load_picture(None) is None


def naive_costs(captioner, image, caption):
    """(own ids, probabilities, MLE cost, SMILE cost) of each token, one at a time."""
    ids = captioner.tokenizer.encode([captioner.prompt + caption], 40)
    prompt = len(captioner.prompt_ids)
    embedded = captioner.visual_encoder(image)
    own = sorted(set(ids[0, prompt:].tolist()))
    for n in range(prompt, ids.size(1)):
        before = ids[:, :n]
        logits = captioner.text_decoder.logits(before, embedded)
        scores, label = logits[0, -1].double(), ids[0, n]
        costs = [(some.logsumexp(0) - scores[label]).item() for some in (scores, scores[own])]
        yield own, scores.softmax(0).tolist(), *costs


@torch.no_grad()
def test_the_costs_of_words_are_those_computed_token_by_token(make_captioner):
    captioner = make_captioner()
    image = torch.randn(1, 3, 48, 48)
    caption = "the man with a red ball and the dogs on a box"
    tokens = token_losses(captioner, image, caption)
    expected = list(naive_costs(captioner, image, caption))
    labels = "the man with a red ball and the dog -s on a box (end)"
    assert " ".join(token.label for token in tokens) == labels and len(expected) == len(tokens)
    words = captioner.tokenizer.token
    for token, (own, probabilities, mle, smile) in zip(tokens, expected):
        assert (token.mle, token.smile) == pytest.approx((mle, smile), abs=1e-4)
        best = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])[:5]
        for prediction, i in zip(token.predictions, best):
            assert prediction.probability == pytest.approx(probabilities[i], abs=1e-4)
            assert prediction.in_caption == (i in own)
            piece = words(i)
            assert prediction.word in (piece, piece.replace("##", "-"), "(end)")


@torch.no_grad()
def test_a_shifted_first_token_is_a_word(make_captioner, vocabulary, tmp_path):
    pieces = tmp_path / "vocab.txt"
    pieces.write_text(vocabulary.read_text() + "##a\n")
    captioner = make_captioner(tokenizer=str(pieces), first_token_shift=True)
    captioner.text_decoder.cls["predictions"].bias[-3] += 50  # "##a", before [DEC] and [ENC]
    first, *_, last = token_losses(captioner, torch.randn(1, 3, 48, 48), "a dog")
    assert first.label == first.predictions[0].word == "a" and first.predictions[0].in_caption
    assert first.mle < 1 and last.predictions[0].word == "-a"  # where it would go on with "dog"


def test_the_word_that_smile_spares_most_is_told():
    def token(label, best, in_caption, mle, smile):
        return Token(label, [Prediction(best, 0.5, in_caption)], mle, smile)

    tokens = [
        token("a", "one", False, 9.0, 0.0),  # the first word, which first-token MLE charges
        token("red", "crimson", False, 3.0, 0.5),
        token("dark", "navy", False, 2.0, 0.2),
        token("on", "near", True, 5.0, 1.0),
    ]
    figure = TokenFigure(None, "", None, tokens)
    assert figure.spared == (2, tokens[1])
    assert figure._replace(tokens=tokens[:1]).spared is None


def test_words_are_shown_of_ten_words_and_of_mle_if_it_can_be_loaded(runs):
    references = {1: ["a b", "a " * 13], 2: ["a b c", "b " * 9], 3: ["c " * 9]}
    comparison = Comparison("test", [], [], 0, [], references=references)
    assert choose_caption(comparison) == (2, "b " * 9)
    found = token_figure(read_comparison([runs[1], runs[0]]))
    assert found.run.label == "MLE"
    assert found.tokens[-1].label == "(end)"
    torch.save({"model": {}}, runs[0] / "checkpoint_best.pth")
    assert token_figure(read_comparison([runs[1], runs[0]])).run.label == "SMILE"
