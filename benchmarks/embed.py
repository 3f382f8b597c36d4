"""How fast relmo embeds, beside plain PyTorch and the machine's own limit, all in one run.

    python benchmarks/embed.py                               both sizes, on text that Python brings
    python benchmarks/embed.py --size small --text FILE      one tokenised sentence a line
    python benchmarks/embed.py --json

Machines are noisy: only the ratios within a run count. Every rate is the best of several rounds in
which all contestants take their turns.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import statistics
import subprocess
import sys
import time
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import relmo
from relmo.config import ModelConfig
from relmo.formats import ModelContents
from relmo.model import kernels
from relmo.model.bilm import BiLm
from relmo.presets import read_preset
from relmo.text.characters import ByteCharacters
from relmo.text.tokenize import build_tokenizer

ROUNDS = 3
GROWN = {"tiny": 24576, "small": 3072, "medium": 512, "original": 64}  # sentences that grow 16 x


class PlainElmo(nn.Module):
    """ELMo in the structure of AllenNLP: every token encoded at 50 characters, a cell call a step.

    Padded batches, input and state multiplied step by step, one direction after the other.
    """

    def __init__(self, bilm: BiLm) -> None:
        super().__init__()
        self.bilm, self.config = bilm, bilm.config

    def encode(self, characters: Tensor) -> Tensor:
        """Every token, whether it was met before or not."""
        encoder = self.bilm.encoder
        batch, length, width = characters.shape
        x = encoder.characters(characters.view(-1, width)).transpose(1, 2)
        x = torch.cat([c(x).amax(dim=-1).relu() for c in encoder.convolutions], dim=1)
        for highway in encoder.highways:
            gate = highway.gate(x).sigmoid()
            x = gate * highway.transform(x).relu() + (1 - gate) * x
        return encoder.projection(x).view(batch, length, -1)

    def run(self, layer: nn.Module, x: Tensor, lengths: list[int]) -> Tensor:
        """One layer in one direction."""
        h = x.new_zeros(len(x), self.config.lstm.projection_dim)
        c = x.new_zeros(len(x), self.config.lstm.cell_dim)
        y = x.new_zeros(len(x), x.shape[1], self.config.lstm.projection_dim)
        for t in range(x.shape[1]):
            n = sum(length > t for length in lengths)  # sorted: the longest come first
            gates = nn.functional.linear(x[:n, t], layer.input_weight, layer.bias)
            gates = gates + nn.functional.linear(h[:n], layer.recurrent_weight)
            i, f, g, o = gates.chunk(4, dim=1)
            new_c = f.sigmoid() * c[:n] + i.sigmoid() * g.tanh()
            new_c = new_c.clamp(-3, 3)
            new_h = nn.functional.linear(o.sigmoid() * new_c.tanh(), layer.projection_weight)
            new_h = new_h.clamp(-3, 3)
            h, c = torch.cat([new_h, h[n:]]), torch.cat([new_c, c[n:]])
            y[:n, t] = new_h
        return y

    def forward(self, characters: Tensor, lengths: list[int]) -> list[Tensor]:
        """All layers of a padded batch, the longest sentence first."""
        x = self.encode(characters)
        index = torch.tensor([[*reversed(range(n)), *range(n, x.shape[1])] for n in lengths])
        turn = index[..., None].expand(-1, -1, x.shape[2])
        forward, backward = x, x.gather(1, turn)
        layers = [torch.cat([x, x], dim=-1)]
        for depth in range(self.config.lstm.n_layers):
            y = self.run(self.bilm.forward_stack[depth], forward, lengths)
            z = self.run(self.bilm.backward_stack[depth], backward, lengths)
            forward = forward + y if depth else y
            backward = backward + z if depth else z
            layers.append(torch.cat([forward, backward.gather(1, turn)], dim=-1))
        return layers


def embed_plainly(model: PlainElmo, sentences: list[list[str]], batch: int = 32) -> None:
    scheme = ByteCharacters()
    for start in range(0, len(sentences), batch):
        group = sorted(sentences[start : start + batch], key=len, reverse=True)
        lengths = [len(s) + 2 for s in group]
        ids = torch.zeros(len(group), lengths[0], 50, dtype=torch.long)
        for row, sentence in zip(ids, group, strict=True):
            row[: len(sentence) + 2] = scheme.encode(["<S>", *sentence, "</S>"]).characters
        model(ids, lengths)


def embed_with_nn_lstm(stacks: list[nn.LSTM], sentences: list[list[str]], dim: int) -> None:
    """PyTorch's own projected LSTM over packed batches: no clips, no residual, no characters."""
    for start in range(0, len(sentences), 128):
        group = [torch.randn(len(s) + 2, dim) for s in sentences[start : start + 128]]
        packed = nn.utils.rnn.pack_sequence(group, enforce_sorted=False)
        for stack in stacks:
            stack(packed)


