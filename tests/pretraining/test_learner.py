"""One step of learning against autograd of a network written out in plain PyTorch."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional

from relmo.config import DataConfig, ModelConfig, ObjectiveConfig
from relmo.formats import ModelContents
from relmo.formats.contents import Softmax
from relmo.inference.model import Model
from relmo.model.bilm import BiLm
from relmo.pretraining.learner import BiLmLearner, LmTensors, Recipe
from relmo.text.blocks import Blocks
from relmo.text.characters import ByteCharacters
from relmo.text.layouts import Segments
from relmo.text.shards import prepare_corpus
from relmo.text.streams import Streams
from relmo.text.vocabulary import SPECIAL, Vocabulary
from relmo.train.optim import Clipping
from relmo.train.world import World

TEXT = "the cat sat on the mat\na dog\nthe dog saw a zebra on the mat .\ncat\n"
SENTENCES = [line.split() for line in TEXT.splitlines()]
VOCABULARY = Vocabulary((*SPECIAL, "the", "a", "mat", "cat", "dog", "on", ".", "sat", "bird"))
CONFIG = ModelConfig.model_validate(
    {
        "encoder": {
            "character_dim": 3,
            "filters": [[1, 4], [3, 5]],
            "max_characters": 10,
            "n_highway": 1,
        },
        "lstm": {"cell_dim": 6, "projection_dim": 4, "cell_clip": 0.2, "projection_clip": 0.3},
        "tokenizer": "whitespace",
    }
)
SCHEME = ByteCharacters(CONFIG.encoder.max_characters)
RATE = 0.5
# The reference computes in float64. In float32 each of the terms of a sum is rounded: at worst a
# gradient, a sum over all predictions of products as wide as the widest layer, is off by this share
# of the gradients' size.
N_PREDICTIONS = 2 * sum(len(sentence) + 1 for sentence in SENTENCES)
WIDEST = max(len(VOCABULARY), CONFIG.encoder.n_filters, CONFIG.lstm.cell_dim)
ROUNDING = torch.finfo(torch.float32).eps * N_PREDICTIONS * WIDEST


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    text = folder / "text.txt"
    text.write_text(TEXT)
    options = {"tokenizer": "whitespace", "lines": True, "language": "en", "workers": 1}
    return Blocks.of(prepare_corpus([str(text)], cache=folder / "cache", **options))


def build_learner(blocks, *, clip=None, optimizer="adagrad", n_streams=0, ema=None, **objective):
    torch.manual_seed(4)
    bilm = BiLm(CONFIG)
    with torch.no_grad():  # loud enough that some cells and outputs reach their clips
        for name, parameter in bilm.named_parameters():
            parameter.mul_(3 if "stack" in name else 8 if "convolutions" in name else 1)
    n, dim = len(VOCABULARY), CONFIG.lstm.projection_dim
    weight, bias = torch.randn(n, dim), 0.1 * torch.randn(n)
    values = ObjectiveConfig.model_validate({"dropout": 0.0, "n_samples": 0, **objective})
    valid = Segments(blocks, DataConfig(), SCHEME, VOCABULARY)
    recipe = Recipe(values, optimizer, Clipping(norm=clip), ema)
    softmax = Softmax(weight, bias)
    return BiLmLearner(bilm, softmax, recipe, valid, World(), n_streams=n_streams)


def weights_of(learner):
    """Copies in float64 that learn by themselves."""
    named = {**dict(learner.bilm.named_parameters())}
    named |= {"softmax.weight": learner.weight, "softmax.bias": learner.bias}
    return {name: t.detach().double().clone().requires_grad_() for name, t in named.items()}


# ---- the same in plain PyTorch ------------------------------------------------------------------


def encode(w, tokens):
    """(n, P): no token is read together with another."""
    ids = SCHEME.encode(tokens).characters
    x = functional.embedding(torch.from_numpy(ids), w["encoder.characters.weight"]).transpose(1, 2)
    names = [f"encoder.convolutions.{i}" for i in range(len(CONFIG.encoder.filters))]
    found = [functional.conv1d(x, w[f"{n}.weight"], w[f"{n}.bias"]).amax(2) for n in names]
    x = torch.cat(found, dim=1).relu()
    high = "encoder.highways.0"
    gate = functional.linear(x, w[f"{high}.gate.weight"], w[f"{high}.gate.bias"]).sigmoid()
    new = functional.linear(x, w[f"{high}.transform.weight"], w[f"{high}.transform.bias"]).relu()
    x = gate * new + (1 - gate) * x
    return functional.linear(x, w["encoder.projection.weight"], w["encoder.projection.bias"])


def read_plainly(w, stack, x, state):
    """The top layer of one direction, (n, P), and its state, a step at a time."""
    lstm, after = CONFIG.lstm, []
    for layer in range(lstm.n_layers):
        name = f"{stack}.{layer}"
        h, c = state[layer]
        outputs = []
        for vector in x:
            gates = w[f"{name}.input_weight"] @ vector + w[f"{name}.recurrent_weight"] @ h
            i, f, g, o = (gates + w[f"{name}.bias"]).chunk(4)
            c = (f.sigmoid() * c + i.sigmoid() * g.tanh()).clamp(-lstm.cell_clip, lstm.cell_clip)
            h = w[f"{name}.projection_weight"] @ (o.sigmoid() * c.tanh())
            h = h.clamp(-lstm.projection_clip, lstm.projection_clip)
            outputs.append(h)
        y = torch.stack(outputs)
        x = y + x if layer else y
        after.append((h.detach(), c.detach()))
    return x, after


def zero_state():
    sizes = CONFIG.lstm.projection_dim, CONFIG.lstm.cell_dim
    zeros = tuple(torch.zeros(size, dtype=torch.float64) for size in sizes)
    return [zeros] * CONFIG.lstm.n_layers


def both_directions(sentences):
    """What each direction reads and predicts, one sentence after the other."""
    ways = []
    for step in (1, -1):
        bounded = [["<S>", *sentence, "</S>"][::step] for sentence in sentences]
        ways.append([pair for s in bounded for pair in pairwise(s)])
    return ways


def plain_loss(w, rows, states=None):
    """Mean loss of rows that know nothing of each other, and where each ended."""
    losses, after = [], []
    for row, start in zip(rows, states or [[zero_state()] * 2] * len(rows), strict=True):
        ends = []
        stacks = zip(("forward_stack", "backward_stack"), row, start, strict=True)
        for stack, pairs, state in stacks:
            x = encode(w, [read for read, _ in pairs])
            top, end = read_plainly(w, stack, x, state)
            logits = functional.linear(top, w["softmax.weight"], w["softmax.bias"])
            targets = torch.tensor([VOCABULARY.number(word) for _, word in pairs])
            losses.append(functional.cross_entropy(logits, targets, reduction="none"))
            ends.append(end)
        after.append(ends)
    return torch.cat(losses).mean(), after


def step_plainly(w, rows, *, states=None, scale=1.0, clip=None):
    """What Adagrad's first step makes of the weights; loss and gradient norm."""
    loss, _ = plain_loss(w, rows, states)
    gradients = torch.autograd.grad(scale * loss, list(w.values()))
    norm = norm_of(gradients)
    shrunk = min(1.0, clip / norm) if clip else 1.0
    pairs = zip(w.items(), (shrunk * g for g in gradients), strict=True)
    changed = {name: t.detach() - RATE * g / (1 + g * g).sqrt() for (name, t), g in pairs}
    return changed, loss.item(), norm


