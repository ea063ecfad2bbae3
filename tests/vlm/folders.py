"""A tiny model of tests/smile/families and its processor, saved as a folder of transformers."""

from collections.abc import Iterable
from functools import partial

import pytest
import torch
import transformers

from tests.markers import slow
from tests.smile.families.batches import END, PAD, START, tokenizer
from tests.smile.hf_steps import new

PROMPT = "describe the image"
# <start>user <image>describe the image<end> <start>assistant a red disc<end>
CHAT = (
    "{% for m in messages %}<start>{{ m.role }} {% for part in m.content %}"
    "{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "<end>\n{% endfor %}{% if add_generation_prompt %}<start>assistant{% endif %}"
)
SIDE = {"height": 8, "width": 8}


def with_start(words):
    """The tokenizer puts <start> before a text and <end> behind it, as BERT's and BART's do."""
    from tokenizers.processors import TemplateProcessing

    words._tokenizer.post_processor = TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", START), ("<end>", END)]
    )
    return words


def processor(name, *parts, image="<image>", **options):
    """A processor with the chat template, in which a photo is written as `image`."""
    template = CHAT.replace("IMAGE", image)
    return getattr(transformers, f"{name}Processor")(*parts, chat_template=template, **options)


def smolvlm(name="SmolVLM"):
    """A photo of up to 16 pixels is cut into pictures of 8 with four tokens each."""
    images = getattr(transformers, f"{name}ImageProcessor")(
        size={"longest_edge": 16}, max_image_size={"longest_edge": 8}
    )
    video = [transformers.SmolVLMVideoProcessor()] if name == "SmolVLM" else []
    return processor(name, images, tokenizer(), *video, image_seq_len=4)


def qwen(name):
    """A photo keeps its shape; two by two patches of two pixels are a token."""
    sizes = {"patch_size": 2, "temporal_patch_size": 2, "merge_size": 2}
    sizes["size"] = {"shortest_edge": 32, "longest_edge": 256}
    images = transformers.Qwen2VLImageProcessor(**sizes)
    kind = "Qwen3VL" if name == "Qwen3VL" else "Qwen2VL"
    video = getattr(transformers, f"{kind}VideoProcessor")(**sizes)
    names = {"image": "<|image_pad|>", "start": "<|vision_start|>", "end": "<|vision_end|>"}
    words = tokenizer(**names, video_token="<video>")
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    return processor(name, images, words, video_processor=video, image=image)


def paligemma():
    images = transformers.SiglipImageProcessor(size=SIDE)
    images.image_seq_length = 4
    return transformers.PaliGemmaProcessor(images, tokenizer())


def llava_onevision():
    grid = [[8, 8], [8, 16], [16, 8], [16, 16]]
    images = transformers.LlavaOnevisionImageProcessor(size=SIDE, image_grid_pinpoints=grid)
    parts = images, tokenizer(), transformers.LlavaOnevisionVideoProcessor()
    options = {"num_image_tokens": 4, "vision_feature_select_strategy": "full"}
    return processor("LlavaOnevision", *parts, **options)


def internvl():
    images = transformers.GotOcr2ImageProcessor(size=SIDE, min_patches=1, max_patches=4)
    named = {"start_image_token": "<img>", "end_image_token": "</img>"}
    named.update(context_image_token="<IMG_CONTEXT>", video_token="<video>")
    words = tokenizer("<IMG_CONTEXT>", "<img>", "</img>", **named)
    parts = images, words, transformers.InternVLVideoProcessor()
    return processor("InternVL", *parts, image_seq_length=4, image="<IMG_CONTEXT>")


def gemma3():
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    words = tokenizer("<image_soft_token>", "<start_of_image>", "<end_of_image>", **named)
    images = transformers.Gemma3ImageProcessor(size=SIDE)
    return processor("Gemma3", images, words, image_seq_length=4, image="<start_of_image>")


