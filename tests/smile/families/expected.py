"""What a family's loss has to be, from the logits of its unchanged model."""

import torch
import torch.nn.functional as F

from smile import Objective


def predictions(family, logits):
    """Return logits and labels, aligned."""
    logits, labels = logits[:, family.before :], family.batch["labels"]
    return (logits[:, :-1], labels[:, 1:]) if family.shift else (logits, labels)


def of_routers(family):
    """Return the term that the model adds to the cross-entropy of its labels."""
    own = family.model(**family.batch)
    logits, labels = predictions(family, own.logits)
    tokens = labels.ne(-100)
    return own.loss - F.cross_entropy(logits[tokens], labels[tokens])


def expected_smile(family, tokens=None):
    """Return SMILE of the unchanged model's logits, divided by `tokens`, plus router losses."""
    with torch.no_grad():
        logits = family.model(**family.batch).logits
        result = Objective("smile")(*predictions(family, logits))
        return result.loss * result.tokens / (tokens or result.tokens) + of_routers(family)
