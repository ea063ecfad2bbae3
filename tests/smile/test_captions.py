"""Several captions in a row, weights of tokens, and losses that are not summed."""

import functools
import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from smile import Objective, SmileLoss, captions_of_turns, smile_loss
from smile.captions import segments_from_cu_seq_lens, segments_from_position_ids
from tests.programs import raises_line

IGNORE, VOCABULARY, WIDTH = -100, 11, 4
SPECS = ["mle", "smile", "random", "reverse", {"random": 0.4, "smile": 0.3, "mle": 0.7}]
each_spec = pytest.mark.parametrize("spec", SPECS, ids=str)


class SampledBefore(Objective):
    """Random subsetting with given tokens, which packed and padded rows share."""

    words = None

    def _sample_tokens(self, labels, vocabulary):
        return self.words if "random" in self.weights else None


def packed_rows(rows, start):
    """Pack and pad rows of captions, each (unlabelled tokens before it, labels).

    Returns the packed labels (B, N), their segments, the padded labels (C, L), and for each padded
    label its place in the packed rows.
    """
    length = max(1, *(sum(map(sum, row)) for row in rows))
    labels, segments = torch.full((len(rows), length), IGNORE), torch.zeros(len(rows), length).int()
    padded, places = [torch.zeros(0).long()], [torch.zeros(0).long()]
    for number, row in enumerate(rows):
        at = 0
        for name, (prompt, caption) in enumerate(row, start):
            end = at + prompt + caption
            labels[number, at + prompt : end] = torch.randint(VOCABULARY, (caption,))
            segments[number, at:end], segments[number, end:] = 2 * name, 2 * name + 1
            padded.append(labels[number, at + prompt : end])
            places.append(number * length + torch.arange(at + prompt, end))
            at = end
    pad = functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    padded = F.pad(pad(padded, padding_value=IGNORE), (0, 1), value=IGNORE)
    return labels, segments, padded, F.pad(pad(places), (0, 1))


captions = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(captions, min_size=1, max_size=3),
    spec=st.sampled_from(SPECS),
    first=st.booleans(),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_packed_captions_are_padded_captions(rows, spec, first, reduction, weighted, seed):
    torch.manual_seed(seed)
    labels, segments, padded, places = packed_rows(rows, start=seed - 9)
    hidden = torch.randn(*labels.shape, WIDTH, dtype=torch.float64, requires_grad=True)
    head = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64, requires_grad=True)
    words = torch.randint(VOCABULARY, (*labels.shape, 3))
    weights = torch.rand(labels.shape, dtype=torch.float64) if weighted else None
    if weighted:
        weights[torch.rand(labels.shape) < 0.2] = 0
    objective = SampledBefore(spec, 0.1, first_token_mle=first)

    def taken(x):
        return None if x is None else x.flatten(0, 1)[places]

    def found(output, labels, places):
        """Return loss, number of tokens and gradients. A token's loss is weighted by its place."""
        loss = output.loss
        if reduction == "none":
            loss = (loss * (places + 1))[labels != IGNORE].sum()
        return [loss.detach(), output.tokens, *torch.autograd.grad(loss, [hidden, head])]

    objective.words = taken(words)
    apart = (padded, None, taken(weights), reduction)
    expected = found(objective(F.linear(taken(hidden), head), *apart), padded, places)
    objective.words, rows = words, (labels, segments, weights, reduction)
    where = torch.arange(labels.numel()).view_as(labels)
    for output in (
        objective(F.linear(hidden, head), *rows),
        objective.from_hidden(hidden, head, None, *rows),
    ):
        torch.testing.assert_close(found(output, labels, where), expected)


@each_spec
def test_a_weight_of_0_is_no_label_and_one_of_2_is_twice(spec):
    torch.manual_seed(0)
    logits = torch.randn(2, 6, VOCABULARY, dtype=torch.float64)
    labels = torch.randint(VOCABULARY, (2, 6))
    labels[1, 4:] = IGNORE
    without = labels.clone()
    without[0, 0] = without[0, 3] = IGNORE
    weights = torch.ones(2, 6)
    weights[0, 0] = weights[0, 3] = 0
    objective = SampledBefore(spec, 0.1)
    objective.words = torch.randint(VOCABULARY, (2, 6, 10))
    ignored = objective(logits, labels, weights=weights)
    torch.testing.assert_close(ignored.loss, objective(logits, without).loss)
    weights[1] = 2
    output, words = objective(logits, labels, weights=weights), objective.words
    by_row = objective(logits, without, weights=torch.tensor([1.0, 2.0]))
    twice = [0, 1, 1]
    objective.words = words[twice]
    expected = objective(logits[twice], without[twice])
    torch.testing.assert_close(output.loss, expected.loss)
    torch.testing.assert_close(by_row.loss, expected.loss)
    assert output.tokens == expected.tokens == 4 + 2 * 4


@pytest.mark.parametrize("pad_token_id", [None, 0])
@each_spec
def test_rows_of_no_labels_at_all_have_a_loss_of_0(spec, pad_token_id):
    """Such as those of a decoder's single token."""
    objective = Objective(spec, pad_token_id=pad_token_id)
    hidden, head = torch.randn(2, 0, WIDTH, requires_grad=True), torch.randn(9, WIDTH)
    labels = torch.zeros(2, 0, dtype=torch.long)
    for output in (
        objective(F.linear(hidden, head), labels),
        objective.from_hidden(hidden, head, None, labels),
    ):
        assert output.loss == 0 and output.tokens == 0
        output.loss.backward()


