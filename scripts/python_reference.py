"""Write docs/reference/python.md from signatures and docstrings, so that they cannot differ."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel

import relmo

TARGET = Path(__file__).parents[1] / "docs" / "reference" / "python.md"
WIDTH = 100
INTRODUCTION = """\
<!-- Written by scripts/python_reference.py. Change the docstrings in src/relmo instead. -->
# Python

Every verb of the [command line](cli.md) but `demo` has a function here. Where the verb has
`--json`, the function returns a frozen dataclass whose `as_dict()` is what the verb prints
(`score_file` gives one per line). Names are loaded when they are first used: `import relmo`
alone does not import torch.

Functions take a model as a name, as a path, as a `ModelSource` or as a loaded `Model`; and text as
a path, as `"-"` for standard input, or as a list of paths. The examples run as tests. In
signatures,

| | |
|---|---|
| `ModelLike` | `str`, `Path`, `Model` or `ModelSource` |
| `TextSource` | `str` or `Path` (file, directory, pattern or `"-"`), or a sequence of them |
| `IndexLike` | the directory of an index, or a `VectorIndex` |
| `Sentence` | a string, a sequence of tokens, or an array of character ids (tokens, C) |
| `Sentences` | a sequence of sentences, each a sequence of tokens |
| `LayerSpec` | `"all"`, `"average"`, `"lstm"`, `"top"`, a number, numbers or a `ScalarMix` |
| `Layer` | `"average"`, `"lstm"`, `"top"` or a number |
| `Pool` | `"mean"`, `"max"` or `"first-last"` |
| `LossFunction` | from a module and a batch to (loss, units) or (loss, units, extra columns) |
| `Setting` | `str`, `int`, `float`, `bool` or `None` |
| `Array`, `IntArray` | NumPy arrays of float32 and of int64 |
"""

# Every name of `relmo.__all__`, `relmo.features.__all__` and `relmo.train.__all__`, and what their
# functions take and return. "module:name" is not exported by relmo itself.
SECTIONS = {
    "Load and embed": """
        load Model relmo.inference.model:StatefulStream ModelSource
        relmo.text.batch:Batch relmo.text.batch:Packing relmo.text.characters:TokenIds
        relmo.text.characters:CharacterScheme relmo.text.tokenize:Token
        embed_file relmo.vectors.bulk:EmbeddedFile TextOptions
        relmo.vectors.sinks:open_sink relmo.vectors.sinks:Sink
        relmo.text.corpus:read_lines relmo.text.sentences:read_sentences
    """,
    "Measure text": """
        perplexity relmo.inference.scoring:Perplexity
        score_file relmo.inference.text_scores:ScoredLine relmo.inference.scoring:ScoredSentence
        relmo.inference.scoring:Scoring
        substitutes relmo.inference.substitutes:Substitutes relmo.inference.substitutes:Substitute
    """,
    "Explore words": """
        neighbours relmo.vectors.neighbours:Neighbours relmo.vectors.neighbours:Neighbour
        find_senses SenseOptions relmo.analysis.senses:Senses relmo.analysis.senses:Sense
        relmo.analysis.occurrences:Occurrence relmo.analysis.senses:group_senses
        relmo.analysis.picture:write_picture
        build_index IndexOptions relmo.vectors.corpus_index:index_sentences VectorIndex
        search_index search_corpus relmo.vectors.corpus_index:Occurrences relmo.vectors.index:Hit
        measure_recall relmo.vectors.corpus_index:Recall StaticVectors
    """,
    "Probe the layers": """
        probe_pos relmo.analysis.probes:probe_tags
        relmo.text.conllu:TaggedSentence relmo.text.conllu:read_conllu
        relmo.analysis.probes:ProbeResult
        probe_wic relmo.analysis.word_in_context:PairResult
    """,
    "Train on top": """
        BiLm relmo.model.output:BiLmOutput relmo.model.output:BiLmState relmo.model.output:Packed
        ScalarMix
        relmo.features:Features relmo.features:Layers relmo.features:LiveFeatures
        relmo.features:FunctionFeatures relmo.features:open_features
        relmo.features:FeatureStore relmo.features:StoredFeatures
        relmo.train:train relmo.config:TrainConfig relmo.train:Outcome
        relmo.train:ModuleLearner relmo.train.optim:Clipping relmo.train:Metric
        relmo.train:Examples relmo.train:RunDirectory
        relmo.train:Learner relmo.train:Step relmo.train:TrainingData
        relmo.train.report:Report relmo.train.report:Row
        relmo.train.world:World relmo.train.world:join_world
    """,
    "Pre-train": """
        pretrain relmo.presets:list_presets relmo.presets:read_preset
        relmo.presets:with_settings relmo.train.log:read_metrics
        relmo.config:PretrainConfig relmo.config:ModelConfig relmo.config:EncoderConfig
        relmo.config:LstmConfig relmo.config:DataConfig relmo.config:ObjectiveConfig
    """,
    "Models and caches": """
        convert describe_model relmo.inference.describe:ModelDescription
        describe_system relmo.inference.describe:SystemDescription
        list_models relmo.inference.describe:KnownModels relmo.inference.describe:KnownModel
        relmo.formats:read_model relmo.formats:ModelContents relmo.formats.contents:Softmax
        relmo.text.vocabulary:Vocabulary relmo.text.lexicon:Lexicon
        list_cache relmo.cache:CacheContents relmo.cache:CacheEntry clear_cache relmo.cache:Cleared
    """,
    "Results": """
        relmo.results:Result relmo.results:Value relmo.results:Interval relmo.results:DataFile
        relmo.machine:Machine relmo.results:build_result relmo.results:accuracy
        relmo.results:binomial_interval relmo.results:bootstrap_interval
        relmo.results:data_identity relmo.results:write_results relmo.results:read_results
        relmo.results:render_table
    """,
}
NOT_BUILT = ("Sink", "StoredFeatures")  # by callers: another function gives them
HEADINGS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example", "Examples")


def render() -> str:
    """The page, as Markdown."""
    parts = [INTRODUCTION]
    for title, names in SECTIONS.items():
        parts += [f"## {title}\n", *(_entry(name) for name in names.split())]
    parts += ["## Errors\n", *_docstring(relmo.errors.__doc__)]
    errors = [e for e in vars(relmo.errors).values() if inspect.isclass(e) and _is_ours(e)]
    parts += [_entry(f"relmo.errors:{error.__name__}") for error in errors]
    return "\n".join(parts).rstrip() + "\n"


def _entry(name: str) -> str:
    """One function or class, with its methods."""
    home, _, attribute = name.rpartition(":")
    value = getattr(import_module(home or "relmo"), attribute)
    path = f"{home or 'relmo'}.{attribute}"
    lines = [f"### {path}", "", *_signature(value, path), *_docstring(value.__doc__)]
    if inspect.isclass(value):
        for member, defined in vars(value).items():
            if not member.startswith("_"):
                lines += _member(f"{value.__name__}.{member}", getattr(value, member), defined)
    return "\n".join(lines)


def _member(path: str, value: Any, defined: Any) -> Iterator[str]:
    """A method or property of a class; fields are described by the class."""
    text = inspect.cleandoc(getattr(defined, "__doc__", None) or "")
    if isinstance(defined, property | cached_property):
        yield from (f"**`{path}`**: {' '.join(text.split())}", "")
    elif path.endswith(".as_dict"):
        yield from (f"**`{path}()`**: {text}", "")
    elif inspect.isfunction(value) or inspect.ismethod(value):
        yield from (f"#### {path}", "", *_signature(value, path), *_docstring(value.__doc__))


def _signature(value: Any, path: str) -> Iterator[str]:
    if inspect.isclass(value) and (
        issubclass(value, Exception) or _is_protocol(value) or value.__name__ in NOT_BUILT
    ):
        return
    signature = inspect.signature(value)
    parameters = [p for p in signature.parameters.values() if p.name[0] != "_" and p.name != "self"]
    if inspect.isclass(value) and issubclass(value, BaseModel):  # types without their limits
        types = get_type_hints(value)
        parameters = [p.replace(annotation=types[p.name]) for p in parameters]
    shown = _parameters(parameters)
    result = "" if inspect.isclass(value) else _result(signature)
    line = f"{path}({', '.join(shown)}){result}"
    if len(line) > WIDTH:
        line = "\n    ".join([f"{path}(", *(f"{part}," for part in shown)]) + f"\n){result}"
    yield from ("```py", line, "```", "")


def _parameters(parameters: Iterable[inspect.Parameter]) -> list[str]:
    shown, keyword_only = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            shown.append("*")
        if parameter.kind is parameter.VAR_POSITIONAL:
            keyword_only = True
        text = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
        if parameter.annotation is not parameter.empty:
            text += f": {_type(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            equals = " = " if parameter.annotation is not parameter.empty else "="
            text += f"{equals}{_value(parameter.default)}"
        shown.append(text)
    return shown


def _result(signature: inspect.Signature) -> str:
    found = signature.return_annotation
    return "" if found is signature.empty else f" -> {_type(found)}"


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"ForwardRef\('([^']+)'[^)]*\)", r"\1", text)
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)
    if "Literal[" not in text:  # the names of types in quotes
        text = re.sub(r"(?<=\[)'|'(?=])", "", text)
    return re.sub(r"\bOptional\[(\w+)\]", r"\1 | None", text)


def _value(default: Any) -> str:
    """A default; of a dataclass or settings, what differs from the defaults of its fields."""
    if isinstance(default, BaseModel):
        return f"{type(default).__name__}()"
    if not is_dataclass(default):
        if inspect.isbuiltin(default) or inspect.isfunction(default):
            return str(default.__name__)
        unordered = isinstance(default, frozenset)
        return "..." if unordered or repr(default).startswith("<") else repr(default)
    set_fields = [
        f"{field.name}={getattr(default, field.name)!r}"
        for field in fields(default)
        if field.default is MISSING or getattr(default, field.name) != field.default
    ]
    return f"{type(default).__name__}({', '.join(set_fields)})"


def _docstring(text: str | None) -> Iterator[str]:
    """A docstring in Google style, as Markdown."""
    section, body = "", []
    for line in [*inspect.cleandoc(text or "").splitlines(), "Args:"]:
        if (heading := line.removesuffix(":")) in HEADINGS and line.endswith(":"):
            yield from _section(section, inspect.cleandoc("\n" + "\n".join(body)))
            section, body = heading, []
        else:
            body.append(line)


def _section(title: str, body: str) -> Iterator[str]:
    if not body:
        return
    if title.startswith("Example"):
        yield from ("```pycon", body, "```", "")
    elif title in ("Args", "Attributes", "Raises"):
        yield from (f"{'Arguments' if title == 'Args' else title}:", "")
        for item in re.split(r"\n(?=\S)", body):
            name, _, rest = item.partition(":")
            yield f"- `{name}`: {' '.join(rest.split())}"
        yield ""
    else:
        for paragraph in (f"{title}: {body}" if title else body).split("\n\n"):
            is_example = paragraph.startswith(">>>")
            yield from (["```pycon", paragraph, "```", ""] if is_example else [paragraph, ""])


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")) == "relmo.errors"


def _is_protocol(value: Any) -> bool:
    return bool(getattr(value, "_is_protocol", False))


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8", newline="\n")
    print(f"Wrote {TARGET}")
