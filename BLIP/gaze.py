"""Where the text decoder looks in the image, read from its cross-attention as it computes."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from BLIP.med import TextDecoder


@contextmanager
def looked_at(decoder: TextDecoder) -> Iterator[list[Tensor]]:
    """Within the block: for each layer of a call with one row, (n, 1 + P), the mean over heads.

    They come from the queries and keys that each layer is called with.
    """
    seen: list[Tensor] = []

    def look(attention, arguments):
        hidden, (key, _) = arguments[:2]  # (1, n, H); (1, heads, 1 + P, H / heads)
        query = attention.self["query"](hidden)
        query = query.unflatten(2, (key.size(1), -1)).transpose(1, 2)  # (1, heads, n, H / heads)
        scores = query @ key.transpose(2, 3) / math.sqrt(query.size(3))
        seen.append(scores.softmax(-1).mean(1)[0])

    hooks = [layer.crossattention.register_forward_pre_hook(look) for layer in decoder.layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
