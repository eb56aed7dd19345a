//! Pre-tokenization: splits text into pieces. BPE never merges across pieces.
//!
//! The named patterns are written by hand and give the pieces of their reference regex on every valid text; any other
//! regex runs on fancy-regex, fifty to a hundred times slower. `blocks.rs` has what makes them fast; `stable.rs` has
//! what allows cutting a long text into blocks without changing a piece.
//!
//! **The cap.** With `cap` below `usize::MAX`, a match sees no more than `cap` bytes from the start of its piece, as if
//! the text ended there. A longer match is cut off at `cap`, rounded down to the start of a character, and a new one
//! begins there. So a piece does not depend on anything more than `cap` bytes away, any stream can be split in bounded
//! memory, and the work is linear: no character is scanned more than twice because of backtracking.

mod blocks;
mod cl100k;
mod custom;
mod gpt2;
mod o200k;
mod spellings;
mod stable;
#[cfg(test)]
mod tests;

use self::blocks::Block;
use self::cl100k::Cl100k;
use self::custom::Custom;
use self::gpt2::Gpt2;
use self::o200k::O200k;
pub use self::stable::LOOK_BACK;
use crate::unicode::Classes;

/// How to split text into pieces. Clone it for every thread: the users of one copy of a custom regex share its scratch
/// memory.
#[derive(Clone, Debug)]
pub enum Pattern {
    Gpt2,
    Cl100k,
    O200k,
    Llama3,
    Qwen2,
    /// The whole text is one piece.
    Whole,
    Custom(Box<Custom>),
}

/// Receives pieces. Any closure is one; a separate type can be inlined into the splitter's loop, which large closures
/// are not.
pub trait Sink {
    fn piece(&mut self, start: usize, end: usize);
}

impl<F: FnMut(usize, usize)> Sink for F {
    #[inline(always)]
    fn piece(&mut self, start: usize, end: usize) {
        self(start, end);
    }
}

/// One named pattern, in two versions: one character at a time, and 64 ASCII bytes at once.
trait Rule: Copy {
    /// Whether `\s*[\r\n]+` is a piece even if only white space follows it.
    const CUTS_AFTER_NEWLINES: bool;

    /// Where the piece that begins at `start` ends, if nothing follows `text`.
    fn piece_end(self, classes: &Classes, text: &[u8], start: usize) -> usize;

    /// The piece starts in `block`, which begins with one; see `blocks.rs` for which may be missing. `text` is the text
    /// of the block.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    fn starts(self, block: &Block, text: &[u8]) -> u64;
}

const LLAMA3: Cl100k<3, false> = Cl100k;
const QWEN2: Cl100k<1, false> = Cl100k;
const CL100K: Cl100k<3, true> = Cl100k;

/// No character is longer, so every piece can have one.
const SMALLEST_CAP: usize = 4;

impl Pattern {
    /// `gpt2`, `cl100k`, `o200k`, `llama3`, `qwen2` or `whole`.
    pub fn named(name: &str) -> Option<Pattern> {
        spellings::NAMED.into_iter().find_map(|(other, pattern, _)| (other == name).then_some(pattern))
    }

    /// Its name, and its regex as written out in `spellings.rs`; `None` for a custom one.
    fn published(&self) -> Option<(&'static str, &'static str)> {
        let same = |other: &Pattern| std::mem::discriminant(other) == std::mem::discriminant(self);
        spellings::NAMED
            .into_iter()
            .find_map(|(name, pattern, regex)| same(&pattern).then_some((name, regex)))
    }

