"""Case noise: data augmentation that changes the case of some training sentences.

Books use capitals by the rules; chats and headlines do not. A model that reads some sentences in
lower case, With Capitals Everywhere or IN CAPITALS learns that the words are the same. Only the
input changes; the targets keep their case.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from relmo.text.characters import CharacterScheme


def capitalize(word: str) -> str:
    """Make the first letter a capital and keep the others."""
    return word[:1].upper() + word[1:]


CASES: tuple[Callable[[str], str], ...] = (str.lower, capitalize, str.upper)


class CaseNoise:
    """Changes the case of a share of the sentences, to each of `CASES` equally often."""

    def __init__(self, share: float, seed: int, scheme: CharacterScheme) -> None:
        self._share, self._seed = share, seed
        self._boundaries = {scheme.begin, scheme.end}

    def apply(self, words: list[str], *place: int) -> list[str]:
        """The words of a sentence, perhaps in another case; depends only on the seed and the place.

        A word that would become a boundary token ("<s>" to "<S>") keeps its case.
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
    """Mix several numbers into one seed below 2**63."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