def test_the_module_is_the_function():
    torch.manual_seed(0)
    logits, labels = torch.randn(1, 6, VOCABULARY), torch.randint(2, VOCABULARY, (1, 6))
    packed = {"segments": torch.tensor([[4, 4, 4, 2, 2, 2]]), "weights": torch.rand(1, 6)}
    for arguments in ((), (2, True, "sum")):
        module = SmileLoss(*arguments)(logits, labels, **packed)
        torch.testing.assert_close(module, smile_loss(logits, labels, *arguments, **packed))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 1))
def test_positions_and_boundaries_of_packed_rows_say_the_same(lengths, first):
    position_ids = torch.cat([torch.arange(length) + first for length in lengths])
    boundaries = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    expected = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    length = sum(lengths)
    assert segments_from_position_ids(position_ids[None]).equal(expected)
    assert segments_from_position_ids(position_ids).equal(expected)
    assert segments_from_cu_seq_lens(boundaries, length).equal(expected)
    text_first = torch.stack([position_ids, *[torch.zeros_like(position_ids)] * 3])[:, None]
    assert segments_from_position_ids(text_first).equal(expected)


def test_boundaries_are_read_on_a_cpu_alone_and_not_while_compiling():
    boundaries = torch.tensor([0, 3, 8], dtype=torch.int32)
    compiled = torch.compile(segments_from_cu_seq_lens, backend="aot_eager", fullgraph=True)
    assert compiled(boundaries, 8).tolist() == [[0] * 3 + [1] * 5]
    assert segments_from_cu_seq_lens(boundaries.to("meta"), 8).shape == (1, 8)


def test_positions_of_an_image_are_no_new_caption():
    """Time, height and width of one word, an image of four tokens and two words, twice."""
    one = torch.tensor([[0, 1, 1, 1, 1, 3, 4], [0, 1, 1, 2, 2, 3, 4], [0, 1, 2, 1, 2, 3, 4]])
    grid = torch.cat([one, one], 1)[:, None]
    assert segments_from_position_ids(grid).tolist() == [[0] * 7 + [1] * 7]


def test_each_turn_is_a_caption():
    labels = torch.tensor([[-100, 5, 6, -100, -100, 7, 7, 8], [3, -100, 3, 3, -100, -100, 4, -100]])
    segments = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1], [0] * 8])
    turns = captions_of_turns(labels)
    assert turns[0, 1] == turns[0, 2] != turns[0, 5] == turns[0, 6] == turns[0, 7]
    assert len({turns[1, 0].item(), turns[1, 2].item(), turns[1, 6].item()}) == 3
    turns = captions_of_turns(labels, segments)
    assert turns[0, 5] != turns[0, 6] == turns[0, 7]


LABELS = torch.zeros(2, 5, dtype=torch.long)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"segments": torch.zeros(2, 5)}, "segments is torch.float32; give whole numbers"),
        ({"segments": torch.zeros(5).long()}, "segments is (5,), but labels is (2, 5)"),
        ({"segments": [[0, 0, 1]]}, "segments is a list; give a tensor of whole numbers"),
        ({"weights": torch.ones(5)}, "weights is (5,), but labels is (2, 5); give one weight"),
        ({"weights": torch.tensor([1.0, float("nan")])}, "a weight is nan; weights are finite"),
        ({"weights": [1.0, 1.0]}, "weights is a list; give a tensor of floats"),
        ({"weights": torch.tensor([1.0, float("inf")])}, "a weight is inf"),
        ({"weights": torch.tensor([1.0, -1.0])}, "a weight is -1.0"),
        ({"reduction": "some"}, "reduction is 'some'"),
    ],
)
def test_wrong_arguments_are_one_line(given, line):
    objective, hidden, head = Objective("smile"), torch.randn(2, 5, WIDTH), torch.randn(9, WIDTH)
    for call, inputs in (
        (objective, (F.linear(hidden, head),)),
        (objective.from_hidden, (hidden, head, None)),
    ):
        with raises_line(ValueError, line):
            call(*inputs, LABELS, **given)


@pytest.mark.parametrize(
    ("call", "arguments", "line"),
    [
        *(
            (segments_from_cu_seq_lens, (torch.tensor(boundaries), 8), line)
            for boundaries, line in (
                ([0, 3, 9], "goes from 0 to 9; it must go from 0 to 8"),
                ([0, 5, 3, 8], "must not decrease"),
                ([1, 8], "goes from 1 to 8"),
                ([0.0, 2.5, 8.0], "give whole numbers"),
                ([0], "give boundaries"),
            )
        ),
        (segments_from_position_ids, (torch.rand(1, 5),), "give whole numbers"),
        (segments_from_position_ids, (torch.zeros(2, 1, 5).long(),), "give (batch, tokens)"),
        (Objective("smile"), (torch.randn(2, 5, 9), LABELS[:1]), "logits are"),
        (Objective("smile"), (torch.randn(2, 5, 9), LABELS[:, :4]), "logits are"),
    ],
)
def test_shapes_and_types_that_do_not_fit_are_refused(call, arguments, line):
    with pytest.raises(ValueError, match=re.escape(line)):
        call(*arguments)
