"""Writes the table of families into docs/any_model.md, from the tiny models of the tests.

python -m tests.smile.families.table
"""

import re
from collections import defaultdict
from pathlib import Path

import torch

from smile.head import Transform
from smile.hf.auxiliary import auxiliary_losses
from smile.hf.head import linear_head
from tests.smile import hf_models

COMMAND = "python -m tests.smile.families.table"
PAGE = "docs/any_model.md"
BEGIN, END = f"<!-- {COMMAND} -->\n", "<!-- end -->\n"
HEADER = ["class", "objective from", "kept besides cross-entropy"]
OF_ROUTERS = {"aux_loss": "router loss", "z_loss": "z-loss"}


def kept(family):
    """Return the terms of the model's loss and logits besides a head and cross-entropy."""
    head, nothing = linear_head(family.model), Transform()
    found = {
        "scale": head and head.transform.scale != nothing.scale,
        "soft cap": head and head.transform.softcap is not None,
        "bias": head and head.bias is not None,
        "padded vocabulary": head and head.vocabulary is not None,
    }
    with torch.no_grad():
        inputs = {key: value for key, value in family.batch.items() if key != "labels"}
        if not family.shift:
            inputs["decoder_input_ids"] = family.batch["labels"].clamp(min=0)
        _, parts = auxiliary_losses(family.model, family.model(**inputs))
    for end, word in OF_ROUTERS.items():
        found[word] = any(name.endswith(end) for name in parts)
    return ", ".join(word for word, there in found.items() if there) or "-"


def made_from(family):
    return "logits" if linear_head(family.model) is None else "logits, hidden"


def table():
    rows = defaultdict(set)
    for name in hf_models.FAMILIES:
        family = hf_models.make(name)
        rows[made_from(family), kept(family)].add(f"`{hf_models.class_of(name)}`")
    lines = [HEADER, ["-"] * len(HEADER)]
    lines += [[", ".join(sorted(names)), *row] for row, names in sorted(rows.items())]
    return "".join("|" + "|".join(line) + "|\n" for line in lines)


def put_into(page):
    """Return the page with the current table between its two markers."""
    found, made = re.findall(f"{BEGIN}.*?{END}", page, re.S), f"{BEGIN}\n{table()}\n{END}"
    if len(found) != 1:
        raise ValueError(
            f"{PAGE} has {len(found)} places between {BEGIN.strip()} and {END.strip()}"
        )
    return page.replace(found[0], made)


if __name__ == "__main__":
    path = Path(PAGE)
    path.write_text(put_into(path.read_text(encoding="utf-8")), encoding="utf-8")
