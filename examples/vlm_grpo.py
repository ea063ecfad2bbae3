"""Fine-tune a vision-language model with rewards of captions, by TRL's GRPO and LoRA.

    pip install trl peft torchvision    # after requirements.txt, in a checkout of this repository
    python -m examples.vlm_grpo configs/vlm_coco.yaml --reward "{cider: 1}" output_dir=output/grpo

The configuration file is one for captioning.train with `model: vlm`. A step samples
`reward_samples` captions of up to `max_tokens` tokens for each of `batch_size` photos. With
--likelihood W, the loss also has W times the configuration's `objective`, on a batch of as many
human captions. The program saves the merged model and its processor in `output_dir`, from which
transformers' `from_pretrained` and the configuration key `vlm` can load them.
"""

import argparse
from itertools import chain, repeat

import torch
from datasets import Dataset, Image
from peft import LoraConfig
from torch.utils.data import DataLoader
from transformers import AutoModelForImageTextToText
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

from captioning.config import load_config
from captioning.config.keys import Lora
from captioning.config.loading import parse_yaml
from captioning.data.sources import read_split
from captioning.files.tables import is_row
from captioning.rewards.interface import TrainingImages
from captioning.rewards.registry import check_rewards
from captioning.rewards.trl import reward_function
from captioning.runtime.errors import UserError
from vlm.library import load_parts


class LikelihoodGRPOTrainer(GRPOTrainer):
    """Adds `weight` times `objective`, on batches of human captions, to GRPO's loss.

    `train` sets `weight`, `objective` and `human_batches`, an endless iterator of batches.
    """

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not (self.weight and model.training):
            return loss
        batch = {name: value.to(loss.device) for name, value in next(self.human_batches).items()}
        labels = batch.pop("labels")[:, 1:]
        likelihood = self.objective(model(**batch).logits[:, :-1], labels)
        for name, value in likelihood.parts.items():
            self._metrics["train"][name].append(value.item())
        # GRPO's loss is already divided by the number of accumulation steps.
        return loss + self.weight * likelihood.loss / self.current_gradient_accumulation_steps


def train(flags: argparse.Namespace) -> LikelihoodGRPOTrainer:
    """Train and save the model; return the trainer.

    Raises UserError, ValueError or OSError if settings are wrong or files cannot be read.
    """
    config = load_config(flags.config, ["model=vlm", *flags.overrides])
    weights = parse_yaml(flags.reward, "--reward")
    if not isinstance(weights, dict):
        raise UserError(f"--reward is {weights!r}: give weights by name, such as {{cider: 1}}")
    check_rewards(weights)
    samples = read_split(config, "train")
    if any(sample.prompt or is_row(sample.image) for sample in samples):
        raise UserError("a column prompt and images in Parquet are not supported here: give files")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = TrainingImages.from_samples(samples, config.image_root, device)
    processor = load_parts(config.vlm).processor
    processor.tokenizer.padding_side = "left"
    ends = [processor.tokenizer.eos_token_id]
    messages = [{"role": "user", "content": config.prompt}]
    prompts = [
        {"prompt": messages, "image": str(file), "image_id": image_id}
        for image_id, file in images.files.items()
    ]
    human = [
        {**row, "completion": [{"role": "assistant", "content": text}]}
        for row in prompts
        for text in images.captions[row["image_id"]]
    ]
    prompts, human = (
        Dataset.from_list(rows).cast_column("image", Image()) for rows in (prompts, human)
    )
    lora = config.lora or Lora()
    trainer = LikelihoodGRPOTrainer(
        AutoModelForImageTextToText.from_pretrained(config.vlm, dtype=torch.float32),
        [reward_function(name, images, ends, config) for name in weights],
        GRPOConfig(
            config.output_dir,
            per_device_train_batch_size=config.batch_size * config.reward_samples,
            num_generations=config.reward_samples,
            max_completion_length=config.max_tokens,
            temperature=config.reward_temperature,
            reward_weights=list(weights.values()),
            learning_rate=config.init_lr,
            max_steps=flags.steps,
            seed=config.seed,
            bf16=torch.cuda.is_available(),
            save_strategy="no",
            report_to="none",
        ),
        prompts,
        processing_class=processor,
        peft_config=LoraConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=lora.target_modules),
    )
    collate = DataCollatorForVisionLanguageModeling(processor, completion_only_loss=True)
    size = trainer.args.per_device_train_batch_size
    loader = DataLoader(human, size, shuffle=True, collate_fn=collate)
    trainer.human_batches = chain.from_iterable(repeat(loader))
    trainer.objective, trainer.weight = config.build_objective(), flags.likelihood
    trainer.train()
    trainer.model.merge_and_unload().save_pretrained(config.output_dir)
    processor.save_pretrained(config.output_dir)
    return trainer


def main(argv=None) -> LikelihoodGRPOTrainer:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config", help="a YAML file of model vlm")
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--reward", required=True, help="weights by name, such as {cider: 1}")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--likelihood", type=float, default=0, help="the objective's weight")
    try:
        return train(parser.parse_intermixed_args(argv))
    except (UserError, ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
