"""Declares the configuration keys that all captioners share, and the role of each key.

A key's role is in its type annotation. A key without an annotated role has the role "run". The
package of a captioner declares the keys of that captioner, and the class of a metric or reward
declares the keys of that metric or reward.
"""

from typing import Annotated, Any, Literal, Optional, TypeVar, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from captioning.captioners.registry import CAPTIONERS
from captioning.metrics import DEFAULT_EVALUATORS, EVALUATORS

# A key of role "run" changes the results: a resumed run must have the same value. The other roles:
ROLES = ("run", "batch", "length", "speed", "upkeep", "data", "machine", "generation", "scoring")
# Upkeep[bool] is the type of a key that is a bool and has the role "upkeep".
T = TypeVar("T")
# The product of these keys and the number of processes is the number of images per step. A resumed
# run must have the same product.
Batch = Annotated[T, "batch"]
Length = Annotated[T, "length"]  # the run's: may change if finished epochs do not depend on it
Speed = Annotated[T, "speed"]  # changes speed and memory, but no result
Upkeep = Annotated[T, "upkeep"]  # how a run is logged, saved, validated, stopped: may change
Data = Annotated[T, "data"]  # the paths of data, which may have moved
Machine = Annotated[T, "machine"]  # where the run is written and on which device it runs
Generation = Annotated[T, "generation"]  # how captions are generated
Scoring = Annotated[T, "scoring"]  # how captions are scored

# {reranker: the key that names its model, or None}; see `captioning.models.reranking`
RERANKERS: dict[str, Optional[str]] = {"mmi": None, "clip": "clip_model", "itm": "itm_model"}

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
Name = Annotated[str, Field(min_length=1)]
Files = Union[str, list[str], None]


def roles_of(keys: type[BaseModel]) -> dict[str, str]:
    """Return {key: role}. The role is the one in the key's annotation, or "run" without one."""
    return {
        name: next((part for part in field.metadata if part in ROLES), "run")
        for name, field in keys.model_fields.items()
    }


class Lora(BaseModel):
    """The value of the configuration key `lora`.

    - r, alpha, dropout, target_modules: `r`, `lora_alpha`, `lora_dropout` and `target_modules` of
      peft's LoraConfig
    - load_in_4bit: quantise the frozen weights to 4 bits (QLoRA, arXiv 2305.14314)
    """

    model_config = STRICT

    r: int = Field(16, gt=0, le=65_536)
    alpha: float = Field(32.0, gt=0)
    dropout: float = Field(0.05, ge=0, lt=1)
    target_modules: Union[str, list[str]] = Field("all-linear", min_length=1)
    load_in_4bit: bool = False


