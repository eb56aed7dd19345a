"""`prepare` against the pipeline written out slowly, over every kind of input, tokenizer and output."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles_prepare as oracle
from conftest import AMPLE
from ramlet.dataset.verify import verify
from ramlet.preparing.entry import prepare
from ramlet.preparing.run import Prepared
from ramlet.preparing.settings import PrepareSettings
from ramlet.tokenizer.tokenizer import Tokenizer

TEXT = "The first line of it.\n\nA second, with\tblanks  and “quotes”.\nÄ third: 漢字 😀 e\u0301\n"


def run(inputs: Any, out: Path, **given: Any) -> Prepared:
    given = {"tokenizer": "byte", "memory": AMPLE, "threads": 1, **given}
    return prepare(inputs, out, **given)


def check(made: Prepared, texts: list[str], limit: int = 1 << 20, **given: Any) -> oracle.Expected:
    """The dataset is the one that the slow pipeline makes of the documents."""
    manifest = made.manifest
    chosen = PrepareSettings(**{"tokenizer": "byte", **given})
    tokenizer = Tokenizer.load(made.path / "tokenizer.json")
    expected = oracle.prepare_slowly(texts, chosen, tokenizer, end_id=manifest["end_id"], limit=limit)
    for split in oracle.SPLITS:
        found = oracle.shards_on_disk(made.path, manifest, split)
        wanted = expected.ids(split)
        if chosen.pack:
            pieces = [piece for sequence in oracle.pack(wanted, chosen.pack) for piece in sequence]
            assert [piece for shard in found for piece in shard] == pieces
        else:
            assert found == oracle.shards(wanted, chosen.tokens_per_shard)
            assert manifest["splits"][split]["documents"] == len(wanted)
    oracle.check_ledger(manifest["ledger"], expected)
    assert manifest["lengths"] == expected.lengths
    assert json.loads((made.path / "dataset_metadata.json").read_text()) == manifest
    assert not (made.path / ".work").exists()
    report = verify(made.path)
    assert (report.problems, report.notes) == ([], [])
    return expected


line_texts = st.lists(
    st.sampled_from(
        ["a", "bb", "same line", "ç", "e\u0301", "漢字", "$$$$$$", "x" * 30, "", " ", "\t", "\u2028", "\x07"]
    ),
    max_size=4,
).map(" ".join)
texts = st.lists(line_texts, max_size=7).map("\n".join)
choices = st.fixed_dictionaries(
    {},
    optional={
        "dedup": st.sampled_from(["doc", "line", "none"]),
        "normalize": st.booleans(),
        "filter": st.booleans(),
        "min_chars": st.integers(0, 12),
        "max_chars": st.integers(12, 60),
        "min_line_chars": st.integers(0, 5),
        "max_line_chars": st.integers(5, 40),
        "max_line_symbols": st.sampled_from([0.0, 0.5, 1.0]),
        "max_symbols": st.sampled_from([0.1, 0.6]),
        "max_repeated": st.sampled_from([0.1, 0.5]),
        "min_tokens": st.integers(0, 6),
        "max_tokens": st.integers(6, 25),
        "long_documents": st.sampled_from(["split", "drop"]),
        "val_fraction": st.sampled_from([0.0, 0.01, 0.3, 0.99]),
        "tokens_per_shard": st.sampled_from([40, 64, 1000]),
        "pack": st.integers(2, 40),
        "document_bytes": st.integers(16, 60),
        "tokenizer": st.sampled_from(["byte", "char"]),
    },
)


@given(documents=st.lists(texts, min_size=1, max_size=12), chosen=choices)
@settings(max_examples=80)
def test_any_documents_and_settings(documents: list[str], chosen: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in.jsonl")
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
        made = run(source, Path(folder, "out"), allow_empty=True, **chosen)
        check(made, documents, chosen.get("document_bytes", 1 << 20), **chosen)


@given(
    text=st.lists(texts, max_size=4).map("\r\n".join).filter(bool),
    separator=st.sampled_from(["\n", "same", "\n\n", " l"]),
)
@settings(max_examples=25)
def test_what_is_a_document(text: str, separator: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in.txt")
        source.write_bytes(text.encode())
        for n, given in enumerate(({"documents": "file"}, {"documents": "line"}, {"doc_separator": separator})):
            made = run(source, Path(folder, str(n)), dedup="none", allow_empty=True, **given)
            documents = oracle.read_text(text, given.get("documents", ""), given.get("doc_separator"))
            check(made, documents, 1 << 16, dedup="none", **given)


def test_long_text_files_are_cut_at_paragraphs(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    lines = [
        " ".join("word" * int(n) for n in chance.integers(1, 5, 12)) + "\n" * int(n)
        for n in chance.integers(1, 4, 6000)
    ]
    text = "".join(lines) + "x" * 200_000
    Path(tmp_path, "in.txt").write_text(text)
    made = run(tmp_path / "in.txt", tmp_path / "out", max_line_chars=0)
    expected = check(made, [text], 1 << 16, max_line_chars=0)
    assert expected.cut > 5


def rows() -> list[str]:
    return [TEXT, "short", TEXT, "", "another text, and long enough", *(f"{n} {TEXT}" for n in range(30))]


def write_parquet(path: Path, texts: list[str]) -> None:
    pa.parquet.write_table(pa.table({"n": list(range(len(texts))), "text": texts}), path, row_group_size=7)


PACKERS: dict[str, Any] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_kinds_of_files(tmp_path: Path, kind: str, packer: str) -> None:
    source = tmp_path / f"in.{kind}{packer}"
    documents = rows()
    if kind == "txt":
        data = "".join(documents).encode()
        documents = oracle.read_text("".join(documents), "line")
    elif kind == "jsonl":
        data = "".join(json.dumps({"text": text}) + "\n" for text in documents).encode()
    else:
        write_parquet(tmp_path / "plain", documents)
        data = (tmp_path / "plain").read_bytes()
    source.write_bytes(PACKERS[packer](data))
    given = {"documents": "line", "dedup": "none"}
    check(run(source, tmp_path / "out", **given), documents, **given)


def test_files_come_in_their_order(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    for name in ("c.txt", "a.txt", "b/2.md", "b/1.py"):
        (folder / name).write_text(f"this is {name}")
    write_parquet(folder / "d.parquet", ["row one", "row two"])
    (folder / "e.jsonl").write_text('{"text": "a line"}\n')
    made = run([folder / "e.jsonl", folder], tmp_path / "out", val_fraction=0)
    wanted = ["a line", "this is a.txt", "this is b/1.py", "this is b/2.md", "this is c.txt", "row one", "row two"]
    check(made, wanted, val_fraction=0)
    assert made.manifest["ledger"]["input"]["files"] == 6
    assert made.manifest["ledger"]["input"]["skipped_files"] == {"repeated": 1}


@pytest.mark.parametrize("kind", ["gpt2", "byte", "char", "trained"])
def test_ids_decode_to_the_kept_texts_in_order(tmp_path: Path, kind: str) -> None:
    texts = [f"{n}: text with <|endoftext|> and <unk> inside it 漢字" for n in range(40)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer: str | Path = kind
    if kind == "trained":
        tokenizer = tmp_path / "own.json"
        Tokenizer.train(
            [tmp_path / "in.jsonl"], vocab_size=300, special_tokens=["<|endoftext|>", "<|other|>"], memory=AMPLE
        ).save(tokenizer, format="json")
    made = run(tmp_path / "in.jsonl", tmp_path / "out", tokenizer=tokenizer, val_fraction=0)
    own = Tokenizer.load(made.path / "tokenizer.json")
    assert made.manifest["tokenizer"]["fingerprint"] == own.fingerprint
    end = made.manifest["end_id"]
    found = []
    for ids in oracle.shards_on_disk(made.path, made.manifest, "train")[0]:
        assert ids[-1] == end
        assert end not in ids[:-1]
        found.append(own.decode(ids[:-1]))
    assert found == texts


def test_end_tokens(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("some text to learn from, some text")
    Tokenizer.train(
        [tmp_path / "in.txt"], vocab_size=270, special_tokens=["<|endoftext|>", "<|other|>"], memory=AMPLE
    ).save(tmp_path / "own.json", format="json")
    given = {"tokenizer": tmp_path / "own.json", "val_fraction": 0}
    own = Tokenizer.load(tmp_path / "own.json")
    for n, (name, wanted) in enumerate([(None, "<|endoftext|>"), ("<|other|>", "<|other|>"), ("none", None)]):
        made = run(tmp_path / "in.txt", tmp_path / str(n), end_token=name, **given)
        end_id = None if wanted is None else own.special_tokens[wanted]
        assert made.manifest["end_id"] == end_id
        (ids,) = oracle.shards_on_disk(made.path, made.manifest, "train")[0]
        assert ids == own.encode("some text to learn from, some text") + [end_id] * (end_id is not None)
        assert made.manifest["ledger"]["tokens"]["end_ids"] == (end_id is not None)


def test_ids_of_four_bytes(tmp_path: Path) -> None:
    """A vocabulary of more than 65,536 characters."""
    letters = [chr(code) for code in range(0x4E00, 0x9FFF)] + [chr(code) for code in range(0x20000, 0x2B740)]
    texts = ["".join(letters[at : at + 1000]) for at in range(0, len(letters), 1000)]
    (tmp_path / "in.txt").write_text("\n".join(texts))
    made = run(tmp_path / "in.txt", tmp_path / "out", tokenizer="char", documents="line")
    assert made.manifest["dtype"] == "uint32"
    check(made, texts, tokenizer="char", documents="line")


def test_npy(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows()))
    made = run(tmp_path / "in.jsonl", tmp_path / "ids.npy", tokenizer="gpt2", output_format="npy")
    shards = run(tmp_path / "in.jsonl", tmp_path / "out", tokenizer="gpt2", val_fraction=0)
    (found,) = oracle.shards_on_disk(shards.path, shards.manifest, "train")
    ids = np.load(tmp_path / "ids.npy")
    assert ids.dtype == np.uint16
    assert ids.tolist() == [one for ids in found for one in ids]
    assert made.manifest["splits"]["train"] == {"tokens": len(ids), "documents": len(found)}
    assert made.manifest["splits"]["val"] == {"tokens": 0, "documents": 0}
    oracle.check_ledger(made.manifest["ledger"])
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        *("ids.npy", "ids.npy.json", "ids.npy.tokenizer.json", "in.jsonl", "out")
    ]


def test_real_text_with_gpt2(tmp_path: Path) -> None:
    """The project's own sources and guides."""
    here = Path(__file__).parent.parent
    paths = sorted([*here.glob("python/ramlet/*.py"), *here.glob("rust/*.rs"), *here.glob("*.md")])[:40]
    documents = [path.read_text() for path in paths]
    given = {"tokenizer": "gpt2", "dedup": "line", "max_tokens": 512, "tokens_per_shard": 20_000}
    check(run(paths, tmp_path / "out", **given), documents, 1 << 16, **given)


