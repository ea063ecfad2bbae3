"""The configuration keys that all captioners share, each with its role.

The keys of one captioner are declared in its package, those of a metric or reward on its class.
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

ROLES = {
    "run": "changes the results: a run that resumes refuses another value",
    "batch": "the product of these is the images of a step: a run that resumes refuses another",
    "length": "how long a run is: refused where it changes the epochs that are done",
    "speed": "changes speed and memory, but no result",
    "upkeep": "how a run is logged, saved, validated and stopped: may change when it resumes",
    "data": "where data are, which may have moved",
    "machine": "where the run is written and on which device it runs",
    "generation": "how captions are generated",
    "scoring": "how captions are scored",
}

Name = Annotated[str, Field(min_length=1)]


def roles_of(keys: type[BaseModel]) -> dict[str, str]:
    """The role of each key, by name. Raises TypeError unless each key declares one role."""
    found = {}
    for name, field in keys.model_fields.items():
        declared = [part for part in field.metadata if isinstance(part, str) and part in ROLES]
        if len(declared) != 1:
            raise TypeError(f"key {name!r} declares {declared}; give it one of {', '.join(ROLES)}")
        found[name] = declared[0]
    return found


class Keys(BaseModel):
    """The original's names come first. docs/settings.md describes each key.

    Unknown keys are refused. Types are not converted, except an integer to a float.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    model: Annotated[Literal[tuple(CAPTIONERS)], "run"] = "blip"
    image_root: Annotated[str, "data"]
    ann_root: Annotated[str, "data"]
    coco_gt_root: Annotated[Optional[str], "data"] = None
    pretrained: Annotated[Optional[str], "run"] = None
    batch_size: Annotated[PositiveInt, "batch"] = 32
    init_lr: Annotated[PositiveFloat, "run"] = 1e-5
    vit_grad_ckpt: Annotated[bool, "speed"] = False
    image_size: Annotated[int, "run"] = Field(384, gt=0, le=4096)
    max_length: Annotated[int, "generation"] = Field(20, le=10_000)
    min_length: Annotated[int, "generation"] = 5
    num_beams: Annotated[int, "generation"] = Field(3, le=1000)
    prompt: Annotated[str, "run"] = "a picture of "
    weight_decay: Annotated[NonNegativeFloat, "run"] = 0.05
    min_lr: Annotated[NonNegativeFloat, "run"] = 0.0
    max_epoch: Annotated[PositiveInt, "length"] = 5

    reward: Annotated[Optional[dict[str, float]], "run"] = None
    reward_samples: Annotated[int, "run"] = Field(5, gt=0, le=1000)
    reward_temperature: Annotated[PositiveFloat, "run"] = 1.0
    reward_baseline: Annotated[Literal["others", "greedy"], "run"] = "others"
    reward_kl: Annotated[NonNegativeFloat, "run"] = 0.0
    objective: Annotated[Union[str, dict[str, Union[float, dict[str, Any]]], None], "run"] = "mle"
    label_smoothing: Annotated[float, "run"] = Field(0.1, ge=0, lt=1)
    first_token_mle: Annotated[Optional[bool], "run"] = Field(None, validate_default=True)
    random_subset_size: Annotated[int, "run"] = Field(10, gt=0, le=100_000)
    drop_image: Annotated[float, "run"] = Field(0.0, ge=0, lt=1)
    null_image: Annotated[Literal[NULL_IMAGES], "run"] = "zeros"

    dataset: Annotated[Literal["coco", "flickr30k", "custom"], "run"] = "coco"
    train_file: Annotated[Union[str, list[str], None], "run"] = None
    val_file: Annotated[Union[str, list[str], None], "data"] = None
    test_file: Annotated[Union[str, list[str], None], "data"] = None
    val_gt_file: Annotated[Optional[str], "data"] = None
    test_gt_file: Annotated[Optional[str], "data"] = None
    captions_per_image: Annotated[int, "run"] = Field(1, gt=0, le=1000)
    max_words: Annotated[PositiveInt, "run"] = 30
    max_tokens: Annotated[int, "run"] = Field(40, gt=2)
    augmentation: Annotated[Literal["blip", "weak", "none"], "run"] = "blip"
    augmentation_strength: Annotated[float, "run"] = Field(0.1, ge=0, le=1)
    input: Annotated[Literal["fast", "exact"], "run"] = "fast"
    skip_bad_images: Annotated[bool, "run"] = False
    shuffle_buffer: Annotated[PositiveInt, "run"] = 50_000
    num_workers: Annotated[int, "speed"] = Field(4, ge=0, le=1000)

    lora: Annotated[Optional[Lora], "run"] = None

    tokenizer: Annotated[Name, "run"] = "bert-base-uncased"
    trust_checkpoint: Annotated[bool, "upkeep"] = False

    precision: Annotated[Literal["fp32", "bf16", "fp16", "int8"], "run"] = "fp32"
    compile: Annotated[bool, "speed"] = False
    sharding: Annotated[Literal["none", "fsdp"], "speed"] = "none"
    accumulation_steps: Annotated[PositiveInt, "batch"] = 1
    optimizer: Annotated[Literal["adamw", "adam"], "run"] = "adamw"
    clip_grad_norm: Annotated[Optional[PositiveFloat], "run"] = None
    clip_grad_value: Annotated[Optional[PositiveFloat], "run"] = None
    warmup_steps: Annotated[NonNegativeInt, "run"] = 0
    warmup_lr: Annotated[NonNegativeFloat, "run"] = 0.0
    lr_schedule: Annotated[
        Literal["cosine", "cosine_steps", "cosine_restarts", "exponential", "plateau"], "run"
    ] = "cosine"
    lr_cycles: Annotated[int, "run"] = Field(3, gt=0, le=100)
    lr_cycle_growth: Annotated[float, "run"] = Field(1.0, ge=1, le=10)
    lr_decay: Annotated[float, "run"] = Field(0.8, gt=0, le=1)
    lr_patience: Annotated[NonNegativeInt, "run"] = 2
    early_stopping: Annotated[Optional[PositiveInt], "upkeep"] = None
    monitor: Annotated[str, "run"] = "Bleu_4"
    select: Annotated[Optional[str], "upkeep"] = None
    bucket_batches: Annotated[bool, "run"] = False
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
    seed: Annotated[int, "run"] = Field(42, ge=0, lt=2**63)
    # Declared after `seed`, which is the default of the split's own seed.
    split: Annotated[Optional[dict[str, Union[int, float, str]]], "run"] = None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs) -> None:
        roles_of(cls)
