"""A photo of several captions is encoded once, and what comes of it is repeated for each.

Where it lies among the words, the library takes features that are there already
(`mm_encoder_outputs`, transformers 5.20 and later). An encoder that makes a row of a photo is given
the first of the rows that are alike.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature
from itertools import accumulate, chain
from typing import Any, Optional

import torch
from torch import Tensor, nn

from smile.hf.families import encoder_decoder
from vlm.collate import joined
from vlm.image_batch import Pictures

PIXELS, GIVEN = "pixel_values", "mm_encoder_outputs"
# What models call the part that makes a row of a photo, where it is not their encoder.
TOWERS = ("vision_tower", "vision_model", "image_encoder")
# What `get_image_features` may return: what is put among the words, and what nothing reads.
FEATURES = "pooler_output"
DEEPER = "deepstack_features"  # Qwen3-VL adds these in several layers
UNUSED = {"last_hidden_state", "hidden_states", "attentions", "vision_outputs", "qformer_outputs"}


class SeenOnce:
    """Called with B photos and k, what a model of transformers is to read of B * k rows.

    Photos stay as they are, k times, for a model of which neither way is known.
    """

    def __init__(self, model: nn.Module):
        """model: without an adapter around it."""
        self.model = model
        self.takes_features = GIVEN in signature(type(model).forward).parameters
        self.encoders: list[nn.Module] = []
        if encoder_decoder(model) or not hasattr(model, "get_image_features"):
            named = model.named_modules()
            self.encoders = [m for name, m in named if name.rpartition(".")[2] in TOWERS]
            self.takes_features = False
        if encoder_decoder(model):
            self.encoders.append(model.get_encoder())

    @contextmanager
    def __call__(self, pictures: Pictures, count: int) -> Iterator[tuple[Pictures, dict]]:
        """The rows' photos, and what the model is to be given beside them; call it within."""
        with ExitStack() as hooks:
            given = {}
            if count > 1 and self.takes_features:
                features = self._features(pictures, count)
                if features is None:
                    self.takes_features = False
                else:
                    given = {PIXELS: None, GIVEN: {"image": features}}
                    pictures = pictures.without(PIXELS)
            for encoder in self.encoders if count > 1 else ():
                hooks.enter_context(_first_rows(encoder, len(pictures), count))
            yield pictures.repeated(count), given

    def _features(self, pictures: Pictures, count: int) -> Optional[Any]:
        """What lies among the words of B photos, those of a photo k times side by side.

        None where it cannot be told which are of which photo.
        """
        takes = signature(self.model.get_image_features).parameters
        sizes = [len(item[PIXELS]) for item in pictures.items]
        inputs = joined([{k: v for k, v in i.items() if k in takes} for i in pictures.items], 0)
        output = self.model.get_image_features(**inputs, return_dict=True)
        features, deeper = output[FEATURES], output.get(DEEPER) or ()
        if len(features) == len(sizes):
            sizes = [1] * len(sizes)
        other = output.keys() - UNUSED - {FEATURES, DEEPER}
        if other or any(len(each) != sum(sizes) for each in (features, *deeper)):
            return None
        output[FEATURES] = _again(features, sizes, count)
        if deeper:
            output[DEEPER] = [_again(each, sizes, count) for each in deeper]
        return output


def _again(features: Any, sizes: list[int], count: int) -> Any:
    """A tensor or sequence of which so many are of each photo, those of a photo `count` times."""
    each = [features[end - size : end] for end, size in zip(accumulate(sizes), sizes)]
    again = [of_photo for of_photo in each for _ in range(count)]
    return torch.cat(again) if isinstance(features, Tensor) else [*chain.from_iterable(again)]


@contextmanager
def _first_rows(encoder: nn.Module, images: int, count: int) -> Iterator[None]:
    """An encoder that sees the first row of each image's `count`, and makes all of them of it."""
    seen = []

    def first(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape[:1] != (images * count,):
            return value
        seen.append(True)
        return value[::count]

    def before(module, arguments, named):
        seen.clear()
        return tuple(map(first, arguments)), {key: first(v) for key, v in named.items()}

    def after(module, arguments, output):
        for key, value in output.items() if seen else ():
            if isinstance(value, Tensor) and len(value) == images:
                output[key] = value.repeat_interleave(count, 0)
        return output

    hooks = [
        encoder.register_forward_pre_hook(before, with_kwargs=True),
        encoder.register_forward_hook(after),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