def measure_sgemm() -> float:
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return max(2 * 2048**3 / seconds(lambda: a @ b) for _ in range(6))


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def flops_a_token(config: ModelConfig) -> int:
    """Multiplications and additions of both LSTM stacks."""
    h, p = config.lstm.cell_dim, config.lstm.projection_dim
    return 2 * config.lstm.n_layers * 2 * (4 * h * 2 * p + h * p)


def read_sentences(path: Path | None, n: int) -> list[list[str]]:
    if path is not None:
        sentences = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    else:
        tokenize = build_tokenizer("words")
        text = " ".join(" ".join(pydoc_data.topics.topics.values()).split())
        sentences = [[t.text for t in tokenize(s + ".")] for s in text.split(". ")]
    sentences = [s for s in sentences if 3 <= len(s) <= 60]
    return list(islice(cycle(sentences), n))


def measure_bulk(config: ModelConfig, contents: ModelContents, sentences: list[list[str]]) -> dict:
    """Words a second for each contestant, in turns."""
    n_words = sum(map(len, sentences))
    n_tokens = n_words + 2 * len(sentences)
    models = {p: relmo.Model(contents, precision=p) for p in ("float32", "int8")}
    plain = PlainElmo(models["float32"].bilm)
    h, p, layers = config.lstm.cell_dim, config.lstm.projection_dim, config.lstm.n_layers
    stacks = [nn.LSTM(p, h, layers, proj_size=p) for _ in range(2)]
    some = sentences[: max(64, len(sentences) // 8)]  # the slow ones get a share
    share = sum(map(len, some))
    rates: dict[str, list[float]] = {}
    sgemm: list[float] = []
    with torch.inference_mode():
        for _ in range(ROUNDS):
            sgemm.append(measure_sgemm())
            for name, model in models.items():
                rate = n_words / seconds(lambda m=model: m.embed(sentences, layers="all"))
                if name in rates or f"{name}, empty cache" in rates:
                    rates.setdefault(name, []).append(rate)
                else:
                    rates[f"{name}, empty cache"] = [rate]
            rates.setdefault("plain PyTorch", []).append(
                share / seconds(lambda: embed_plainly(plain, some))
            )
            rates.setdefault("nn.LSTM(proj_size)", []).append(
                share / seconds(lambda: embed_with_nn_lstm(stacks, some, p))
            )
    best = {name: max(values) for name, values in rates.items()}
    used = best["float32"] * n_tokens / n_words * flops_a_token(config)
    return {
        "words_per_s": {name: round(rate, 1) for name, rate in best.items()},
        "ratio_to_plain": {
            name: round(rate / best["plain PyTorch"], 2) for name, rate in best.items()
        },
        "sgemm_gflops": round(max(sgemm) / 1e9, 1),
        "share_of_sgemm": round(used / max(sgemm), 3),
    }


def measure_accuracy(contents: ModelContents, sentences: list[list[str]]) -> dict:
    """Mean and lowest cosine of int8 to float32, by layer."""
    exact, close = (
        np.concatenate(
            relmo.Model(contents, precision=p).embed(sentences[:128], layers="all"), axis=1
        )
        for p in ("float32", "int8")
    )
    norms = np.linalg.norm(exact, axis=-1) * np.linalg.norm(close, axis=-1)
    cosines = (exact * close).sum(-1) / norms  # (layers, tokens)
    return {
        "int8_mean_cosine": [round(float(c), 6) for c in cosines.mean(axis=1)],
        "int8_lowest_cosine": [round(float(c), 6) for c in cosines.min(axis=1)],
    }


def measure_latency(contents: ModelContents, sentence: list[str]) -> dict:
    """Median milliseconds for one sentence: with words met before, and with new ones."""
    found = {}
    for precision in ("float32", "int8"):
        model = relmo.Model(contents, precision=precision)
        model.embed([sentence])
        warm = [seconds(partial(model.embed, [sentence])) for _ in range(50)]
        new = [[[f"{word}{i}" for word in sentence]] for i in range(20)]
        cold = [seconds(partial(model.embed, s)) for s in new]
        found[precision] = {
            "warm_ms": round(1000 * statistics.median(warm), 2),
            "cold_ms": round(1000 * statistics.median(cold), 2),
        }
    return found


def measure_growth(size: str, sentences: list[list[str]], folder: Path) -> list[dict]:
    """Words a second and peak memory of `relmo embed` as the text grows, each in a new process."""
    rows = []
    for times in (1, 4, 16):
        text = folder / f"{times}.txt"
        text.write_text("\n".join(" ".join(s) for s in sentences * times) + "\n", encoding="utf-8")
        command = [sys.executable, __file__, "--size", size, "--grow", str(text)]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append({"times": times, **json.loads(found.stdout)})
        text.unlink()
    return rows


def embed_file(size: str, text: Path) -> dict:
    """One run of the bulk pipeline, text to a file of vectors, in this process."""
    from relmo.text.corpus import read_lines
    from relmo.vectors.bulk import embed_lines, written_behind
    from relmo.vectors.sinks import open_sink

    model = relmo.Model(build_random(size), tokenizer="whitespace")
    model.embed(["warm up"])
    n_words = 0
    start = time.perf_counter()
    target = text.with_suffix(".parquet")
    with open_sink(target) as sink, written_behind(sink.write, 256) as write:
        for line, tokens, vectors in embed_lines(model, read_lines(text), layers="average"):
            write(line, tokens, vectors)
            n_words += len(tokens)
    took = time.perf_counter() - start
    target.unlink()
    status = Path("/proc/self/status").read_text()  # getrusage would tell the parent's peak
    peak = int(status.split("VmHWM:")[1].split()[0]) // 1024
    return {"words": n_words, "words_per_s": round(n_words / took, 1), "peak_mb": peak}


def build_random(size: str) -> ModelContents:
    torch.manual_seed(0)
    config = read_preset(size).model
    return ModelContents(config, BiLm(config).state_dict(), "random weights")


def report(size: str, result: dict) -> None:
    bulk = result["bulk"]
    print(f"\n{size}: words per second, all layers, {result['words']:,} words")
    for name, rate in bulk["words_per_s"].items():
        print(f"  {name:<24} {rate:>10,.0f}   {bulk['ratio_to_plain'][name]:>6.1f} x plain PyTorch")
    print(f"  float32 uses {bulk['share_of_sgemm']:.0%} of the sgemm rate", end="")
    print(f" of {bulk['sgemm_gflops']:,.0f} GFLOP/s (LSTM stacks alone, boundaries included)")
    accuracy = result["accuracy"]
    print(f"  int8 to float32, mean cosine by layer: {accuracy['int8_mean_cosine']}")
    for precision, found in result["latency"].items():
        print(
            f"  one sentence of 15 words, {precision}: {found['warm_ms']} ms,"
            f" {found['cold_ms']} ms with words never seen"
        )
    for row in result["growth"]:
        print(
            f"  text x {row['times']:<3} {row['words']:>9,} words   {row['words_per_s']:>9,.0f}"
            f" words/s to a file, peak {row['peak_mb']:,} MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=list(GROWN), action="append")
    parser.add_argument("--text", type=Path, help="one tokenised sentence a line")
    parser.add_argument("--sentences", type=int, default=768)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--grow", type=Path, help="only embed this file, and tell rate and peak")
    arguments = parser.parse_args()
    if arguments.grow:
        print(json.dumps(embed_file(arguments.size[0], arguments.grow)))
        return
    import tempfile

    sentences = read_sentences(arguments.text, arguments.sentences)
    fifteen = next(s for s in sentences if len(s) >= 15)[:15]
    results = {
        "machine": {
            "threads": torch.get_num_threads(),
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "cell": kernels.description,
            "torch": torch.__version__,
        }
    }
    if not arguments.json:
        print(*(f"{name}: {value}" for name, value in results["machine"].items()), sep="\n")
    for size in arguments.size or ["small", "original"]:
        contents = build_random(size)
        some = sentences
        grown = list(islice(cycle(sentences), GROWN[size]))
        with tempfile.TemporaryDirectory() as folder:
            results[size] = {
                "words": sum(map(len, some)),
                "bulk": measure_bulk(contents.config, contents, some),
                "accuracy": measure_accuracy(contents, some),
                "latency": measure_latency(contents, fifteen),
                "growth": measure_growth(size, grown, Path(folder)),
            }
        if not arguments.json:
            report(size, results[size])
    if arguments.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
