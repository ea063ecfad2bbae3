"""Scores as a table for a terminal."""

from typing import NamedTuple

from captioning.metrics.evaluator import Scores

WIDTH = 80


class Column(NamedTuple):
    title: str
    decimals: int = 3


# The published table's columns, those of the COCO evaluation, then the rest.
COLUMNS = {
    "cap_len": Column("Cap. Len.", 2),
    "lex_div": Column("Lex. Div."),
    "R@1": Column("R@1", 1),
    "R@5": Column("R@5", 1),
    "CLIPScore": Column("CLIPScore", 1),
    "PPL": Column("PPL", 1),
    "Bleu_1": Column("BLEU-1"),
    "Bleu_2": Column("BLEU-2"),
    "Bleu_3": Column("BLEU-3"),
    "Bleu_4": Column("BLEU-4"),
    "METEOR": Column("METEOR"),
    "ROUGE_L": Column("ROUGE-L"),
    "CIDEr": Column("CIDEr"),
    "SPICE": Column("SPICE"),
    "R@10": Column("R@10", 1),
    "median_rank": Column("Med. Rank", 1),
    "RefCLIPScore": Column("RefCLIPScore", 1),
    "ttr": Column("TTR"),
    "distinct_1": Column("Dist-1"),
    "distinct_2": Column("Dist-2"),
    "distinct_captions": Column("Dist. Cap."),
    "vocab_use": Column("Vocab. Use"),
    "seen_captions": Column("Seen Cap."),
    "train_vocab_use": Column("Train Vocab. Use"),
    "true_facts": Column("True Facts", 2),
    "wrong_facts": Column("Wrong %", 1),
    "scene_R@1": Column("Scene R@1", 1),
    "scene_R@5": Column("Scene R@5", 1),
    "CHAIRs": Column("CHAIRs", 1),
    "CHAIRi": Column("CHAIRi", 1),
    "object_recall": Column("Obj. Recall", 1),
    "PAC-S": Column("PAC-S", 1),
    "RefPAC-S": Column("RefPAC-S", 1),
    "CLAIR": Column("CLAIR", 1),
    "rep_2": Column("Rep-2", 1),
    "rep_3": Column("Rep-3", 1),
    "rep_4": Column("Rep-4", 1),
    "loops": Column("Loops", 1),
    "nouns": Column("Nouns", 2),
    "adjectives": Column("Adjectives", 2),
    "numbers": Column("Numbers", 2),
    "relations": Column("Relations", 2),
}


def format_table(scores: Scores) -> str:
    """Return the scores, in rows of at most 80 characters, and what there is to know about them.

    Under a score stands half the width of its interval. "-" is a metric that was skipped.
    """
    names = [name for name in COLUMNS if name in scores.metrics or name in scores.skipped]
    rows = []
    for block in _blocks([_cells(name, scores) for name in names]):
        rows += ["  ".join(line).rstrip() for line in zip(*block) if "".join(line).strip()]
    if any(estimate.low is not None for estimate in scores.metrics.values()):
        rows.append("±: half of the 95 % interval over images")
    # A count of nothing, such as of captions that were cut, is for the file alone; so is a page.
    known = [
        f"{name}: {value}"
        for name, value in scores.settings.items()
        if value != 0 and "\n" not in str(value)
    ]
    rows.append(", ".join([f"{len(scores.per_image)} captions", *known]))
    reasons = [scores.skipped[name] for name in names if name in scores.skipped]
    for reason in dict.fromkeys(reasons):
        skipped = [COLUMNS[name].title for name in names if scores.skipped.get(name) == reason]
        rows.append(f"{', '.join(skipped)} skipped: {reason}")
    return "\n".join(rows)


def _cells(name, scores):
    """Return title, score and interval of a metric, padded to one width."""
    title, decimals = COLUMNS[name]
    score, spread = "-", ""
    if name in scores.metrics:
        estimate = scores.metrics[name]
        score = f"{estimate.value:.{decimals}f}"
        if estimate.low is not None:
            spread = f"±{(estimate.high - estimate.low) / 2:.{decimals}f}"
    width = max(map(len, (title, score, spread)))
    return [cell.rjust(width) for cell in (title, score, spread)]


def _blocks(columns):
    """Yield the columns in lists that fit into a row."""
    block = []
    for column in columns:
        if sum(len(cells[0]) + 2 for cells in block) + len(column[0]) > WIDTH:
            yield block
            block = []
        block.append(column)
    yield block
