"""A real llama.cpp (the wheel xllamacpp), and transformers with the weights that a .gguf file has.

What llama.cpp generates is compared with transformers in fp32 on the numbers in the file, not on those of the run: a
file in q8_0 is another model than the run. That the file has the run's numbers, rounded, is checked separately.
"""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
import xllamacpp


@dataclass(frozen=True)
class Greedy:
    ids: list[int]
    logprobs: list[dict[int, float]]
    """Of the most likely ids, for each."""

    def margins(self) -> list[float]:
        """How much more likely the first id was than the second, in nats."""
        ordered = (sorted(each.values(), reverse=True) for each in self.logprobs)
        return [first - second for first, second, *_ in ordered]


class LlamaCpp:
    """A model in llama.cpp, with one thread and an fp32 KV cache."""

    def __init__(self, path: Path, context: int) -> None:
        given = xllamacpp.CommonParams()
        given.model.path = str(path)
        given.n_ctx, given.n_parallel, given.warmup, given.verbosity, given.ui = context, 1, False, -1, False
        for each in (given.cpuparams, given.cpuparams_batch):
            each.n_threads = 1
        given.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        given.cache_type_k = given.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        self._server = xllamacpp.Server(given)
        # Its loop answers this. A server that is closed before its loop has begun, as on a busy machine, waits forever.
        self._ask("slots")

    def greedy(self, prompt: str, count: int) -> Greedy:
        asked = {"temperature": 0.0, "top_k": 1, "samplers": ["top_k"], "n_probs": 4, "return_tokens": True}
        answer = self._ask("completion", {"prompt": prompt, "n_predict": count, **asked})
        likely: list[dict[int, float]] = []
        # Tokens that end inside a character have no probabilities: those before the first one are enough.
        for number, one in zip(answer["tokens"], answer["completion_probabilities"]):
            if one["id"] != number:
                break
            likely.append({top["id"]: top["logprob"] for top in one["top_logprobs"]})
        return Greedy(answer["tokens"], likely)

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        asked = {"content": text, "add_special": True, "parse_special": special}
        tokens: list[int] = self._ask("tokenize", asked)["tokens"]
        return tokens

    def _ask(self, path: str, asked: dict[str, Any] | None = None) -> Any:
        body = None if asked is None else json.dumps(asked).encode()
        request = urllib.request.Request(
            f"{self._server.listening_address}/{path}", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


def reference_greedy(model: Any, prompt: list[int], count: int, end_id: int | None) -> Greedy:
    """The same by transformers, in fp32; stops before the end id, as llama.cpp does."""
    ids, likely = list(prompt), []
    with torch.no_grad():
        past = None
        given = torch.tensor([prompt])
        for _ in range(count):
            out = model(given, past_key_values=past, use_cache=True)
            past = out.past_key_values
            top = torch.log_softmax(out.logits[0, -1].double(), -1).topk(4)
            likely.append(dict(zip(top.indices.tolist(), top.values.tolist())))
            ids.append(int(top.indices[0]))
            given = torch.tensor([ids[-1:]])
            if ids[-1] == end_id:
                break
    return Greedy(ids[len(prompt) :], likely)


def weights_of(path: Path, config: Any) -> dict[str, torch.Tensor]:
    """The tensors of a .gguf by transformers' names, in fp32 and transformers' order of rows."""
    kind = gguf.MODEL_ARCH.QWEN3 if config.model_type == "qwen3" else gguf.MODEL_ARCH.LLAMA
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    found = {}
    for name in transformers.AutoModelForCausalLM.from_config(config).state_dict():
        stored = theirs.get(names.get_name(name, try_suffixes=(".weight",)) or "")
        if stored is None:
            assert name == "lm_head.weight"
            assert config.tie_word_embeddings
            continue
        numbers = torch.from_numpy(np.array(gguf.quants.dequantize(stored.data, stored.tensor_type), np.float32))
        if config.model_type == "llama" and ("q_proj" in name or "k_proj" in name):
            # Neighbors become halves again.
            pairs = numbers.view(-1, config.head_dim // 2, 2, numbers.shape[-1])
            numbers = pairs.transpose(1, 2).reshape(numbers.shape)
        found[name] = numbers
    return found


def transformers_of(path: Path, run: Path, rows: int | None = None) -> Any:
    """transformers' model of a run, with the weights of its .gguf file, which has so many tokens [default: as many]."""
    model = transformers.AutoModelForCausalLM.from_pretrained(run, dtype=torch.float32)
    if rows is not None:
        model.resize_token_embeddings(rows)
    weights = weights_of(path, model.config)
    missing = model.load_state_dict(weights, strict=False).missing_keys
    assert missing in ([], ["lm_head.weight"])
    return model.eval()


def assert_rounded(path: Path, run: Path, dtype: str) -> None:
    """The file has the run's numbers, each rounded to the nearest of the dtype; of the embedding maybe fewer rows."""
    model = transformers.AutoModelForCausalLM.from_pretrained(run, dtype=torch.float32)
    ours = model.state_dict()
    for name, numbers in weights_of(path, model.config).items():
        given = ours[name][: len(numbers)]
        if numbers.ndim == 1 or dtype == "f32":
            assert torch.equal(numbers, given), name
        elif dtype == "q8_0" and numbers.shape[-1] % 32 == 0:
            scale = given.view(-1, 32).abs().amax(1, keepdim=True) / 127
            # Half a step, and what the scale itself lost as fp16.
            assert ((numbers - given).view(-1, 32).abs() <= scale * (0.5 + 127 * 2**-11) + 1e-7).all(), name
        else:
            kept = torch.bfloat16 if dtype == "bf16" else torch.float16
            assert torch.equal(numbers, given.to(kept).float()), name
