"""The figures of the report, and the cost of each token, against formulas in float64."""

import json
import math
import re

import pytest
import torch
from PIL import Image

from captioning.metrics.bootstrap import Estimate
from captioning.report.comparison import Comparison, Row, read_comparison
from captioning.report.figures import assign_styles, draw_curves, length_histogram
from captioning.report.picture import load_picture
from captioning.report.plane import choose_axes, draw_plane
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


@pytest.mark.parametrize(
    "names, axes",
    [
        (
            ("true_facts", "wrong_facts", "CIDEr"),
            ("true facts a caption", "stated facts that are right (%)"),
        ),
        (("cap_len", "CIDEr"), ("words a caption", "CIDEr")),
        (("lex_div", "CLIPScore", "CIDEr"), ("distinct words", "CLIPScore")),
        (("cap_len", "CHAIRi", "CIDEr"), ("words a caption", "named objects that are there (%)")),
        (("cap_len", "true_facts"), None),
    ],
)
def test_the_axes_are_chosen_by_the_metrics_of_two_rows(names, axes):
    metrics = {name: Estimate(20.0, 15.0, 30.0, 5) for name in names}
    rows = [Row(label, "mle", {}, metrics) for label in ("$a", "b")]
    chosen = choose_axes(rows)
    assert (chosen and tuple(axis.label for axis in chosen)) == axes
    drawing = draw_plane(rows)
    assert (drawing is None) == (axes is None) and draw_plane(rows[:1]) is None
    if "true_facts" in names and axes:
        assert "$a at 20.00, 80.00; b at 20.00, 80.00" in drawing


def test_each_objective_and_the_validation_have_a_figure_of_curves(runs):
    titles, drawings = zip(*draw_curves(read_runs(runs, "test")))
    assert list(titles) == [
        "MLE loss in training, labels smoothed by 0.1",
        "SMILE loss in training",
        "Validation: CIDEr",
    ]
    assert "MLE+SMILE 0.3:0.7 ends at 0.500" in drawings[2]
    assert "SMILE ends" not in drawings[0].replace("MLE+SMILE", "")


def test_a_run_by_rewards_has_curves_of_reward_and_length(make_run):
    drawn = [
        {"event": "step", "step": n, "reward": 0.5 * n, "length": 4.0, "facts": 1.0}
        for n in (10, 20)
    ]
    run = make_run("scst", None, log=False, reward={"facts": 1.0, "cider": 0.5})
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in drawn))
    (read,) = read_runs([run], "test")
    assert (read.kind, read.label) == ("reward", "reward true facts+CIDEr-D 1:0.5")
    titles, drawings = zip(*draw_curves([read]))
    assert titles == ("Reward in training", "Length in training")
    assert "ends at 10.000" in drawings[0] and "words per sampled caption" in drawings[1]


def test_the_histogram_of_lengths_has_means_and_ids_of_its_own():
    rows = [Row("Humans", "humans", {1: "a b", 2: "a b c d"}, {}), Row("MLE", "mle", {1: "a"}, {})]
    drawing = length_histogram(rows)
    assert drawing.startswith("<svg ") and "Humans 3.0, MLE 1.0" in drawing
    ids = re.findall(r'\bid="([^"]+)"', drawing)
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', drawing)
    assert all(name.startswith("lengths-") for name in ids) and set(used) <= set(ids)
    assert drawing == length_histogram(rows)


def test_a_picture_is_embedded_in_less_than_100_kb_or_left_out(tmp_path):
    Image.new("RGB", (96, 96)).save(tmp_path / "small.png")
    Image.effect_noise((1200, 900), 90).save(tmp_path / "large.png")
    assert load_picture(tmp_path / "small.png").pixelated
    large = load_picture(tmp_path / "large.png")
    assert large.source.startswith("data:image/jpeg;base64,") and len(large.source) < 100_000
    assert load_picture(tmp_path / "absent.png") is None and load_picture(None) is None


def naive_costs(captioner, image, caption):
    """(own ids, probabilities, MLE cost, SMILE cost) of each token, one at a time."""
    ids, _ = captioner.tokenizer.encode([captioner.prompt + caption], 40)
    prompt = len(captioner.prompt_ids)
    embedded = captioner.visual_encoder(image)
    own = sorted(set(ids[0, prompt:].tolist()))
    for n in range(prompt, ids.size(1)):
        before = ids[:, :n]
        logits = captioner.text_decoder.logits(before, torch.ones_like(before), embedded)
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
        values = (math.exp(-mle), math.exp(-smile), mle, smile)
        assert token[2:] == pytest.approx(values, abs=1e-4)
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


def token(label, best, own, mle, smile):
    return Token(label, [Prediction(best, 0.5, own)], 0.1, 0.2, mle, smile)


def test_the_most_spared_and_the_most_charged_word_are_told():
    tokens = [
        token("a", "one", False, 9.0, 0.0),  # the first word, which first-token MLE charges
        token("red", "crimson", False, 3.0, 0.5),
        token("dark", "navy", False, 2.0, 0.2),
        token("on", "near", True, 2.0, 1.0),
        token("the", "on", True, 3.0, 1.5),
    ]
    figure = TokenFigure(None, "", None, tokens)
    assert figure.spared == (2, tokens[1]) and figure.charged == (5, tokens[4])
    assert figure._replace(tokens=tokens[:1]).spared is None
    assert figure._replace(tokens=tokens[:3]).charged is None


def test_words_are_shown_of_an_image_of_middle_length_and_of_mle_if_it_can_be_loaded(runs):
    references = {1: ["a b", "a b c d e f"], 2: ["a b c", "a b c d"], 3: ["g h i j", "k"]}
    assert choose_caption(Comparison("test", [], [], references=references)) == (2, "a b c d")
    found = token_figure(read_comparison([runs[1], runs[0]]))
    assert found.run.label == "MLE"
    assert found.tokens[-1].label == "(end)"
    torch.save({"model": {}}, runs[0] / "checkpoint_best.pth")
    assert token_figure(read_comparison([runs[1], runs[0]])).run.label == "SMILE"
