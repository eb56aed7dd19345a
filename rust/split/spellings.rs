//! The regexes behind the named patterns, and the other ways they are published.
//!
//! Each pattern is written out in one spelling that means the same to fancy-regex, to Python's
//! `regex` and to Oniguruma, since it goes into tokenizer.json. tiktoken's own cl100k does not:
//! Oniguruma reads `\p{N}{1,3}+` as a repeated group, not as possessive, and takes all digits.

use super::Pattern;

pub(super) const GPT2: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
pub(super) const CL100K: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s++$|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(super) const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(super) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(super) const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// `(?s).+` in words that Oniguruma, where `(?s)` is an error, understands as well.
pub(super) const WHOLE: &str = r"[\s\S]+";

/// Other spellings with the same pieces on every text, by the pattern they mean.
const PUBLISHED: [(Pattern, &str); 7] = [
    // The GPT-2 release and Hugging Face's ByteLevel, with and without needless brackets.
    (Pattern::Gpt2, r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
    (Pattern::Gpt2, r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
    // tiktoken's r50k_base and p50k_base, then its cl100k_base.
    (Pattern::Gpt2, r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"),
    (
        Pattern::Cl100k,
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    ),
    // An earlier cl100k_base, and what many projects still call the GPT-4 pattern: it cuts white
    // space at the end of the text behind its last line end, and so is Llama 3. The earliest
    // cl100k_base is LLAMA3 to the letter.
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

/// Every known spelling with the pattern it means, the written-out ones first.
pub(super) fn all() -> impl Iterator<Item = (Pattern, &'static str)> {
    let written_out = [
        (Pattern::Gpt2, GPT2),
        (Pattern::Cl100k, CL100K),
        (Pattern::O200k, O200K),
        (Pattern::Llama3, LLAMA3),
        (Pattern::Qwen2, QWEN2),
        (Pattern::Whole, WHOLE),
    ];
    written_out.into_iter().chain(PUBLISHED)
}
