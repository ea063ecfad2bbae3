"""The flags of a served model, and checks of the flags that it does not support."""

import argparse
from functools import partial
from typing import Any, Callable

from captioning.bulk.served import PROMPT, ChatPrompt, ServedModel, server_at
from captioning.config import Config
from captioning.runtime.errors import UserError
from decoding import DecodingSettings

CONCURRENCY = 32
MAX_TOKENS = 256
READERS = 2

# Our flags and the fields of the request. The last three fields are extensions of vLLM and SGLang.
FIELDS = {
    "max_length": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}
SAMPLING = ("temperature", "top_p", "top_k", "min_p")
OWN = ("url", "prompt", "concurrency")
# Flags that do not apply to a server, with their defaults.
MEANINGLESS = {"config": None, "device": "auto", "precision": None}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("a served model (CHECKPOINT is its name)").add_argument
    add("--backend", choices=("checkpoint", "openai"), default="checkpoint")
    add("--url", help="a server with OpenAI's chat interface: http://host:8000/v1")
    add("--prompt", help=f"sent with each image; default: {PROMPT!r}")
    add("--concurrency", type=int, help=f"requests at once; default: {CONCURRENCY}")


def check(arguments: argparse.Namespace, decoding: dict[str, str]) -> None:
    """Raise UserError for flags that cannot be combined. decoding: the decoding flags."""
    given = [name for name in OWN if getattr(arguments, name) is not None]
    if arguments.backend == "checkpoint":
        if given:
            raise UserError(f"--{given[0]} is for --backend openai")
        return
    if arguments.engine == "ray" or arguments.ray_address is not None:
        raise UserError("--engine ray is for a checkpoint; --backend openai has --concurrency")
    if not arguments.url:
        raise UserError("--backend openai needs --url, such as http://localhost:8000/v1")
    if arguments.concurrency is not None and arguments.concurrency < 1:
        raise UserError(f"--concurrency is {arguments.concurrency}; it has to be 1 or more")
    if arguments.prompt is not None and not arguments.prompt.strip():
        raise UserError("--prompt is empty; leave it out for the default")
    unset = {**MEANINGLESS, **{name: None for name in decoding if name not in FIELDS}}
    for name, value in unset.items():
        if getattr(arguments, name) != value:
            raise UserError(f"--{name} does not apply to --backend openai")
    if not arguments.do_sample:
        for name in SAMPLING:
            if getattr(arguments, name) is not None:
                raise UserError(f"--{name} needs --do_sample")
        if arguments.num_return > 1:
            raise UserError(
                f"--num_return {arguments.num_return} needs --do_sample: without sampling, all "
                "captions of an image are the same"
            )
    server_at(arguments.url)


def served(arguments: argparse.Namespace) -> tuple[dict[str, Any], Callable[[], ServedModel]]:
    """The settings that identify the run, and a function that builds the captioner.

    The server's address and key do not identify the run: they change no caption. Raises UserError.
    """
    given = {name: getattr(arguments, name) for name in FIELDS}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        DecodingSettings(sample=True, min_length=0, **given)
    except ValueError as error:
        raise UserError(f"--{error}") from error
    if given.get("top_k") == 0:
        del given["top_k"]  # 0 switches top-k off; leaving the field out does the same
    fields = {"max_tokens": MAX_TOKENS, **{FIELDS[name]: value for name, value in given.items()}}
    seed = None
    if arguments.do_sample:
        seed = Config.model_fields["seed"].default if arguments.seed is None else arguments.seed
    else:
        fields["temperature"] = 0
    prompt = ChatPrompt(
        arguments.checkpoint, arguments.prompt or PROMPT, fields, arguments.num_return, seed
    )
    concurrency = arguments.concurrency or CONCURRENCY
    readers = READERS if arguments.num_workers is None else arguments.num_workers
    batch_size = arguments.batch_size or concurrency
    settings = {
        "backend": arguments.backend,
        "checkpoint": prompt.name,
        "prompt": prompt.prompt,
        "seed": seed,
        **fields,
    }
    load = partial(ServedModel, prompt, arguments.url, concurrency, batch_size, readers)
    return settings, load
