"""The words that the tiny models know, and a tokenizer of them."""

import transformers

from tests.smile.families.batches import (
    IMAGE_END,
    IMAGE_START,
    IMAGE_TOKEN,
    PAD,
    START,
    VIDEO_TOKEN,
)

END, UNKNOWN = 1, 3
VOCABULARY = """
a red blue green yellow small large disc ring block star on sand grass snow night left right of the
above below user assistant model describe image two
"""
WORDS = VOCABULARY.split()
PLACES = (
    *("<fake_token_around_image>", "<global-img>"),
    *(f"<row_{i}_col_{j}>" for i in (1, 2) for j in (1, 2)),
)


def tokenizer(image="<image>", start="<image_start>", end="<image_end>", places=PLACES, **named):
    """Each word is a token, with the id of the tiny models. named: tokens by attribute."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = {"<pad>": PAD, "<end>": END, "<start>": START, "<unk>": UNKNOWN}
    known.update({word: 4 + n for n, word in enumerate(WORDS)})
    known.update({end: IMAGE_END, start: IMAGE_START, "<video>": VIDEO_TOKEN})
    known.update({image or "<image>": IMAGE_TOKEN})
    known.update({place: IMAGE_TOKEN + 1 + n for n, place in enumerate(places)})
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([start, end, "<video>", image or "<image>", *places])
    named = {"image_token": image, **named} if image else named
    marks = {"pad_token": "<pad>", "bos_token": "<start>", "eos_token": "<end>"}
    marks.update(unk_token="<unk>", tokenizer_object=made, extra_special_tokens=named)
    return transformers.PreTrainedTokenizerFast(**marks)