def mllama():
    """A photo is cut into up to two tiles, which words after the image token attend to."""
    images = transformers.MllamaImageProcessor(size=SIDE, max_image_tiles=2)
    return processor("Mllama", images, tokenizer("<|image|>", places=()), image="<|image|>")


def florence2():
    """A photo has five positions: the mean, and four patches."""
    images = transformers.CLIPImageProcessor(size=SIDE, crop_size=SIDE)
    images.image_seq_length = 5
    words = with_start(tokenizer())
    return transformers.Florence2Processor(images, words, num_additional_image_tokens=1)


def blip2():
    images = transformers.BlipImageProcessor(size=SIDE)
    return transformers.Blip2Processor(images, tokenizer(None), num_query_tokens=3)


def git():
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 8}, crop_size=SIDE)
    return transformers.GitProcessor(images, with_start(tokenizer()))


def vision_encoder_decoder():
    """An image processor and a tokenizer, without a joint processor."""
    return transformers.ViTImageProcessor(size=SIDE), tokenizer()


# The names of tests/smile/families, what makes their processor, and the prompt that suits them.
PROCESSORS = {
    "SmolVLMForConditionalGeneration": (smolvlm, PROMPT),
    "Idefics3ForConditionalGeneration": (partial(smolvlm, "Idefics3"), PROMPT),
    "Qwen2VLForConditionalGeneration": (partial(qwen, "Qwen2VL"), PROMPT),
    "Qwen2_5_VLForConditionalGeneration": (partial(qwen, "Qwen2_5_VL"), PROMPT),
    "Qwen3VLForConditionalGeneration": (partial(qwen, "Qwen3VL"), PROMPT),
    "PaliGemmaForConditionalGeneration": (paligemma, PROMPT),
    "LlavaOnevisionForConditionalGeneration": (llava_onevision, PROMPT),
    "InternVLForConditionalGeneration": (internvl, PROMPT),
    "Gemma3ForConditionalGeneration": (gemma3, PROMPT),
    "MllamaForConditionalGeneration": (mllama, PROMPT),
    "Florence2ForConditionalGeneration": (florence2, PROMPT),
    "Blip2ForConditionalGeneration": (blip2, PROMPT),
    "Blip2ForConditionalGeneration, T5": (blip2, PROMPT),
    "GitForCausalLM": (git, ""),
    "VisionEncoderDecoderModel": (vision_encoder_decoder, ""),
}

NAMES = list(PROCESSORS)
# One of each kind for the quick run: a chat, photos that keep their shape, a text model with a
# prompt, an encoder-decoder.
QUICK = ("Idefics3", "Qwen2VL", "Git", "Florence2")


def with_marks(names: Iterable[str], *settings: object) -> list:
    """Parameters of a test: a name and the settings each; all but the kinds of QUICK are slow."""
    kinds = {True: pytest.param, False: slow}
    return [kinds[name.startswith(QUICK)](name, *settings) for name in names]


def write(name, folder):
    torch.manual_seed(0)
    make, prompt = PROCESSORS[name]
    made, model = make(), new(name).model
    parts = made if isinstance(made, tuple) else (made,)
    words = getattr(made, "tokenizer", parts[-1])
    if not name.startswith("Mllama"):  # its image's token is no word of the head
        resized = getattr(model, "decoder", None) or model
        resized.resize_token_embeddings(max(words.get_vocab().values()) + 1)
    if name.startswith("LlavaOnevision"):
        model.config.image_grid_pinpoints = made.image_processor.image_grid_pinpoints
    for key, token in {"eos_token_id": END, "pad_token_id": PAD, "bos_token_id": START}.items():
        setattr(model.generation_config, key, token)
    if model.config.is_encoder_decoder or name.endswith("T5"):
        # Florence-2's decoder starts with the end of a text, and its tokenizer puts <start> next.
        start = END if name.startswith("Florence2") else START
        model.generation_config.decoder_start_token_id = start
    model.save_pretrained(folder)
    for part in parts:
        part.save_pretrained(folder)
    return prompt