class Keys(BaseModel):
    """The keys of the original BLIP, then further keys. docs/settings.md describes each key.

    An unknown key is an error. Values are not converted to another type, except an integer to a
    float.
    """

    model_config = STRICT

    model: Literal[tuple(CAPTIONERS)] = "blip"
    image_root: Data[str]
    ann_root: Data[str]
    coco_gt_root: Data[Optional[str]] = None
    pretrained: Optional[str] = None
    batch_size: Batch[PositiveInt] = 32
    init_lr: PositiveFloat = 1e-5
    vit_grad_ckpt: Speed[bool] = False
    image_size: int = Field(384, gt=0, le=4096)
    max_length: Generation[int] = Field(20, le=10_000)
    min_length: Generation[int] = 5
    num_beams: Generation[int] = Field(3, le=1000)
    prompt: str = "a picture of "
    weight_decay: NonNegativeFloat = 0.05
    min_lr: NonNegativeFloat = 0.0
    max_epoch: Length[PositiveInt] = 5

    reward: Optional[dict[str, float]] = None
    reward_samples: int = Field(5, gt=0, le=1000)
    reward_temperature: PositiveFloat = 1.0
    reward_baseline: Literal["others", "greedy"] = "others"
    objective: Union[str, dict[str, Union[float, dict[str, Any]]], None] = "mle"
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    first_token_mle: Optional[bool] = Field(None, validate_default=True)
    random_subset_size: int = Field(10, gt=0, le=100_000)
    drop_image: float = Field(0.0, ge=0, lt=1)

    dataset: Literal["coco", "flickr30k", "custom"] = "coco"
    train_file: Files = None
    val_file: Data[Files] = None
    test_file: Data[Files] = None
    val_gt_file: Data[Optional[str]] = None
    test_gt_file: Data[Optional[str]] = None
    captions_per_image: int = Field(1, gt=0, le=1000)
    max_words: PositiveInt = 30
    max_tokens: int = Field(40, gt=2)
    exif: Optional[bool] = Field(None, validate_default=True)
    augmentation: Literal["blip", "weak", "none"] = "blip"
    augmentation_strength: float = Field(0.1, ge=0, le=1)
    skip_bad_images: bool = False
    shuffle_buffer: PositiveInt = 50_000
    num_workers: Speed[int] = Field(4, ge=0, le=1000)

    lora: Optional[Lora] = None

    tokenizer: Name = "bert-base-uncased"
    trust_checkpoint: Upkeep[bool] = False

    precision: Literal["fp32", "bf16", "fp16", "int8"] = "fp32"
    compile: Speed[bool] = False
    sharding: Speed[Literal["none", "fsdp"]] = "none"
    accumulation_steps: Batch[PositiveInt] = 1
    optimizer: Literal["adamw", "adam"] = "adamw"
    clip_grad_norm: Optional[PositiveFloat] = None
    clip_grad_value: Optional[PositiveFloat] = None
    warmup_steps: NonNegativeInt = 0
    warmup_lr: NonNegativeFloat = 0.0
    lr_schedule: Literal["cosine", "cosine_steps", "cosine_restarts", "exponential", "plateau"] = (
        "cosine"
    )
    lr_cycles: int = Field(3, gt=0, le=100)
    lr_cycle_growth: float = Field(1.0, ge=1, le=10)
    lr_decay: float = Field(0.8, gt=0, le=1)
    lr_patience: NonNegativeInt = 2
    early_stopping: Upkeep[Optional[PositiveInt]] = None
    monitor: str = "Bleu_4"
    select: Upkeep[Optional[str]] = None
    bucket_batches: bool = False
    checkpoint_every: Upkeep[Optional[PositiveInt]] = 1000
    keep_checkpoints: Upkeep[Union[PositiveInt, Literal["all"]]] = 2
    rank_timeout: Upkeep[PositiveFloat] = 1800.0
    eval_every: Upkeep[PositiveInt] = 1
    log_every: Upkeep[PositiveInt] = 10
    save_candidates: Upkeep[bool] = False

    eval_batch_size: Speed[Optional[PositiveInt]] = None
    sample: Generation[bool] = False
    top_p: Generation[float] = 0.9
    top_k: Generation[int] = 50
    temperature: Generation[float] = 1.0
    length_penalty: Generation[float] = 1.0
    repetition_penalty: Generation[float] = 1.0
    no_repeat_ngram_size: Generation[int] = 0
    num_beam_groups: Generation[int] = 1
    diversity_penalty: Generation[float] = 0.0
    rerank: Generation[Optional[Literal[tuple(RERANKERS)]]] = None
    num_candidates: Generation[int] = Field(20, ge=2, le=1000)
    candidates: Generation[Literal["samples", "beams"]] = "samples"
    rerank_weight: Generation[float] = Field(0.5, ge=0, le=1)
    guidance_scale: Generation[float] = 1.0
    language: Scoring[str] = Field("en", pattern="^[a-z]{2}$")
    metrics: Scoring[list[Literal[tuple(EVALUATORS)]]] = Field(
        list(DEFAULT_EVALUATORS), min_length=1
    )

    output_dir: Machine[Name]
    device: Machine[Name] = "auto"
    seed: int = Field(42, ge=0, lt=2**63)
    # Declared after `seed`, because its validator uses `seed` as the default seed of the split.
    split: Optional[dict[str, Union[int, float, str]]] = None
