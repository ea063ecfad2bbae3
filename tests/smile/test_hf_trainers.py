"""SmileLossMixin: one step of each trainer is the definition's, and logs the objective alone."""

import pytest
import transformers

from smile import Objective
from smile.hf import use_smile
from tests.markers import slow
from tests.smile import trainer_parts as parts
from tests.smile.hf_steps import T5, made
from tests.smile.trainer_parts import SmileSFTTrainer, SmileTrainer, check, ids, make

ONE_ROW = {"packing": True, "max_length": 64}
SEVERAL_ROWS = {"packing": True, "max_length": 20}
STEPS = {
    "padded": {},
    "packed": ONE_ROW,
    "packed in several rows": SEVERAL_ROWS,
    "padding-free": {"padding_free": True, "max_length": None},
    "accumulated in uneven parts": parts.UNEVEN,
    "packed and accumulated": {**SEVERAL_ROWS, **parts.SINGLY},
    "recomputed": {parts.RECOMPUTES: True},
}
SLOW = ("padding-free", "recomputed")


@pytest.mark.parametrize("step", [slow(step) if step in SLOW else step for step in STEPS])
def test_a_step_of_sft_is_the_definitions(step, tmp_path):
    trainer = make(SmileSFTTrainer, tmp_path, eval_dataset=parts.data_set(), **STEPS[step])
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] == pytest.approx(parts.expected()[0], rel=1e-6)
    entry = check(trainer)
    figures = {"num_tokens", "entropy", "mean_token_accuracy"}  # of TRL's own loss
    assert not figures & {name.removeprefix("eval_") for name in (*entry, *metrics)}


PACKED = pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])


@PACKED
def test_completions_alone_are_scored_and_have_logits_in_training(packed, tmp_path):
    """In evaluation, all positions have logits."""
    data = [{"prompt": parts.PROMPT, "completion": " " + caption} for caption in parts.CAPTIONS]
    asked, said = ids(parts.PROMPT), [ids(caption + " <end>") for caption in parts.CAPTIONS]
    rows = [parts.row_of(asked, x) for x in said]
    options = {"eval_dataset": parts.data_set(data), **(ONE_ROW if packed else {})}
    trainer, positions = make(SmileSFTTrainer, tmp_path, data, **options), []
    head = trainer.model.get_output_embeddings()
    head.register_forward_pre_hook(lambda _, hidden: positions.append(hidden[0].size(1)))
    loss = parts.expected(rows)[0]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-6)
    check(trainer, rows)
    count = sum if packed else max
    assert positions == [count(len(asked + x) for x in said), count(map(len, said))]


@PACKED
def test_each_turn_of_an_assistant_is_a_caption(packed, tmp_path):
    data, expected = [], []
    for one, other in zip(parts.CAPTIONS, parts.CAPTIONS[1:]):
        turns = [("user", "a star"), ("assistant", one), ("user", "disc"), ("assistant", other)]
        data.append({"messages": [{"role": role, "content": text} for role, text in turns]})
        asked, first = ids("user a star"), ids(f"{one} <end>")
        again = [*asked, *first, *ids("user disc")]
        expected += [parts.row_of(asked, first), parts.row_of(again, ids(f"{other} <end>"))]
    options = {"packing": packed, "max_length": 128, "assistant_only_loss": True}
    check(make(SmileSFTTrainer, tmp_path, data, **options), expected)


@pytest.mark.parametrize(
    ("cls", "name"), [(SmileTrainer, "LlamaForCausalLM"), (parts.SmileSeq2SeqTrainer, T5)]
)
def test_an_accumulated_step_of_transformers_trainers_is_the_definitions(cls, name, tmp_path):
    model = made(name).model
    model.accepts_loss_kwargs = False  # as of Qwen-VL, whose loss divides by its own tokens
    check(make(cls, tmp_path, model=model, **parts.UNEVEN), model=made(name).model)


@pytest.mark.parametrize(
    ("cls", "objective"),
    [(SmileTrainer, None), (SmileSFTTrainer, Objective("reverse", first_token_mle=False))],
)
def test_the_default_is_smile_and_an_objective_keeps_its_options(cls, objective, tmp_path):
    check(make(cls, tmp_path, objective=objective), objective=objective or Objective("smile"))


def test_a_flattening_collators_row_is_trained_as_separate_captions(tmp_path):
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    check(make(SmileTrainer, tmp_path, data_collator=collate))


@pytest.mark.parametrize("cls", [SmileTrainer, slow(SmileSFTTrainer)])
def test_weights_of_rows_weigh_loss_and_gradients(cls, tmp_path):
    data = [{**row, "weights": 0.5 + number} for number, row in enumerate(parts.rows())]
    collate = transformers.DataCollatorForSeq2Seq(parts.tokenizer())
    trainer = make(cls, tmp_path, data, data_collator=collate, **parts.UNEVEN)
    check(trainer, [{**row, "weights": [row["weights"]] * len(row["labels"])} for row in data])


@pytest.mark.parametrize("cls", [SmileTrainer, SmileSFTTrainer])
def test_columns_of_segments_and_weights_reach_the_loss(cls, tmp_path):
    row = max(parts.rows(), key=lambda row: len(row["labels"]))
    middle = len(row["labels"]) // 2
    row["segments"] = [place // middle for place in range(len(row["labels"]))]
    row["weights"] = [0.5 + place % 3 for place in range(len(row["labels"]))]
    collate = transformers.DataCollatorForSeq2Seq(parts.tokenizer())
    trainer = make(cls, tmp_path, [row], data_collator=collate)
    # Nothing predicts the first label of a segment.
    labels = [label if place % middle else -100 for place, label in enumerate(row["labels"])]
    check(trainer, [{**row, "labels": labels}])


def test_a_plain_trainer_trains_a_model_after_use_smile(tmp_path):
    check(make(transformers.Trainer, tmp_path, model=use_smile(parts.llama(), parts.MIXTURE)))
