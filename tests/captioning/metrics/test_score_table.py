"""The printed table: published order, aligned, narrow, and with what was skipped."""

from captioning.metrics.bootstrap import Estimate
from captioning.metrics.evaluator import Scores
from captioning.metrics.registry import METRICS, metric_of
from captioning.metrics.score_table import format_table


def test_published_order_and_alignment():
    metrics = {
        "CIDEr": Estimate(12.5, 11.0, 14.1, 1),
        "METEOR": Estimate(0.1954, 0.19, 0.21, 1),
        "lex_div": Estimate(0.292, None, None, 1),
        "cap_len": Estimate(9.893, 9.75, 10.04, 1),
    }
    skipped = {"SPICE": "it broke", "ROUGE_L": "it broke", "Bleu_1": "no words"}
    scores = Scores(metrics, {}, {"tokenizer": "PTBTokenizer", "empty": 0, "seed": 7}, skipped)
    assert format_table(scores, 1) == (
        "Cap. Len.  Lex. Div.  BLEU-1  METEOR  ROUGE-L   CIDEr  SPICE\n"
        "     9.89      0.292       -   0.195        -  12.500      -\n"
        "    ±0.14                     ±0.010           ±1.550\n"
        "±: half of the 95 % interval over images\n"
        "1 captions, tokenizer: PTBTokenizer, seed: 7\n"
        "BLEU-1 skipped: no words\n"
        "ROUGE-L, SPICE skipped: it broke"
    )


def test_all_columns_fit_a_terminal():
    scores = Scores({name: Estimate(12.0, 1.0, 99.0, 5) for name in METRICS})
    lines = format_table(scores, 5).splitlines()
    assert max(map(len, lines)) <= 80
    titles = "  ".join(lines[0:-2:3]).split("  ")
    assert [title.strip() for title in titles if title] == [
        metric_of(name).title for name in METRICS
    ]


def test_without_intervals_there_is_no_word_of_them():
    scores = Scores({"ttr": Estimate(0.5, None, None, 2)})
    assert format_table(scores, 2) == "  TTR\n0.500\n2 captions"
