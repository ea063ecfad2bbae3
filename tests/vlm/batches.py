"""Batches of photos and captions, as the captioner and as the library makes them."""

from tests.vlm import folders
from vlm.batch import ImageBatch
from vlm.library import load_parts

CAPTIONS = [["a red disc"], ["two large blue block on sand"], ["a ring"]]
PLAIN = ("PaliGemma", "Florence2", "Blip2", "Git", "VisionEncoderDecoder")  # without a template
CHATS = [name for name in folders.NAMES if not name.startswith(PLAIN)]


def batch_of(captioner, photos):
    return ImageBatch([captioner.prompt_processor(photo) for photo in photos])


def conversation(photo, prompt, caption=None):
    asked = [{"type": "image", "image": photo}, {"type": "text", "text": prompt}]
    said = [{"role": "assistant", "content": [{"type": "text", "text": caption}]}]
    return [{"role": "user", "content": asked}, *(said if caption else [])]


def library_batch(name, vlm_folder, photos, captions=None):
    """The batch of the library's own processor: prompts, or with captions prompts and answers."""
    folder, prompt = vlm_folder(name)
    parts = load_parts(folder)
    if name == "VisionEncoderDecoderModel":
        return parts.processor(photos, return_tensors="pt")
    side = "right" if captions else "left"
    how = {"padding": True, "padding_side": side, "return_tensors": "pt"}
    if name in CHATS:
        said = captions or [None] * len(photos)
        chats = [conversation(photo, prompt, text) for photo, text in zip(photos, said)]
        how = {"processor_kwargs": how, "tokenize": True, "return_dict": True}
        how.update(return_tensors="pt", add_generation_prompt=captions is None)
        return parts.processor.apply_chat_template(chats, **how)
    text = f"<image>{prompt}" if name.startswith("PaliGemma") else prompt
    if captions:
        how["suffix"] = captions
    made = parts.processor(text=[text] * len(photos), images=[[x] for x in photos], **how)
    if name == "GitForCausalLM":  # the processor ends the prompt
        return {k: v[:, :-1] if v.dim() == 2 else v for k, v in made.items()}
    return made