    pub fn name(&self) -> Option<&'static str> {
        self.published().map(|(name, _)| name)
    }

    /// The named pattern whose pieces `regex` is known to give. tiktoken's cl100k is not Llama 3's: see `cl100k.rs`.
    pub fn recognize(regex: &str) -> Option<Pattern> {
        spellings::all().find_map(|(pattern, spelling)| (spelling == regex).then_some(pattern))
    }

    /// Any regex, in fancy-regex's syntax. As in Hugging Face's `Split` with the behavior `Isolated`, the text between
    /// two matches is a piece too, and an empty match cuts it.
    pub fn custom(regex: &str) -> Result<Pattern, String> {
        Ok(Pattern::Custom(Box::new(Custom::new(regex)?)))
    }

    /// The reference regex, in a form that means the same in fancy-regex, Python's `regex` and Oniguruma (used by
    /// Hugging Face).
    pub fn regex(&self) -> &str {
        match self {
            Pattern::Custom(custom) => custom.regex(),
            named => named.published().expect("all are listed").1,
        }
    }

    /// How often a custom regex failed because of too much backtracking, in this pattern and all its clones. The text
    /// there, up to 4 KB each time, became one piece. 0 for the named patterns.
    pub fn failures(&self) -> u64 {
        match self {
            Pattern::Custom(custom) => custom.failures(),
            _ => 0,
        }
    }

    /// Splits `text` into pieces, in order: `emit(start, end)` in bytes, none empty, without gaps.
    ///
    /// No piece is longer than `cap` bytes (at least 4; `usize::MAX` for no limit, see the top of
    /// this file). Returns how many pieces the cap cut off.
    #[inline]
    pub fn split<S: Sink>(&self, text: &str, cap: usize, mut emit: S) -> u64 {
        let cap = cap.max(SMALLEST_CAP);
        match self {
            Pattern::Gpt2 => tile(Gpt2, text, cap, emit),
            Pattern::Cl100k => tile(CL100K, text, cap, emit),
            Pattern::O200k => tile(O200k, text, cap, emit),
            Pattern::Llama3 => tile(LLAMA3, text, cap, emit),
            Pattern::Qwen2 => tile(QWEN2, text, cap, emit),
            Pattern::Whole => tile_whole(text, cap, emit),
            Pattern::Custom(custom) => custom.tile(text, 0, cap, |start, end| emit.piece(start, end)),
        }
    }

    /// The last place in `text` that is a boundary whatever is around it: after a letter, before a character that no
    /// pattern joins to one. `None` if there is none near the end, or for a custom regex.
    pub fn word_boundary(&self, text: &str) -> Option<usize> {
        match self {
            Pattern::Whole | Pattern::Custom(_) => None,
            _ => stable::after_a_word(text),
        }
    }

    /// An `n` such that `text[..n]` alone has the pieces it has at the start of any longer text
    /// that begins with `text`; 0 if there is none. `text` itself begins at a piece boundary.
    ///
    /// For the named patterns this is certain. With a cap, less than three times `cap` bytes remain after it; without,
    /// a text of one endless run has no stable prefix. For a custom regex it holds if the regex looks at no more than 4
    /// KB before or after a match.
    ///
    /// A piece cut off by the cap at `n` is not counted as cut off when `text[..n]` is split.
    pub fn stable_prefix(&self, text: &str, cap: usize) -> usize {
        let cap = cap.max(SMALLEST_CAP);
        match self {
            Pattern::Gpt2 => stable::prefix(Gpt2, text, cap),
            Pattern::Cl100k => stable::prefix(CL100K, text, cap),
            Pattern::O200k => stable::prefix(O200k, text, cap),
            Pattern::Llama3 => stable::prefix(LLAMA3, text, cap),
            Pattern::Qwen2 => stable::prefix(QWEN2, text, cap),
            Pattern::Whole => stable::prefix_whole(text, cap),
            Pattern::Custom(custom) => stable::prefix_custom(custom, text, cap),
        }
    }
}

#[inline]
fn tile<R: Rule, S: Sink>(rule: R, text: &str, cap: usize, mut emit: S) -> u64 {
    let classes = Classes::get();
    let bytes = text.as_bytes();
    let mut cut_off = 0;
    let mut start = 0;
    // A block that is not all ASCII is first processed character by character up to its last one that is not.
    #[cfg(target_arch = "x86_64")]
    let mut walk_to = 0;
    while start < bytes.len() {
        #[cfg(target_arch = "x86_64")]
        if start >= walk_to && bytes.len() - start >= blocks::WIDTH && cap >= blocks::WIDTH {
            let block = Block::load(bytes, start);
            let base = start;
            for at in blocks::bits(rule.starts(&block, bytes) & !1) {
                let end = base + at as usize;
                emit.piece(start, end);
                start = end;
            }
            walk_to = base + blocks::WIDTH - block.foreign.leading_zeros() as usize;
            if block.foreign == 0 {
                walk_to = base;
            }
            if start > base {
                continue;
            }
        }
        let limit = floor(text, start.saturating_add(cap));
        let end = rule.piece_end(classes, &bytes[..limit], start);
        if end == limit && limit < bytes.len() {
            // Rare. 16 more bytes are enough to see whether the match would have continued.
            let farther = floor(text, limit + 16);
            cut_off += u64::from(rule.piece_end(classes, &bytes[..farther], start) > end);
        }
        emit.piece(start, end);
        start = end;
    }
    cut_off
}

fn tile_whole<S: Sink>(text: &str, cap: usize, mut emit: S) -> u64 {
    let mut cut_off = 0;
    let mut start = 0;
    while start < text.len() {
        let end = floor(text, start.saturating_add(cap));
        cut_off += u64::from(end < text.len());
        emit.piece(start, end);
        start = end;
    }
    cut_off
}

/// The last character boundary at or before `at` and the end.
#[inline]
pub(crate) fn floor(text: &str, at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    let mut at = at;
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