def test_examples_name_where_they_come_from(tmp_path: Path) -> None:
    for n in range(5):
        (tmp_path / f"{n}.txt").write_text("kept, because it is long\n" + f"{n}\n" * (n > 1))
    made = run(sorted(tmp_path.glob("*.txt")), tmp_path / "out", documents="line", min_chars=5, dedup="none")
    assert made.manifest["examples"] == {
        "too_short": [{"file": str(tmp_path / f"{n}.txt"), "document": 1, "text": str(n)} for n in (2, 3, 4)]
    }


def test_the_same_document_stays_on_its_side(tmp_path: Path) -> None:
    texts = [f"document {n}" for n in range(300)]
    (tmp_path / "few.txt").write_text("\n".join(texts[100:]))
    (tmp_path / "all.txt").write_text("\n".join(texts))
    given = {"documents": "line", "val_fraction": 0.2, "end_token": "none"}
    few, every = (run(tmp_path / f"{name}.txt", tmp_path / name, **given) for name in ("few", "all"))
    sides = []
    for made in (few, every):
        shards = oracle.shards_on_disk(made.path, made.manifest, "val")
        sides.append({bytes(ids).decode() for shard in shards for ids in shard})
    assert sides[0] == sides[1] & set(texts[100:])
    assert 30 < len(sides[1]) < 90
