"""SmileLossMixin: what a trainer does around a step, and other losses, which are refused."""

import gc

import pytest
import torch
import torch.distributed as dist

from smile import Objective
from smile.hf import undo, use_smile
from tests.markers import slow
from tests.processes import Processes
from tests.programs import raises_line
from tests.smile import trainer_parts as parts
from tests.smile.hf_steps import T5, made
from tests.smile.trainer_parts import SmileSFTTrainer, SmileTrainer, check, llama, make

BOTH = pytest.mark.parametrize("cls", [slow(SmileTrainer), SmileSFTTrainer])
REFUSED = "another loss is trained"
MIXTRAL = "MixtralForCausalLM"


def assert_mixture(entry, prefix=""):
    """Check that each part of the mixture is logged. The entry is of batches of one size."""
    mle, smile = (entry[f"{prefix}loss_{name}"] for name in ("mle", "smile"))
    assert 0 < smile < mle
    assert entry[f"{prefix}loss"] == pytest.approx(0.3 * mle + 0.7 * smile, rel=1e-5)


@BOTH
def test_logs_have_each_part_as_a_mean_since_the_last_log(cls, tmp_path):
    options = {"max_steps": 4, "logging_steps": 2, "learning_rate": 0.1}
    trainer = make(cls, tmp_path, eval_dataset=parts.data_set(), **options)
    trainer.train()
    assert_mixture(trainer.evaluate(), "eval_")
    first, second = (x for x in trainer.state.log_history if "loss" in x)
    assert_mixture(first)
    assert_mixture(second)
    assert second["loss_smile"] < first["loss_smile"] - 0.1


@BOTH
def test_compute_metrics_gets_the_logits_of_the_evaluation_loss(cls, tmp_path):
    def compute_metrics(prediction):
        given = prediction.predictions
        logits = torch.tensor(given[0] if isinstance(given, tuple) else given)
        labels = torch.tensor(prediction.label_ids)
        return {"again": parts.MIXTURE(logits[:, :-1], labels[:, 1:]).loss.item()}

    trainer = make(cls, tmp_path, eval_dataset=parts.data_set(), compute_metrics=compute_metrics)
    metrics, loss = trainer.evaluate(), parts.expected()[0]
    assert metrics["eval_again"] == pytest.approx(loss, rel=1e-5)
    assert metrics["eval_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_a_model_of_model_init_is_trained_with_the_objective(tmp_path):
    built = []

    def model_init():
        built.append(llama())
        return built[-1]

    check(trainer := make(SmileTrainer, tmp_path, model_init=model_init, **parts.UNEVEN))
    assert len(built) == 2 and trainer.model is built[-1]


@BOTH
def test_router_losses_are_averaged_and_weighted_by_their_coefficient(cls, tmp_path):
    """The coefficient is TRL's if given. Some models pass over the configuration."""
    is_trl = cls is SmileSFTTrainer
    options = {"router_aux_loss_coef": 0.5} if is_trl else {}
    trainer, asked = make(cls, tmp_path, model=made(MIXTRAL).model, **options, **parts.SINGLY), []
    trainer.model.register_forward_pre_hook(lambda *x: asked.append(x[-1]), with_kwargs=True)
    check(trainer, model=made(MIXTRAL).model, router=0.5 if is_trl else 0.3)
    assert ("output_router_logits" in asked[0]) == is_trl


def test_the_last_trainers_objective_replaces_the_models(tmp_path):
    model = use_smile(llama(), Objective("reverse"))
    for cls in (SmileTrainer, SmileSFTTrainer, SmileSFTTrainer):
        check(make(cls, tmp_path, model=model, learning_rate=0))
        model.zero_grad()


OTHER_LOSSES = {"label_smoothing_factor": 0.1, "compute_loss_func": lambda x, *_, **__: x[0].sum()}


@pytest.mark.parametrize("cls", [SmileTrainer, SmileSFTTrainer, slow(parts.SmileSeq2SeqTrainer)])
@pytest.mark.parametrize("name", OTHER_LOSSES)
def test_another_loss_is_refused(cls, name, tmp_path):
    model = made(T5).model if cls is parts.SmileSeq2SeqTrainer else None
    trainer = make(cls, tmp_path, model=model, **{name: OTHER_LOSSES[name]})
    with raises_line(ValueError, REFUSED):
        trainer.train()


@pytest.mark.parametrize("cls", [SmileTrainer, slow(SmileSFTTrainer)])
@pytest.mark.parametrize("change", [undo, lambda model: use_smile(model, "reverse")])
def test_a_model_that_lost_the_trainers_objective_is_refused(change, cls, tmp_path):
    trainer = make(cls, tmp_path)
    change(trainer.model)
    with raises_line(ValueError, "SmileLossMixin", start=f"{cls.__name__}: {REFUSED}"):
        trainer.train()


@pytest.mark.parametrize("is_before", [True, False])
def test_use_smile_in_trls_own_sft_trainer_trains_it_or_is_refused(is_before, tmp_path):
    """From TRL 1.15 on it computes its own loss."""
    model = use_smile(llama(), parts.MIXTURE) if is_before else llama()
    trainer = make(parts.trl.SFTTrainer, tmp_path, model=model)
    if not is_before:
        use_smile(model, parts.MIXTURE)
    try:
        check(trainer)
    except ValueError as error:
        assert "class Mine(SmileLossMixin" in str(error) and "\n" not in str(error)


def in_each_process(folder):
    """Either process has two rows, which differ in tokens."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # that of the process that forked
    rows = parts.rows()[:4]
    steps = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "learning_rate": 0}
    steps.update(eval_dataset=parts.data_set(rows), per_device_eval_batch_size=2)
    halves = [parts.expected(half)[0] for half in (rows[:2], rows[2:])]
    for cls in (SmileTrainer, SmileSFTTrainer):
        trainer = make(cls, folder, rows, **steps)
        loss = check(trainer, rows)["loss"]
        loss = sum(halves) / 2 if cls is SmileSFTTrainer else loss  # TRL counts no tokens
        assert trainer.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-6)
    check(make(cls, folder, rows, packing=True, max_length=24, **steps), rows)
    trainer = make(cls, folder, rows, made(MIXTRAL).model, router_aux_loss_coef=0.5, **steps)
    check(trainer, rows, model=made(MIXTRAL).model, router=0.5)
    del trainer
    gc.collect()  # a wrapped model that outlives the group can abort the process at its end
    dist.destroy_process_group()
    return 0


@pytest.mark.slow
def test_two_processes_train_and_evaluate_as_one(tmp_path):
    run = Processes(in_each_process, str(tmp_path), tmp_path / "output", 2)
    assert run.wait(200) == [0, 0], run.said()[-3000:]
