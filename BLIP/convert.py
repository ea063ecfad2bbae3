"""Converts a checkpoint of BLIP to a folder that transformers loads, and back.

    python -m BLIP.convert to-hf checkpoints/blip_mle_smile_base.pth output/hf
    python -m BLIP.convert from-hf output/hf output/again.pth

A captioner, which has a text decoder, becomes a BlipForConditionalGeneration. A checkpoint without
a text decoder but with the heads of BLIP's filter (`BLIP.itm`) becomes a BlipForImageTextRetrieval.
The folder contains model.safetensors, config.json, the tokenizer and the image processor, and
`from_pretrained` loads it. Converting to a folder and back changes no bit. This program does not
import transformers, because version 4.15.0 has no BLIP.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Union

import torch
from safetensors.torch import save_file
from torch import Tensor

from BLIP.blip import BlipCaptioner
from BLIP.card import write_card
from BLIP.checkpoint import (
    FILES,
    HF_NAMES,
    HF_VIT,
    OPTIONAL_KEYS,
    WORD_EMBEDDING,
    CheckpointError,
    read_checkpoint,
    rename,
    run_config,
)
from BLIP.from_checkpoint import add_captioner_arguments, captioner_of, run_program
from BLIP.itm import HEAD, BlipItm, load_itm
from BLIP.tokenizer import CONFIG, OPTIONS, CaptionTokenizer
from BLIP.writing import atomic_write, write_json

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
LABEL_SMOOTHING = 0.1  # the value that transformers uses if it trains a model


def to_hf_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the keys to transformers' names. Leave out OPTIONAL_KEYS."""
    names = {ours: theirs for theirs, ours in HF_NAMES.items()}
    return {rename(key, names): state[key] for key in state if key not in OPTIONAL_KEYS}


def hf_config(model: Union[BlipCaptioner, BlipItm]) -> dict[str, Any]:
    """Return the content of a model's `config.json`."""
    tokenizer = model.tokenizer
    vit = model.visual_encoder
    if isinstance(model, BlipItm):
        text = model.config
        config = {"architectures": ["BlipForImageTextRetrieval"]}
        config["image_text_hidden_size"] = model.text_proj.out_features
    else:
        text = model.text_decoder.config
        config = {"architectures": ["BlipForConditionalGeneration"], "tie_word_embeddings": True}
        config["label_smoothing"] = LABEL_SMOOTHING
        config["prompt"] = model.prompt  # not read by transformers
    return {
        **config,
        "model_type": "blip",
        "text_config": {
            "model_type": "blip_text_model",
            "vocab_size": len(tokenizer),
            "encoder_hidden_size": vit.embed_dim,
            **text.model_dump(exclude={"initializer_range"}),
            "label_smoothing": LABEL_SMOOTHING,
            **special_ids(tokenizer),
        },
        "vision_config": {
            "model_type": "blip_vision_model",
            **{theirs: getattr(vit.sizes, ours) for ours, theirs in HF_VIT.items()},
            "intermediate_size": vit.blocks[0].mlp.fc1.out_features,
            "image_size": vit.patch_embed.img_size[0],
        },
    }


def special_ids(tokenizer: CaptionTokenizer) -> dict[str, int]:
    """Return the ids of special tokens by transformers' names, such as bos_token_id."""
    end = tokenizer.end
    ids = {"bos": tokenizer.start, "eos": end, "sep": end, "pad": tokenizer.pad}
    return {f"{name}_token_id": token_id for name, token_id in ids.items()}


def save_hf(model: Union[BlipCaptioner, BlipItm], folder: Union[str, Path]) -> None:
    """Write a model as a folder that transformers loads, from version 4.26 on.

    Raises CheckpointError for a captioner with first_token_shift. The first token of its captions
    is a piece such as ##a, which transformers would append to the last word of the prompt.
    """
    if getattr(model, "shift", None) is not None:
        raise CheckpointError(
            "the captioner was trained with first_token_shift, which transformers does not "
            "support; python -m BLIP.export does"
        )
    folder = Path(folder)
    tokenizer = model.tokenizer
    config = hf_config(model)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.bert.save_model(str(folder))  # vocab.txt
    tokenizer.bert.save(str(folder / "tokenizer.json"))
    state = {k: v.contiguous() for k, v in to_hf_names(model.state_dict()).items()}
    with atomic_write(folder / "model.safetensors") as file:
        save_file(state, file, metadata={"format": "pt"})
    write_json(config, folder / "config.json")
    if isinstance(model, BlipCaptioner):
        write_json(special_ids(tokenizer), folder / "generation_config.json")
    write_json(tokenizer.added_ids, folder / "added_tokens.json")
    names = {"image_processor_type": "BlipImageProcessor", "processor_class": "BlipProcessor"}
    write_processing(tokenizer, config["vision_config"]["image_size"], names, folder)


def write_processing(tokenizer: CaptionTokenizer, size: int, names: dict, folder: Path) -> None:
    """Write tokenizer_config.json and preprocessor_config.json into `folder`.

    size: the height and width of an image in pixels. names: entries of preprocessor_config.json
    that name the classes, such as {"image_processor_type": "ViTImageProcessor"}. `save_hf` and
    `BLIP.export` call this.
    """
    normalizer = json.loads(tokenizer.bert.to_str())["normalizer"]
    tokenizer_config = {
        **json.loads(tokenizer.files.get(CONFIG, "{}")),
        **{key: normalizer[name] for key, name in OPTIONS.items() if name in normalizer},
        "tokenizer_class": "BertTokenizer",
        "clean_up_tokenization_spaces": True,
        "model_input_names": ["input_ids", "attention_mask"],
        "bos_token": "[DEC]",
        "additional_special_tokens": ["[ENC]"],
    }
    write_json(tokenizer_config, folder / "tokenizer_config.json")
    processor_config = {
        **names,
        "do_resize": True,
        "size": {"height": size, "width": size},
        "resample": 3,  # bicubic
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": MEAN,
        "image_std": STD,
        "do_convert_rgb": True,
    }
    write_json(processor_config, folder / "preprocessor_config.json")


def convert(command: str, checkpoint: str, target: str, license: str, **arguments: Any) -> str:
    """Write the folder with its card, or the file. Return a line to print.

    The checkpoint is loaded as BLIP's filter if it has the filter's head and no text decoder,
    otherwise as a captioner. arguments: those of `captioner_of`. Raises ValueError.
    """
    content = read_checkpoint(checkpoint, arguments["trust_checkpoint"])
    is_filter = HEAD in content["model"] and WORD_EMBEDDING not in content["model"]
    if is_filter:
        model, _ = load_itm(checkpoint, **arguments)
    else:
        model = captioner_of(checkpoint, **arguments)
    if command == "to-hf":
        save_hf(model, target)
        write_card(Path(target), checkpoint, run_config(content), license, "transformers")
        return f"wrote {target}"
    entries = {"model": model.state_dict(), "config": run_config(content)}
    with atomic_write(Path(target)) as file:
        torch.save({**entries, FILES: {"tokenizer": model.tokenizer.files}}, file)
    return f"wrote {target}"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program and return its exit code. argv: None reads the command line."""
    parser = argparse.ArgumentParser(
        "python -m BLIP.convert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("to-hf", "from-hf"))
    add_captioner_arguments(parser)
    parser.add_argument("target", help="the folder or the .pth file to write")
    parser.add_argument("--license", default="unknown", help="for a folder's card")
    arguments = vars(parser.parse_args(argv))
    return run_program(lambda: convert(**arguments))


if __name__ == "__main__":
    sys.exit(main())