def norm_of(gradients):
    return math.sqrt(sum(float(g.square().sum()) for g in gradients))


def assert_same(learner, expected, norm):
    """As close as float32 allows after a step with gradients of that norm."""
    eps = torch.finfo(torch.float32).eps
    for name, tensor in weights_of(learner).items():
        found, wanted = tensor.detach(), expected[name].detach()
        bound = RATE * ROUNDING * norm + eps * wanted.abs()  # Adagrad's steps grow no error
        assert (found - wanted).abs().sub(bound).max() <= 0, name


# ---- what the learner does ----------------------------------------------------------------------


@pytest.mark.parametrize(("clip", "scale"), [(None, 1.0), (0.05, 1.0), (1000.0, 3.0)])
def test_a_step_over_sentences_is_autograds(blocks, clip, scale):
    learner = build_learner(blocks, clip=clip, loss_scale=scale)
    source = Segments(blocks, DataConfig(), SCHEME, VOCABULARY)
    batch, position = next(source.batches({}))
    assert position["epoch"] == 1
    before = weights_of(learner)
    rows = [both_directions([sentence]) for sentence in SENTENCES]
    expected, loss, norm = step_plainly(before, rows, scale=scale, clip=clip)
    step = learner.learn(batch, RATE)
    assert step.loss == pytest.approx(loss, rel=ROUNDING)
    assert step.gradient_norm == pytest.approx(norm, rel=ROUNDING)
    assert step.n_units == sum(len(s) + 1 for s in SENTENCES)
    assert_same(learner, expected, min(norm, clip or norm))
    for name in ("forward_stack.1.input_weight", "encoder.characters.weight", "softmax.bias"):
        assert not torch.equal(expected[name], before[name]), name


