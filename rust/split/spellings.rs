//! The regexes of the named patterns, and the other ways they are published.
//!
//! Each pattern is written in one way that means the same in fancy-regex, Python's `regex` and Oniguruma, because it is
//! written to tokenizer.json. tiktoken's own cl100k does not: Oniguruma reads `\p{N}{1,3}+` as a repeated group, not as
//! possessive, and matches all digits.

use super::Pattern;

const GPT2: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const CL100K: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s++$|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// `(?s).+`, written so that it works in Oniguruma too, where `(?s)` is an error.
const WHOLE: &str = r"[\s\S]+";

/// Name, pattern and reference regex.
pub(super) const NAMED: [(&str, Pattern, &str); 6] = [
    ("gpt2", Pattern::Gpt2, GPT2),
    ("cl100k", Pattern::Cl100k, CL100K),
    ("o200k", Pattern::O200k, O200K),
    ("llama3", Pattern::Llama3, LLAMA3),
    ("qwen2", Pattern::Qwen2, QWEN2),
    ("whole", Pattern::Whole, WHOLE),
];

/// Other regexes that give the same pieces as a named pattern on every text.
const PUBLISHED: [(Pattern, &str); 7] = [
    // The GPT-2 release and Hugging Face's ByteLevel, with and without unnecessary brackets.
    (Pattern::Gpt2, r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
    (Pattern::Gpt2, r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
    // tiktoken's r50k_base and p50k_base, then its cl100k_base.
    (Pattern::Gpt2, r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"),
    (
        Pattern::Cl100k,
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    ),
    // An earlier cl100k_base, which many projects still call the GPT-4 pattern: it cuts white space at the end of the
    // text after its last line end, as Llama 3. The earliest cl100k_base is exactly LLAMA3.
    (
        Pattern::Llama3,
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    (
        Pattern::Llama3,
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    (
        Pattern::Qwen2,
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];

/// Every known regex with its pattern, the reference regexes first.
pub(super) fn all() -> impl Iterator<Item = (Pattern, &'static str)> {
    NAMED.into_iter().map(|(_, pattern, regex)| (pattern, regex)).chain(PUBLISHED)
}
