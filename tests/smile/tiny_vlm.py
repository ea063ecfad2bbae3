"""A tiny SmolVLM, which is an Idefics3, and its processor, written to a folder."""

import torch
import transformers

CHAT = (
    "<s>{% for m in messages %}{{ m.role | capitalize }}:{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ ' ' + part.text }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
SPECIAL = [
    *("<pad>", "<s>", "<unk>", "<fake_token_around_image>", "<image>", "<end_of_utterance>"),
    *("<global-img>", *(f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7))),
]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:\n "
IMAGE = SPECIAL.index("<image>")
SIZES = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)


def tokenizer():
    from tokenizers import Tokenizer, decoders, models

    known = {token: number for number, token in enumerate([*SPECIAL, *LETTERS])}
    letters = Tokenizer(models.BPE(known, [], unk_token="<unk>"))
    letters.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=letters,
        additional_special_tokens=SPECIAL[3:],
        **{"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "<end_of_utterance>"},
    )


def write(folder):
    """Write both. A photo of up to 32 pixels is cut into pictures of 16 with four tokens each."""
    torch.manual_seed(0)
    text = {
        **{"model_type": "llama", "vocab_size": len(SPECIAL) + len(LETTERS), "pad_token_id": 0},
        **{"num_key_value_heads": 1, "max_position_embeddings": 1024, "bos_token_id": 1},
        "eos_token_id": SPECIAL.index("<end_of_utterance>"),
    }
    config = transformers.Idefics3Config(
        image_token_id=IMAGE,
        scale_factor=2,
        vision_config={"image_size": 16, "patch_size": 4, **SIZES},
        text_config={**text, **SIZES},
    )
    transformers.Idefics3ForConditionalGeneration(config).save_pretrained(folder)
    images = transformers.Idefics3ImageProcessor(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 16}
    )
    made = transformers.Idefics3Processor(images, tokenizer(), image_seq_len=4, chat_template=CHAT)
    made.save_pretrained(folder)
