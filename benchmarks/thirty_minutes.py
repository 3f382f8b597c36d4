r"""Why ELMo today? relmo against a small BERT from scratch: same text, cores, minutes and probe.

    python benchmarks/thirty_minutes.py novels/ -o race \
        --train train.conllu --dev dev.conllu --test test.conllu
    python benchmarks/thirty_minutes.py novels/ -o race --only bert --train ...

One after the other, each gets the cores for so many minutes, in which it also has to find its
vocabulary; text is split into words before, once for both. Then linear classifiers look for parts
of speech in each layer's vectors and in mixes of them, for BERT in the mean of a word's pieces.
What is in `race` already is not done again: two runs with --only give the same table as one.

BERT is ModernBERT of transformers, smaller: its layers (norms before, rotary positions, gates)
and its share of masked pieces. With BERT's first layers (norms after, learned positions) half an
hour was over before they looked at context: the loss stayed where the embeddings alone had brought
it (docs/results/small-bert.md). It gets what helps in a short time too: full sequences, no padding,
the output layer only where a piece is masked, output biases that begin at the pieces' frequencies
(as relmo's do).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor
from torch.nn import functional

from relmo.analysis.probes import probe_tags
from relmo.config import PretrainConfig
from relmo.errors import ConfigError, RelmoError
from relmo.features.layers import Features
from relmo.features.live import FunctionFeatures, LiveFeatures
from relmo.formats import read_model
from relmo.formats.published import cache_directory
from relmo.inference.model import load
from relmo.pretraining.resolve import resolve_config
from relmo.text.blocks import Blocks
from relmo.text.conllu import TaggedSentence, read_conllu
from relmo.text.corpus import find_texts
from relmo.text.shards import Corpus, prepare_corpus
from relmo.text.vocabulary import build_vocabulary
from relmo.train.log import MetricsLog, read_metrics

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNKNOWN, START, END, MASK = range(len(SPECIAL))
N_PIECES = 16_000  # of the vocabulary
LENGTH = 128  # pieces of a sequence
N_LAYERS, DIM, N_HEADS = 4, 256, 4
MASKED = 0.3
WARMUP = 0.06  # share of the time
CLIP_NORM = 1.0
ROW_STEPS = 10


# ---- the text, the same for both ----------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """What is trained on and what is held out, both as relmo chooses them."""

    corpus: Corpus
    train: Blocks
    valid: Blocks

    @classmethod
    def prepare(cls, texts: Sequence[str], valid: Sequence[str], config: PretrainConfig) -> Text:
        """Find what `relmo pretrain` with this configuration reads, already split into words."""
        data, seed = config.data, config.train.seed

        def read(names: Sequence[str]) -> Corpus:
            return prepare_corpus(
                find_texts(names),
                tokenizer=config.model.tokenizer,
                lines=data.lines,
                language=data.language,
                cache=cache_directory() / "corpora",  # where `relmo pretrain` finds it
                encoding=data.encoding,
                errors=data.errors,
            )

        corpus = read(texts)
        if valid:
            held_out = Blocks.of(read(valid)).some(data.valid_tokens, seed)
            return cls(corpus, Blocks.of(corpus), held_out)
        return cls(corpus, *Blocks.of(corpus).hold_out(data.valid_share, data.valid_tokens, seed))


# ---- relmo --------------------------------------------------------------------------------------


def train_relmo(folder: Path, text: Text, config: PretrainConfig, options) -> None:
    """By its command line; what the vocabulary takes is not in its clock, so it is taken off."""
    started = time.monotonic()
    build_vocabulary(text.corpus.count_words(), config.data.vocabulary_size, config.data.min_count)
    minutes = options.minutes - (time.monotonic() - started) / 60
    command = [sys.executable, "-m", "relmo", "pretrain", *options.text, "-o", str(folder)]
    command += ["--preset", options.preset, "--max-minutes", f"{max(minutes, 0.001):.4f}"]
    command += [word for name in options.valid for word in ("--valid", name)]
    command += [word for value in options.settings for word in ("--set", value)]
    done = subprocess.run(command)
    if done.returncode:
        raise ConfigError(f"relmo ended with {done.returncode}; see above. Remove {folder}.")


def count_relmo(folder: Path) -> int:
    contents = read_model(folder / "model")
    return contents.n_parameters + (contents.softmax.weight.numel() if contents.softmax else 0)


# ---- BERT: pieces -------------------------------------------------------------------------------


def train_pieces(corpus: Corpus):
    """A WordPiece vocabulary of the corpus's words, in their case, as often as they occur."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL[UNKNOWN]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=N_PIECES, special_tokens=SPECIAL, show_progress=False
    )
    counts = corpus.count_words()
    tokenizer.train_from_iterator((f"{word} " * n for word, n in counts.items()), trainer)
    return tokenizer


