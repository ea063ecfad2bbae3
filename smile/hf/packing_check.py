"""Whether a model keeps the texts of a packed row apart, as not every attention or state does."""

from collections.abc import Callable
from typing import Optional

import torch
from torch import Tensor, nn

from smile.head import computed_in

HALF = 8
# Two texts in a row, in each way in which a batch says where its own are.
WORDS = [[*range(1, HALF + 1)] * 2]
ENDS_SWAPPED = [HALF - 1, *range(1, HALF - 1), 0]
BOUNDS = [0, HALF, 2 * HALF]
PLACES = {
    "position_ids": [[*range(HALF)] * 2],
    "seq_idx": [[0] * HALF + [1] * HALF],
    **{"cu_seq_lens_q": BOUNDS, "cu_seq_lens_k": BOUNDS},
    **{"max_length_q": HALF, "max_length_k": HALF},
}
SEEN = (
    "lets captions of a packed row see each other, here or with this attn_implementation; leave "
    "packing and padding_free out"
)


def keeps_apart(model: nn.Module, run: Callable, given: dict, rows: int) -> Optional[bool]:
    """Whether a text stays what it is where the one before it is another; None if the model cannot
    run on input_ids alone or context changes none of its logits, as where all are 0.

    run: of inputs, the logits (rows, N, V). given: the batch, of which words and places are tried.
    rows: how many, as some attention sees no texts in several; `cu_seq_lens_q` is of one.
    """
    if given.get("input_ids") is None or (rows > 1 and given.get("cu_seq_lens_q") is not None):
        return None
    inputs = {name: value for name, value in given.items() if isinstance(value, bool)}
    for name, value in {"input_ids": WORDS, **PLACES}.items():
        if isinstance(given.get(name), Tensor):
            value = given[name].new_tensor(value)
            if value.dim() == 2:  # positions can have axes before that of rows
                value = value.expand(*given[name].shape[:-2], rows, -1)
        if given.get(name) is not None:
            inputs[name] = value
    words = inputs["input_ids"]
    first, second = words[:, :HALF], words[:, HALF:]
    modes = {module: module.training for module in model.modules()}
    model.eval()  # so that nothing is dropped
    try:
        with torch.no_grad():
            logits, other_first, other_second = (
                run({**inputs, "input_ids": torch.cat(texts, 1)})
                for texts in (
                    (first, second),
                    (first[:, ENDS_SWAPPED], second),
                    (first, second[:, ENDS_SWAPPED]),
                )
            )
    except (TypeError, ValueError):
        return None
    finally:
        for module, training in modes.items():
            module.training = training
    before, after, between = slice(HALF), slice(HALF, None), slice(HALF + 1, -1)
    context = _change(logits[:, between], other_second[:, between])  # by words of the same text
    if not context > 0:
        return None
    # No text sees the one after it: what changes there is rounding, of experts or of 8 bits. Where
    # nothing does, allow rounding up to a tenth of the context's effect.
    rounding = _change(logits[:, before], other_second[:, before])
    precision = max(torch.finfo(kind).eps for kind in (model.dtype, computed_in(logits)))
    bound = 10 * rounding + max(min(precision, context / 10), 1e-6)
    return _change(logits[:, after], other_first[:, after]) <= bound


def _change(before: Tensor, after: Tensor) -> float:
    """Of logits (B, N, V) but those of words that are ruled out; nan where all are 0."""
    before, after = before.float(), after.float()
    possible = before.softmax(-1) > 0
    return ((after - before)[possible].norm() / before[possible].norm()).item()
