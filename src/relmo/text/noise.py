"""Other case for some of the sentences that a model reads while it learns.

Books mind the case of their letters; letters, chats and headlines do not. A model that reads some
sentences in lower case, With Capitals Everywhere or IN CAPITALS learns that the words are the same.
What it has to predict stays as it was written.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relmo.text.characters import CharacterScheme


def capitalize(word: str) -> str:
    """Make the first letter a capital and leave the others."""
    return word[:1].upper() + word[1:]


CASES: tuple[Callable[[str], str], ...] = (str.lower, capitalize, str.upper)


class CaseNoise:
    """Changes the case of a share of the sentences, each of `CASES` as often as the others."""

    def __init__(self, share: float, seed: int, scheme: CharacterScheme) -> None:
        self._share, self._seed = share, seed
        self._boundaries = {scheme.begin, scheme.end}

    def apply(self, words: list[str], *place: int) -> list[str]:
        """What is read of a sentence: it depends on the seed and the place alone.

        A word that another case makes a boundary, as it does of "<s>", stays as it is.
        """
        if not self._share:
            return words
        draw = mix_seed(self._seed, 4, *place) / 2**63  # from 0 to 1
        if draw >= self._share:
            return words
        case = CASES[int(draw / self._share * len(CASES))]
        pairs = ((word, case(word)) for word in words)
        return [word if new in self._boundaries else new for word, new in pairs]


def mix_seed(*numbers: int) -> int:
    """One number below 2**63 of several, in which each of them matters."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
