"""The settings of decoding, under the names that transformers gives them."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class DecodingSettings:
    """How captions are drawn. Lengths are in tokens and count those of the prompt.

    Beam search with `num_beams` > 1, greedy with 1, sampling with `sample` (BLIP's nucleus
    sampling is top_p 0.9, top_k 50, repetition_penalty 1.1). `num_return` captions an image: the
    best beams, or as many samples. top_p 1 and top_k 0 leave the distribution whole.

    Raises ValueError, in one line, for a value that means nothing.
    """

    max_length: int = 20
    min_length: int = 5
    num_beams: int = 3
    length_penalty: float = 1.0
    repetition_penalty: float = 1.0
    num_return: int = 1
    sample: bool = False
    top_p: float = 0.9
    top_k: int = 50
    temperature: float = 1.0

    def __post_init__(self):
        at_least = {"max_length": 1, "min_length": 0, "num_beams": 1, "num_return": 1, "top_k": 0}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {least} or more")
        for name in ("repetition_penalty", "temperature", "top_p"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty is {self.length_penalty}; it must be a number")
        if self.top_p > 1:
            raise ValueError(f"top_p is {self.top_p}; it must be 1 or less")
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length is {self.min_length}, above max_length, {self.max_length}"
            )
        candidates = self.num_return if self.sample else self.num_beams
        if self.num_return > candidates:
            raise ValueError(
                f"num_return is {self.num_return} with num_beams {self.num_beams}; "
                "raise num_beams or sample"
            )
