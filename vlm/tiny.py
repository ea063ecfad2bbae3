"""Writes a tiny SmolVLM with random weights, to try model vlm without a download.

    python -m vlm.tiny output/tiny_vlm --words data/scenes/vocab.txt

--words names a file with one word of the vocabulary per line. The model reads a photo of 48 x 48
pixels as nine patches.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from vlm.library import check_library

PAD, START, END, UNKNOWN = "<pad>", "<start>", "<end>", "<unk>"
SPECIAL = (PAD, START, END, UNKNOWN, "<fake_token_around_image>", "<global-img>", "<image>")
PROMPT = "describe"  # the vocabulary always contains it
CHAT_TEMPLATE = (
    "{% for m in messages %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<start><image>{% else %} {{ part.text }}{% endif %}{% endfor %}"
    "{% if m.role == 'assistant' %}<end>{% endif %}{% endfor %}"
)
IMAGE_SIZE, PATCH_SIZE = 48, 16
HIDDEN_SIZE, NUM_HEADS = 96, 4
# The standard deviation of the initial weights. Large models use 0.02, with which this small model
# learns nothing in 1,000 steps.
INITIALIZER_RANGE = 0.08


def write(folder: str, words: Sequence[str]) -> None:
    """Write model, tokenizer and processor. Raises ValueError if transformers is too old.

    words: the vocabulary. Words with characters other than letters are left out. The weights are
    the same at each call.
    """
    check_library()
    import torch
    import transformers

    words = [word for word in words if word.isalpha()]
    ids = {token: n for n, token in enumerate(dict.fromkeys([*SPECIAL, PROMPT, *words]))}
    special = {"pad_token_id": ids[PAD], "bos_token_id": ids[START], "eos_token_id": ids[END]}
    sizes = {
        "hidden_size": HIDDEN_SIZE,
        "num_attention_heads": NUM_HEADS,
        "num_hidden_layers": 3,
        "initializer_range": INITIALIZER_RANGE,
    }
    config = transformers.SmolVLMConfig(
        image_token_id=ids["<image>"],
        scale_factor=1,
        vision_config={
            "image_size": IMAGE_SIZE,
            "patch_size": PATCH_SIZE,
            "intermediate_size": 4 * HIDDEN_SIZE,
            **sizes,
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(ids),
            "intermediate_size": 2 * HIDDEN_SIZE,
            "num_key_value_heads": NUM_HEADS,
            "max_position_embeddings": 256,
            **sizes,
            **special,
        },
        tie_word_embeddings=False,
        **special,
    )
    torch.manual_seed(0)
    transformers.SmolVLMForConditionalGeneration(config).save_pretrained(folder)
    _processor(transformers, ids).save_pretrained(folder)


def _processor(transformers, ids):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words_only = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    words_only.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words_only.add_special_tokens(list(SPECIAL))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words_only,
        pad_token=PAD,
        bos_token=START,
        eos_token=END,
        unk_token=UNKNOWN,
    )
    images = transformers.SmolVLMImageProcessor(
        do_image_splitting=False,
        size={"longest_edge": IMAGE_SIZE},
        max_image_size={"longest_edge": IMAGE_SIZE},
    )
    return transformers.SmolVLMProcessor(
        images,
        tokenizer,
        transformers.SmolVLMVideoProcessor(),
        image_seq_len=(IMAGE_SIZE // PATCH_SIZE) ** 2,
        chat_template=CHAT_TEMPLATE,
    )


def main(argv=None) -> int:
    """Run the program. Return 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(
        "python -m vlm.tiny",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", help="the folder to write")
    parser.add_argument("--words", type=Path, required=True, help="a file with one word per line")
    arguments = parser.parse_args(argv)

    try:
        words = arguments.words.read_text(encoding="utf-8").split("\n")
        write(arguments.folder, words)
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    print(f"wrote {arguments.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