def cut_words(tokenizer, words: Sequence[str]) -> list[list[int]]:
    """The pieces of each word, one at least."""
    return [found.ids or [UNKNOWN] for found in tokenizer.encode_batch(list(words))]


def build_sequences(tokenizer, blocks: Blocks) -> np.ndarray:
    """(n, LENGTH): the text as one row of pieces, a mark after each sentence, cut into lengths."""
    tables: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    rows = []
    for number, first, end, _ in blocks.table.tolist():
        shard = blocks.corpus.shards[number]
        if number not in tables:
            cut = [*cut_words(tokenizer, list(shard.words)), [END]]  # the last is for the mark
            lengths = np.array([len(pieces) for pieces in cut])
            flat = np.concatenate([np.array(pieces, np.int32) for pieces in cut])
            tables[number] = flat, lengths, np.cumsum(lengths) - lengths
        flat, lengths, starts = tables[number]
        before = int(shard.ends[first - 1]) if first else 0
        ends = shard.ends[first:end] - before
        words = np.insert(shard.ids[before : before + ends[-1]], ends, len(shard.words))
        sizes = lengths[words]
        shifts = starts[words] - (np.cumsum(sizes) - sizes)  # from a place here to one in `flat`
        rows.append(flat[np.repeat(shifts, sizes) + np.arange(sizes.sum())])
    pieces = np.concatenate(rows)
    n = max(1, len(pieces) // (LENGTH - 1))
    body = np.resize(pieces, (n, LENGTH - 1))  # what is left over at the end is dropped
    return np.concatenate([np.full((n, 1), START, np.int32), body], axis=1)


def mask_pieces(batch: Tensor, n_pieces: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What is read (B, T), and where something has to be guessed: 80 % masked, 10 % random."""
    draw = torch.rand(batch.shape, generator=generator)
    draw[batch < len(SPECIAL)] = 1.0
    read = batch.clone()
    read[draw < 0.8 * MASKED] = MASK
    random = (draw >= 0.8 * MASKED) & (draw < 0.9 * MASKED)
    n_random = int(random.sum())
    read[random] = torch.randint(len(SPECIAL), n_pieces, (n_random,), generator=generator)
    return read, draw < MASKED


# ---- BERT: the network --------------------------------------------------------------------------


def build_bert(n_pieces: int):
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    torch.manual_seed(0)
    return ModernBertForMaskedLM(
        ModernBertConfig(
            vocab_size=n_pieces,
            hidden_size=DIM,
            num_hidden_layers=N_LAYERS,
            num_attention_heads=N_HEADS,
            intermediate_size=8 * DIM // 3,  # gated, so with as many weights as 4 * DIM without
            max_position_embeddings=LENGTH,
            pad_token_id=PAD,
            bos_token_id=START,
            eos_token_id=END,
            cls_token_id=START,
            sep_token_id=END,
            attn_implementation="sdpa",
        )
    )


@torch.no_grad()
def begin_at_frequencies(bert, sequences: np.ndarray) -> None:
    counts = np.bincount(sequences.ravel(), minlength=bert.config.vocab_size)
    counts[: len(SPECIAL)] = 0  # never guessed
    bias = torch.from_numpy(np.log(np.maximum(counts, 1) / counts.sum()))
    bert.get_output_embeddings().bias.copy_(bias)


def masked_loss(bert, batch: Tensor, generator: torch.Generator) -> Tensor:
    """Mean over the places to guess; the output layer is computed for no others."""
    read, places = mask_pieces(batch, bert.config.vocab_size, generator)
    hidden = bert.model(read).last_hidden_state[places]  # (places, D)
    return functional.cross_entropy(bert.decoder(bert.head(hidden)), batch[places])


def endless_batches(sequences: np.ndarray, size: int) -> Iterator[Tensor]:
    rng = np.random.default_rng(0)
    size = min(size, len(sequences))
    while True:
        order = rng.permutation(len(sequences))
        for start in range(0, len(order) - size + 1, size):
            yield torch.from_numpy(sequences[np.sort(order[start : start + size])]).long()


def learn(bert, batches: Iterator[Tensor], rate: float, started: float, seconds: float):
    """Steps until the time is over: how many pieces there were so far, when, and the loss."""
    decayed = [p for p in bert.parameters() if p.ndim > 1]
    others = [p for p in bert.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-6, fused=True)
    generator = torch.Generator().manual_seed(0)
    n_seen, elapsed = 0, time.monotonic() - started
    for batch in batches:
        share = elapsed / seconds
        for group in optimizer.param_groups:
            group["lr"] = rate * max(0.0, min(share / WARMUP, (1 - share) / (1 - WARMUP)))
        loss = masked_loss(bert, batch, generator)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(bert.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        n_seen, elapsed = n_seen + batch.numel(), time.monotonic() - started
        yield n_seen, elapsed, loss.item()
        if elapsed >= seconds:
            return


@torch.no_grad()
def held_out_loss(bert, sequences: np.ndarray) -> float:
    bert.eval()
    generator = torch.Generator().manual_seed(1)
    total = n = 0.0
    for start in range(0, len(sequences), 64):
        batch = torch.from_numpy(sequences[start : start + 64]).long()
        total += len(batch) * masked_loss(bert, batch, generator).item()
        n += len(batch)
    return total / n


def train_bert(folder: Path, text: Text, config: PretrainConfig, options) -> None:
    from transformers import ModernBertForMaskedLM  # noqa: F401 - seconds that are not of the race

    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    tokenizer = train_pieces(text.corpus)
    n_pieces = tokenizer.get_vocab_size()
    sequences = build_sequences(tokenizer, text.train)
    words_a_piece = text.train.n_tokens / sequences.size
    bert = build_bert(n_pieces).train()
    begin_at_frequencies(bert, sequences)
    ready = time.monotonic() - started
    print(
        f"bert: {n_pieces:,} pieces, {1 / words_a_piece:.2f} a word, {len(sequences):,} sequences "
        f"after {ready:.0f} s",
        file=sys.stderr,
    )
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    with MetricsLog(folder / "metrics.jsonl") as log:
        losses, row, shown = [], {}, 0.0
        batches = endless_batches(sequences, options.sequences)
        steps = learn(bert, batches, options.learning_rate, started, 60 * options.minutes)
        for step, (n_seen, elapsed, loss) in enumerate(steps, start=1):
            losses.append(loss)
            row = {"step": step, "tokens": n_seen, "words": int(n_seen * words_a_piece)}
            row |= {"seconds": elapsed, "loss": float(np.mean(losses[-ROW_STEPS:]))}
            if step % ROW_STEPS == 0:
                log.write(row)
            if elapsed - shown >= 60:
                rate, shown = n_seen / (elapsed - ready), elapsed
                note = f"loss {row['loss']:.3f}, {rate:,.0f} pieces/s"
                print(f"bert: {elapsed / 60:.0f} minutes, {note}", file=sys.stderr)
        valid = held_out_loss(bert, build_sequences(tokenizer, text.valid))
        log.write(row | {"valid_loss": valid})
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "model").mkdir()
    save_model(bert, str(folder / "model" / "model.safetensors"))


def load_bert(folder: Path):
    """The tokenizer and the network."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    bert = build_bert(tokenizer.get_vocab_size()).eval()
    load_model(bert, folder / "model" / "model.safetensors")
    return tokenizer, bert


def count_bert(folder: Path) -> int:
    _, bert = load_bert(folder)
    return bert.num_parameters()


def bert_features(folder: Path) -> Features:
    """Each layer of the network (0 is what goes into the first)."""
    tokenizer, bert = load_bert(folder)

    def embed(sentences: list[tuple[str, ...]]) -> list[np.ndarray]:
        windows: list[list[list[int]]] = []  # of pieces of words
        owners: list[int] = []
        for number, tokens in enumerate(sentences):
            cut = cut_windows(cut_words(tokenizer, tokens))
            windows += cut
            owners += [number] * len(cut)
        found: list[list[np.ndarray]] = [[] for _ in sentences]
        for owner, vectors in zip(owners, read_windows(bert, windows), strict=True):
            found[owner].append(vectors)
        return [np.concatenate(parts, axis=1) for parts in found]

    digest = hashlib.blake2b(digest_size=16)
    for _, tensor in sorted(bert.state_dict().items()):
        digest.update(tensor.cpu().numpy().tobytes())
    return FunctionFeatures(
        "bert", digest.hexdigest(), N_LAYERS + 1, bert.config.hidden_size, embed
    )


def cut_windows(words: list[list[int]]) -> list[list[list[int]]]:
    """Cut a sentence that is longer than what BERT can read; a word stays in one piece."""
    windows: list[list[list[int]]] = []
    room = 0
    for pieces in words:
        if len(pieces) > room:
            windows.append([])
            room = LENGTH - 2  # for the marks at both ends
        windows[-1].append(pieces)
        room -= len(pieces)
    return windows


@torch.inference_mode()
def read_windows(bert, windows: list[list[list[int]]], size: int = 64) -> list[np.ndarray]:
    """(L+1, words, D) of each: the mean of a word's pieces."""
    flat = [[START, *(p for pieces in words for p in pieces), END] for words in windows]
    order = sorted(range(len(flat)), key=lambda i: len(flat[i]))  # like lengths together
    result: list[np.ndarray] = [np.empty(0)] * len(flat)
    for start in range(0, len(order), size):
        some = order[start : start + size]
        longest = max(len(flat[i]) for i in some)
        read = torch.tensor([flat[i] + [PAD] * (longest - len(flat[i])) for i in some])
        mask = (read != PAD).long()
        states = bert.model(read, attention_mask=mask, output_hidden_states=True).hidden_states
        layers = torch.stack(states).numpy()  # (L+1, B, T, D)
        for row, i in enumerate(some):
            lengths = [len(pieces) for pieces in windows[i]]
            *starts, end = accumulate(lengths, initial=1)
            inside = layers[:, row, :end]
            sums = np.add.reduceat(inside, starts, axis=1)  # (L+1, words, D)
            result[i] = sums / np.array(lengths, np.float32)[:, None]
    return result


# ---- the race -----------------------------------------------------------------------------------

TRAIN = {"relmo": train_relmo, "bert": train_bert}
COUNT = {"relmo": count_relmo, "bert": count_bert}
FEATURES = {"relmo": lambda folder: LiveFeatures(load(folder / "model")), "bert": bert_features}


def judge(name: str, folder: Path, parts: list[list[TaggedSentence]], epochs: int) -> dict:
    """What a run tells of itself, and what the probe finds in its model."""
    rows = read_metrics(folder / "metrics.jsonl")
    last = rows[-1]
    late = [row["loss"] for row in rows if row["seconds"] >= 0.95 * last["seconds"]]
    valid = min(row["valid_loss"] for row in rows if "valid_loss" in row)
    result = probe_tags([FEATURES[name](folder)], *parts, epochs=epochs)
    return {
        "parameters": COUNT[name](folder),
        "minutes": last["seconds"] / 60,
        "seen": last["tokens"],
        "words_per_s": last.get("words", last["tokens"]) / last["seconds"],
        "loss": float(np.mean(late)),
        "valid_loss": valid,
        "probe": result.as_dict(),
    }


def show(results: dict[str, dict]) -> None:
    def line(label: str, cells: Sequence[str]) -> None:
        print(f"{label:<24}" + "".join(f"{cell:>20}" for cell in cells))

    found = results.values()
    units = {"relmo": "words", "bert": "pieces"}
    line("", list(results))
    line("parameters", [f"{r['parameters']:,}" for r in found])
    line("minutes", [f"{r['minutes']:.1f}" for r in found])
    line("seen", [f"{r['seen']:,} {units[name]}" for name, r in results.items()])
    line("words/s", [f"{r['words_per_s']:,.0f}" for r in found])
    line("loss at the end", [f"{r['loss']:.3f}" for r in found])
    line("held-out loss", [f"{r['valid_loss']:.3f}" for r in found])
    line("held-out perplexity", [f"{np.exp(r['valid_loss']):,.1f}" for r in found])
    line("parts of speech", ["dev   test"] * len(results))
    probes = [r["probe"] for r in found]
    scores = [
        dict(zip(p["names"], zip(p["dev"], p["test"], strict=True), strict=True)) for p in probes
    ]
    for kind in dict.fromkeys(kind for p in probes for kind in p["names"]):
        line(
            f"  {kind}",
            [f"{s[kind][0]:.2f}  {s[kind][1]:.2f}" if kind in s else "" for s in scores],
        )
    line("  best on dev", [p["best"] for p in probes])
    line("  its test", [f"{s[p['best']][1]:.2f}" for p, s in zip(probes, scores, strict=True)])
    print("Losses are of different things: a next word of relmo's vocabulary, a masked piece.")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="+", help="files, directories, patterns")
    parser.add_argument("-o", "--output", type=Path, required=True, help="for models and results")
    for part in ("train", "dev", "test"):
        parser.add_argument(f"--{part}", required=True, metavar="FILE", help="CoNLL-U")
    parser.add_argument("--valid", action="append", default=[], help="text; else a share")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--only", choices=sorted(TRAIN), help="run one; show all that is there")
    parser.add_argument("--preset", default="small", help="of relmo")
    parser.add_argument(
        "--set", action="append", default=[], dest="settings", metavar="NAME=VALUE", help="of relmo"
    )
    parser.add_argument("--sequences", type=int, default=16, help="of BERT, a batch")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="of BERT, at its highest")
    parser.add_argument("--epochs", type=int, default=8, help="of the probe")
    return parser.parse_args()