def test_a_stream_goes_on_where_it_ended_and_no_gradient_goes_back(blocks):
    config = DataConfig(layout="stream", n_streams=2, n_steps=5)
    learner = build_learner(blocks, n_streams=2)
    batches = Streams(blocks, config, SCHEME, VOCABULARY).batches({})
    (first, _), (second, _) = next(batches), next(batches)
    ways = both_directions(SENTENCES)
    length = len(ways[0]) // 2
    windows = [
        [[way[s * length + w : s * length + w + 5] for way in ways] for s in (0, 1)] for w in (0, 5)
    ]
    before = weights_of(learner)
    loss, states = plain_loss(before, windows[0])
    assert learner.learn(first, 0.0).loss == pytest.approx(loss.item(), rel=ROUNDING)
    # Of the first step, at a rate of 0, only its squares are left in Adagrad's sums.
    squares = [g.square() for g in torch.autograd.grad(loss, list(before.values()))]
    loss, _ = plain_loss(before, windows[1], states)
    gradients = torch.autograd.grad(loss, list(before.values()))
    parts = zip(before.items(), gradients, squares, strict=True)
    expected = {name: t - RATE * g / (1 + s + g * g).sqrt() for (name, t), g, s in parts}
    assert learner.learn(second, RATE).loss == pytest.approx(loss.item(), rel=ROUNDING)
    assert_same(learner, expected, norm_of(gradients))


def test_streams_are_validated_from_the_state_that_training_carries(blocks):
    config = DataConfig(layout="stream", n_streams=2, n_steps=5)
    learner = build_learner(blocks, n_streams=2)
    source = Streams(blocks, config, SCHEME, VOCABULARY)
    learner._valid = Streams(blocks, config.model_copy(update={"n_streams": 1}), SCHEME, VOCABULARY)
    batch, _ = next(source.batches({}))
    learner.learn(batch, 0.0)
    carried = learner._carried
    state, losses = carried.select(np.array([0])), []
    for batch in learner._valid.validation_batches():
        with torch.no_grad():
            tensors = LmTensors.of(batch, learner.weight.device)
            top, state = learner._model.predict(tensors, state, 0.0)
        logits = functional.linear(top, learner.weight, learner.bias)
        losses.append(functional.cross_entropy(logits.flatten(0, 1), tensors.targets.flatten()))
    assert len(losses) > 1
    assert learner.evaluate()["loss"] == pytest.approx(
        float(torch.stack(losses).mean()), rel=ROUNDING
    )
    assert learner._carried is carried  # training goes on from its own


def test_as_many_samples_as_words_are_all_words(blocks):
    source = Segments(blocks, DataConfig(), SCHEME, VOCABULARY)
    batch, _ = next(source.batches({}))
    states = []
    for n_samples in (0, len(VOCABULARY), 10 * len(VOCABULARY)):
        learner = build_learner(blocks, n_samples=n_samples)
        learner.learn(batch, RATE)
        states.append(learner.state())
    for other in states[1:]:
        for name, tensor in states[0].items():
            assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_a_sampled_step_leaves_the_other_rows_alone(blocks, optimizer):
    source = Segments(blocks, DataConfig(), SCHEME, VOCABULARY)
    batch, _ = next(source.batches({}))
    learner = build_learner(blocks, optimizer=optimizer, n_samples=2)
    before = weights_of(learner)
    learner.learn(batch, RATE)
    targets = {VOCABULARY.number(w) for s in SENTENCES for w in ("<S>", *s, "</S>")}
    changed = (learner.bias != before["softmax.bias"].detach()).nonzero()[:, 0].tolist()
    assert targets <= set(changed)
    assert len(changed) <= len(targets) + 2
    assert len(changed) < len(VOCABULARY)
    rows = (learner.weight != before["softmax.weight"].detach()).any(dim=1).nonzero()[:, 0]
    assert rows.tolist() == changed


