"""The flags of a served model, and what each of the others means to it."""

import argparse
from functools import partial
from typing import Any, Callable

from captioning.bulk.served import PROMPT, Question, Served, server_at
from captioning.config import Config
from captioning.runtime.errors import UserError
from decoding import DecodingSettings

AT_ONCE = 32
TOKENS = 256  # of a caption, at most
READERS = 2

# What the interface calls a flag. The last three are not OpenAI's; vLLM and SGLang take them.
FIELDS = {
    "max_length": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}
OF_SAMPLING = ("temperature", "top_p", "top_k", "min_p")
OWN = ("url", "prompt", "concurrency")
# Flags that mean nothing to a server, and what they are where nobody gave them.
MEANINGLESS = {"config": None, "device": "auto", "precision": None}


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a model that is served (CHECKPOINT is its name)")
    group.add_argument("--backend", choices=("checkpoint", "openai"), default="checkpoint")
    group.add_argument(
        "--url", help="of a server with OpenAI's chat interface: http://host:8000/v1"
    )
    group.add_argument("--prompt", help=f"asked of each image; default: {PROMPT!r}")
    group.add_argument("--concurrency", type=int, help=f"requests at once; default: {AT_ONCE}")


def check(arguments: argparse.Namespace, decoding: dict[str, str]) -> None:
    """Raise UserError for flags that do not go together. decoding: those of how to draw."""
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
            raise UserError(f"--{name} is none of what --backend openai can ask of a server")
    if not arguments.do_sample:
        for name in OF_SAMPLING:
            if getattr(arguments, name) is not None:
                raise UserError(f"--{name} is of sampling, and needs --do_sample")
        if arguments.num_return > 1:
            raise UserError(f"--num_return {arguments.num_return} needs --do_sample: all are alike")
    server_at(arguments.url)


def question_of(arguments: argparse.Namespace) -> Question:
    """What the flags ask of each image. Raises UserError."""
    given = {name: getattr(arguments, name) for name in FIELDS}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        DecodingSettings(sample=True, min_length=0, **given)
    except ValueError as error:
        raise UserError(f"--{error}") from error
    if given.get("top_k") == 0:
        del given["top_k"]  # as it is where nothing is said of it
    fields = {"max_tokens": TOKENS, **{FIELDS[name]: value for name, value in given.items()}}
    seed = None
    if arguments.do_sample:
        seed = Config.model_fields["seed"].default if arguments.seed is None else arguments.seed
    else:
        fields["temperature"] = 0
    prompt = arguments.prompt or PROMPT
    return Question(arguments.checkpoint, prompt, fields, arguments.num_return, seed)


def served(arguments: argparse.Namespace) -> tuple[dict[str, Any], Callable[[], Served]]:
    """What makes the captions what they are, and what makes the captioner. Raises UserError.

    Where the model is served, and the key to it, change no caption.
    """
    question = question_of(arguments)
    at_once = arguments.concurrency or AT_ONCE
    readers = READERS if arguments.num_workers is None else arguments.num_workers
    batch = arguments.batch_size or at_once
    settings = {
        "backend": arguments.backend,
        "checkpoint": question.name,
        "prompt": question.prompt,
        "seed": question.seed,
        **question.fields,
    }
    return settings, partial(Served, question, arguments.url, at_once, batch, readers)
