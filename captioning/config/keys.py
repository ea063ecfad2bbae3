"""Declares the configuration keys that all captioners share, and the role of each key.

A key's role is in its type annotation. A key without an annotated role has the role "run". The
package of a captioner declares the keys of that captioner, and the class of a metric or reward
declares the keys of that metric or reward.
"""

from typing import Annotated, Any, Literal, Optional, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from adapters.lora import Lora
from captioning.captioners.registry import CAPTIONERS
from captioning.config.rerankers import RERANKERS
from captioning.metrics.registry import DEFAULT_METRICS, EVALUATORS
from decoding.null_image import NULL_IMAGES

ROLES = (
    "run",  # changes the results: a resumed run must have the same value
    # The product of these keys and the number of processes is the number of images per step. A
    # resumed run must have the same product.
    "batch",
    "length",  # the length of a run: may change if finished epochs do not depend on it
    "speed",  # changes speed and memory, but no result
    "upkeep",  # how a run is logged, saved, validated and stopped: may change when it resumes
    "data",  # the paths of data, which may have moved
    "machine",  # where the run is written and on which device it runs
    "generation",  # how captions are generated
    "scoring",  # how captions are scored
)

Name = Annotated[str, Field(min_length=1)]


def roles_of(keys: type[BaseModel]) -> dict[str, str]:
    """Return {key: role}. The role is the one in the key's annotation, or "run" without one."""
    return {
        name: next((part for part in field.metadata if part in ROLES), "run")
        for name, field in keys.model_fields.items()
    }


class Keys(BaseModel):
    """The keys of the original BLIP, then further keys. docs/settings.md describes each key.

    An unknown key is an error. Values are not converted to another type, except an integer to a
    float.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    model: Literal[tuple(CAPTIONERS)] = "blip"
    image_root: Annotated[str, "data"]
    ann_root: Annotated[str, "data"]
    coco_gt_root: Annotated[Optional[str], "data"] = None
    pretrained: Optional[str] = None
    batch_size: Annotated[PositiveInt, "batch"] = 32
    init_lr: PositiveFloat = 1e-5
    vit_grad_ckpt: Annotated[bool, "speed"] = False
    image_size: int = Field(384, gt=0, le=4096)
    max_length: Annotated[int, "generation"] = Field(20, le=10_000)
    min_length: Annotated[int, "generation"] = 5
    num_beams: Annotated[int, "generation"] = Field(3, le=1000)
    prompt: str = "a picture of "
    weight_decay: NonNegativeFloat = 0.05
    min_lr: NonNegativeFloat = 0.0
    max_epoch: Annotated[PositiveInt, "length"] = 5

    reward: Optional[dict[str, float]] = None
    reward_samples: int = Field(5, gt=0, le=1000)
    reward_temperature: PositiveFloat = 1.0
    reward_baseline: Literal["others", "greedy"] = "others"
    reward_kl: NonNegativeFloat = 0.0
    objective: Annotated[Union[str, dict[str, Union[float, dict[str, Any]]], None], "run"] = "mle"
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    first_token_mle: Optional[bool] = Field(None, validate_default=True)
    random_subset_size: int = Field(10, gt=0, le=100_000)
    drop_image: float = Field(0.0, ge=0, lt=1)
    null_image: Literal[NULL_IMAGES] = "zeros"

    dataset: Literal["coco", "flickr30k", "custom"] = "coco"
    train_file: Union[str, list[str], None] = None
    val_file: Annotated[Union[str, list[str], None], "data"] = None
    test_file: Annotated[Union[str, list[str], None], "data"] = None
    val_gt_file: Annotated[Optional[str], "data"] = None
    test_gt_file: Annotated[Optional[str], "data"] = None
    captions_per_image: int = Field(1, gt=0, le=1000)
    max_words: PositiveInt = 30
    max_tokens: int = Field(40, gt=2)
    augmentation: Literal["blip", "weak", "none"] = "blip"
    augmentation_strength: float = Field(0.1, ge=0, le=1)
    input: Literal["fast", "exact"] = "fast"
    skip_bad_images: bool = False
    shuffle_buffer: PositiveInt = 50_000
    num_workers: Annotated[int, "speed"] = Field(4, ge=0, le=1000)

    lora: Optional[Lora] = None

    tokenizer: Name = "bert-base-uncased"
    trust_checkpoint: Annotated[bool, "upkeep"] = False

    precision: Literal["fp32", "bf16", "fp16", "int8"] = "fp32"
    compile: Annotated[bool, "speed"] = False
    sharding: Annotated[Literal["none", "fsdp"], "speed"] = "none"
    accumulation_steps: Annotated[PositiveInt, "batch"] = 1
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
    early_stopping: Annotated[Optional[PositiveInt], "upkeep"] = None
    monitor: str = "Bleu_4"
    select: Annotated[Optional[str], "upkeep"] = None
    bucket_batches: bool = False
    resume: Annotated[Literal["auto", "never"], "upkeep"] = "auto"
    checkpoint_every: Annotated[Optional[PositiveInt], "upkeep"] = 1000
    keep_checkpoints: Annotated[Union[PositiveInt, Literal["all"]], "upkeep"] = 2
    checkpoint_format: Annotated[Literal["whole", "sharded"], "upkeep"] = "whole"
    rank_timeout: Annotated[PositiveFloat, "upkeep"] = 1800.0
    eval_every: Annotated[PositiveInt, "upkeep"] = 1
    log_every: Annotated[PositiveInt, "upkeep"] = 10
    save_candidates: Annotated[bool, "upkeep"] = False

    eval_batch_size: Annotated[Optional[PositiveInt], "speed"] = None
    sample: Annotated[bool, "generation"] = False
    top_p: Annotated[float, "generation"] = 0.9
    top_k: Annotated[int, "generation"] = 50
    temperature: Annotated[float, "generation"] = 1.0
    length_penalty: Annotated[float, "generation"] = 1.0
    repetition_penalty: Annotated[float, "generation"] = 1.0
    no_repeat_ngram_size: Annotated[int, "generation"] = 0
    num_beam_groups: Annotated[int, "generation"] = 1
    diversity_penalty: Annotated[float, "generation"] = 0.0
    min_p: Annotated[float, "generation"] = 0.0
    typical_p: Annotated[float, "generation"] = 1.0
    rerank: Annotated[Optional[Literal[tuple(RERANKERS)]], "generation"] = None
    num_candidates: Annotated[int, "generation"] = Field(20, ge=2, le=1000)
    candidates: Annotated[Literal["samples", "beams"], "generation"] = "samples"
    rerank_weight: Annotated[float, "generation"] = Field(0.5, ge=0, le=1)
    rerank_judge: Annotated[Optional[str], "generation"] = None
    guidance_scale: Annotated[float, "generation"] = 1.0
    contrastive_alpha: Annotated[float, "generation"] = 0.0
    contrastive_beta: Annotated[float, "generation"] = 0.1
    contrastive_noise: Annotated[int, "generation"] = 500
    metrics: Annotated[list[Literal[tuple(EVALUATORS)]], "scoring"] = Field(
        list(DEFAULT_METRICS), min_length=1
    )

    output_dir: Annotated[Name, "machine"]
    device: Annotated[Name, "machine"] = "auto"
    seed: int = Field(42, ge=0, lt=2**63)
    # Declared after `seed`, because its validator uses `seed` as the default seed of the split.
    split: Optional[dict[str, Union[int, float, str]]] = None