def race(options: argparse.Namespace) -> None:
    names = [options.only] if options.only else list(TRAIN)
    if "bert" in names and not (find_spec("transformers") and find_spec("tokenizers")):
        raise ConfigError(
            "BERT needs the package transformers, which is not installed. Install it with: "
            "pip install 'relmo[dev]', or leave BERT out with --only relmo."
        )
    config = resolve_config(
        options.preset, {"train.max_minutes": options.minutes}, options.settings
    )
    parts = [list(read_conllu(path)) for path in (options.train, options.dev, options.test)]
    options.output.mkdir(parents=True, exist_ok=True)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", file=sys.stderr)
    for name in names:
        folder, result = options.output / name, options.output / f"{name}.json"
        if not (folder / "model").exists():
            text = Text.prepare(options.text, options.valid, config)
            TRAIN[name](folder, text, config, options)
        if not result.exists():
            judged = judge(name, folder, parts, options.epochs)
            result.write_text(json.dumps(judged, indent=2) + "\n", encoding="utf-8")
    found = {name: options.output / f"{name}.json" for name in TRAIN}
    show({name: json.loads(path.read_text()) for name, path in found.items() if path.exists()})


if __name__ == "__main__":
    try:
        race(parse_options())
    except RelmoError as error:
        sys.exit(str(error))
