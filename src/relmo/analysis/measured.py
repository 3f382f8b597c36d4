"""The accuracies of a probe, as results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from relmo.features.layers import Features
from relmo.results import Result, Setting, accuracy, build_result, data_identity


def accuracies_as_result(
    what: str,
    rows: Mapping[str, tuple[float, float]],
    sizes: tuple[int, int],
    *,
    features: Sequence[Features],
    files: Iterable[Path],
    seconds: float,
    seeds: Iterable[int] = (),
    settings: Mapping[str, Setting] | None = None,
) -> Result:
    """Put together accuracies on dev and test, with their intervals.

    Args:
        what: the name of the probe.
        rows: for each kind of vectors, per cent on dev and test.
        sizes: number of items of dev and test.
        features: whose identities are kept.
        files: that were read.
        seconds: how long it took.
        seeds: of the random numbers.
        settings: worth naming.
    """
    values = [
        accuracy(round(percent * n / 100), n, row=name, group=group)
        for name, percents in rows.items()
        for group, percent, n in zip(("dev", "test"), percents, sizes, strict=True)
    ]
    return build_result(
        what,
        values,
        seconds=seconds,
        seeds=seeds,
        models={one.name: one.identity for one in features},
        data=data_identity(files),
        settings=settings,
    )
