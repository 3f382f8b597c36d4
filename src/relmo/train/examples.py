"""Examples in batches: shuffled per epoch, of like lengths, with a position that can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from relmo.arrays import IntArray
from relmo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from relmo.train.world import World

Example = TypeVar("Example")
POOL_BATCHES = 100  # among so many batches' examples, those of like lengths come together


class Examples(Generic[Example]):
    """What the loop reads: batches of examples; see `relmo.train.learner.TrainingData`.

    Every epoch has each example exactly once, in an order that follows from the seed and the
    epoch. Examples are shuffled, sorted by length within pools of about `POOL_BATCHES` batches and
    cut into batches, which are shuffled again: little padding, and no batch twice. A position is
    {"epoch": finished epochs, "batch": finished batches of the next one}.

    Args:
        examples: any sequence.
        collate: makes a batch of some examples.
        batch_size: examples per batch, at most.
        batch_length: padded length per batch, at most: number of examples times the longest. A
            longer example has a batch to itself.
        length: of an example, by default `len`. Of a tuple such as (tokens, label) that is the
            number of its parts, so tuples with `batch_length` need a `length`:
            `lambda example: len(example[0])`. It also decides which examples come together.
        seed: of the order.
        world: the processes that train together; each gets every size-th example of a batch.

    Example:
        >>> from relmo.train import Examples
        >>> data = Examples(["a", "bb", "cc", "d"], " ".join, batch_size=2, seed=1)
        >>> batches = data.batches({})
        >>> next(batches)[1], next(batches)[1]
        ({'epoch': 0, 'batch': 1}, {'epoch': 1, 'batch': 0})
        >>> list(data.in_order())
        ['a bb', 'cc d']
    """

    def __init__(
        self,
        examples: Sequence[Example],
        collate: Callable[[list[Example]], Any],
        *,
        batch_size: int | None = None,
        batch_length: int | None = None,
        length: Callable[[Any], int] | None = None,
        seed: int = 0,
        world: World | None = None,
    ) -> None:
        if not len(examples):
            raise DataError("There are no examples to train on. Give at least one.")
        limits = [limit for limit in (batch_size, batch_length) if limit is not None]
        if not limits or min(limits) < 1:
            raise ConfigError(
                f"Batches of {batch_size} examples and a length of {batch_length}: give at least "
                "one of batch_size and batch_length, 1 or more."
            )
        length = _check_length(length, examples[0], batch_length)
        self._examples, self._collate, self._seed = examples, collate, seed
        self._batch_size, self._batch_length = batch_size, batch_length
        self._lengths = np.array([length(example) for example in examples], dtype=np.int64)
        self._rank, self._n_ranks = (0, 1) if world is None else (world.rank, world.size)
        if len(examples) < self._n_ranks:
            raise DataError(
                f"{len(examples)} examples are too few for {self._n_ranks} processes: each needs "
                "one. Start fewer processes."
            )

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self._examples)

    @property
    def total_length(self) -> int:
        """The lengths of all examples together, such as the words of all sentences."""
        return int(self._lengths.sum())

    def batches(self, position: dict[str, int]) -> Iterator[tuple[Any, dict[str, int]]]:
        """Batches from a position on without end, each with the position after it."""
        epoch, done = position.get("epoch", 0), position.get("batch", 0)
        while True:
            plan = self._plan(epoch)
            for number in range(done, len(plan)):
                over = number + 1 == len(plan)
                after = {"epoch": epoch + over, "batch": 0 if over else number + 1}
                yield self._build(plan[number][self._rank :: self._n_ranks]), after
            epoch, done = epoch + 1, 0

    def in_order(self) -> Iterator[Any]:
        """All examples once, in the order in which they were given, for evaluation."""
        for numbers in self._cut(np.arange(len(self)), at_least=1):
            yield self._build(numbers)

    def _build(self, numbers: IntArray) -> Any:
        return self._collate([self._examples[number] for number in numbers.tolist()])

    def _plan(self, epoch: int) -> list[IntArray]:
        """The batches of an epoch: numbers of examples."""
        rng = np.random.default_rng([self._seed, epoch])
        order = rng.permutation(len(self))
        n_pool = self._pool_size()
        batches = []
        for start in range(0, len(order), n_pool):
            pool = order[start : start + n_pool]
            by_length = pool[np.argsort(self._lengths[pool], kind="stable")]
            batches += self._cut(by_length, at_least=self._n_ranks)
        if len(batches) > 1 and len(batches[-1]) < self._n_ranks:  # each process needs an example
            batches[-2:] = [np.concatenate(batches[-2:])]
        return [batches[i] for i in rng.permutation(len(batches))]

    def _pool_size(self) -> int:
        sizes = []
        if self._batch_size is not None:
            sizes.append(self._batch_size)
        if self._batch_length is not None:
            sizes.append(round(self._batch_length / max(1.0, float(self._lengths.mean()))))
        return POOL_BATCHES * max(self._n_ranks, min(sizes))

    def _cut(self, numbers: IntArray, *, at_least: int) -> list[IntArray]:
        """Cut a row of examples into batches within the limits, of `at_least` so many each."""
        starts, longest = [0], 0
        lengths = self._lengths[numbers].tolist()
        for place, length in enumerate(lengths):
            n = place - starts[-1]
            longest = max(longest, length)
            full = self._batch_size is not None and n >= self._batch_size
            long = self._batch_length is not None and (n + 1) * longest > self._batch_length
            if n >= at_least and (full or long):
                starts.append(place)
                longest = length
        if len(starts) > 1 and len(numbers) - starts[-1] < at_least:
            starts.pop()  # the rest is too short for a batch of its own
        return np.split(numbers, starts[1:])


def _check_length(
    length: Callable[[Any], int] | None, first: Any, batch_length: int | None
) -> Callable[[Any], int]:
    if length is None and batch_length is not None and isinstance(first, tuple):
        raise ConfigError(
            f"The examples are tuples: len() of one is {len(first)}, whatever its parts hold, so "
            "batch_length has nothing to go by. Give the length of an example, for instance "
            "length=lambda example: len(example[0])."
        )
    return length or len
