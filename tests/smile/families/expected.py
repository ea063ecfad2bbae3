"""What a family's loss has to be, written out one token at a time."""

import math

import torch
import torch.nn.functional as F


def naive_smile(logits, labels):
    """Return SMILE with first-token MLE, token by token: the sum, and the number of tokens."""
    total, tokens = 0.0, 0
    for caption_logits, caption in zip(logits, labels):
        own = set(caption.tolist()) - {-100}
        outside = [word for word in range(logits.size(2)) if word not in own]
        first = True
        for row, label in zip(caption_logits, caption):
            if label == -100:
                continue
            row = row.clone()
            if not first:
                row[outside] = -math.inf
            total, tokens, first = total - F.log_softmax(row, 0)[label], tokens + 1, False
    return total, tokens


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
        total, counted = naive_smile(*predictions(family, logits))
        return total / (tokens or counted) + of_routers(family)