def test_a_loss_that_is_no_number_changes_nothing(blocks):
    batch, _ = next(Segments(blocks, DataConfig(), SCHEME, VOCABULARY).batches({}))
    learner = build_learner(blocks)
    learner.bias[3] = math.nan
    before = weights_of(learner)
    step = learner.learn(batch, RATE)
    assert not math.isfinite(step.gradient_norm)
    for name, tensor in weights_of(learner).items():
        assert torch.equal(tensor.nan_to_num(7), before[name].nan_to_num(7)), name


def test_evaluation_is_the_perplexity_of_score(blocks):
    learner = build_learner(blocks, dropout=0.5)
    found = learner.evaluate()
    softmax = Softmax(learner.weight, learner.bias)
    contents = ModelContents(
        CONFIG, learner.bilm.state_dict(), "a test", vocabulary=VOCABULARY, softmax=softmax
    )
    expected = Model(contents).perplexity(SENTENCES)
    for way in ("forward", "backward", "average"):
        assert found[f"{way}_perplexity"] == pytest.approx(getattr(expected, way), rel=ROUNDING)
    both = math.log(expected.forward), math.log(expected.backward)
    assert found["loss"] == pytest.approx(sum(both) / 2, rel=ROUNDING)
    assert expected.unknown == 2  # "saw" and "zebra"


def test_a_state_is_all_that_the_next_step_depends_on(blocks):
    config = DataConfig(layout="stream", n_streams=2, n_steps=4)
    batches = Streams(blocks, config, SCHEME, VOCABULARY).batches({})
    first, second = (next(batches)[0] for _ in range(2))
    whole = build_learner(blocks, optimizer="adam", n_streams=2, n_samples=3)
    whole.learn(first, 0.01)
    saved = {name: tensor.clone() for name, tensor in whole.state().items()}
    resumed = build_learner(blocks, optimizer="adam", n_streams=2, n_samples=3)
    resumed.load(saved)
    for learner in (whole, resumed):
        learner.learn(second, 0.01)
    assert whole.state().keys() == resumed.state().keys()
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name


def test_dropout_is_on_in_training_and_off_in_evaluation(blocks):
    batch, _ = next(Segments(blocks, DataConfig(), SCHEME, VOCABULARY).batches({}))
    losses = []
    for seed in (1, 2, 1):
        learner = build_learner(blocks, dropout=0.3)
        scores = learner.evaluate()
        torch.manual_seed(seed)
        losses.append(learner.learn(batch, 0.0).loss)
        assert learner.evaluate() == scores
    assert losses[0] == losses[2]
    assert losses[0] != losses[1]


def test_averages_are_evaluated_saved_and_resumed(blocks):
    batches = Segments(blocks, DataConfig(), SCHEME, VOCABULARY).batches({})
    batch, _ = next(batches)
    whole = build_learner(blocks, optimizer="adam", n_samples=3, ema=0.5)
    plain = build_learner(blocks, optimizer="adam", n_samples=3)
    for learner in (whole, plain):
        for _ in range(3):
            learner.learn(batch, 0.05)
    assert whole.evaluate() != plain.evaluate()
    saved = {name: tensor.clone() for name, tensor in whole.state().items()}
    averaged = {name.removeprefix("ema."): t for name, t in saved.items() if "ema." in name}
    for name, tensor in plain.state().items():
        assert torch.equal(tensor, saved[name]), name  # training knows nothing of averages
    plain.load({**plain.state(), **{n: t for n, t in averaged.items() if n != "n_updates"}})
    assert plain.evaluate() == whole.evaluate()
    resumed = build_learner(blocks, optimizer="adam", n_samples=3, ema=0.5)
    resumed.load(saved)
    for learner in (whole, resumed):
        learner.learn(batch, 0.05)
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name
