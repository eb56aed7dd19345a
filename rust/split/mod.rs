//! Cuts text into pieces, the units that BPE never merges across.
//!
//! The named patterns are written by hand and give the pieces of their reference regex on every
//! valid text; any other regex runs on fancy-regex, fifty to a hundred times slower. What makes them fast
//! is in `blocks.rs`; what lets a long text be cut into blocks without changing a piece is in
//! `stable.rs`.
//!
//! **The cap.** With `cap` below `usize::MAX` a match sees no more than `cap` bytes of text from
//! the start of its piece, as if the text ended there. A match that would be longer is cut off at
//! `cap`, back to the start of a character, and the next begins afresh. So a piece depends on
//! nothing farther away than `cap` bytes, a stream of any shape can be cut with bounded memory, and
//! the work is linear: a match that gives characters back leaves none of them to be scanned more
//! than twice.

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
use crate::unicode::Classes;

/// How to cut text into pieces. Clone it for every thread: a custom regex shares its scratch
/// memory between the users of one copy.
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

/// Receives pieces. Any closure is one; a type of its own can be inlined into the splitter's loop, which
/// closures are not when they grow.
pub trait Sink {
    fn piece(&mut self, start: usize, end: usize);
}

impl<F: FnMut(usize, usize)> Sink for F {
    #[inline(always)]
    fn piece(&mut self, start: usize, end: usize) {
        self(start, end);
    }
}

/// One named pattern, twice: a character at a time, and for 64 ASCII bytes at once.
trait Rule: Copy {
    /// Whether `\s*[\r\n]+` is a piece even where all that follows it is white space.
    const CUTS_BEHIND_NEWLINES: bool;

    /// Where the piece that begins at `start` ends, where nothing follows `text`.
    fn piece_end(self, classes: &Classes, text: &[u8], start: usize) -> usize;

    /// The piece starts in `block`, which begins with one; see `blocks.rs` for which may be left
    /// out. `text` is what the block was taken from.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    fn starts(self, block: &Block, text: &[u8]) -> u64;
}

const LLAMA3: Cl100k<3, false> = Cl100k;
const QWEN2: Cl100k<1, false> = Cl100k;
const CL100K: Cl100k<3, true> = Cl100k;

/// No character is longer, so every piece can hold one.
const SMALLEST_CAP: usize = 4;

impl Pattern {
    /// `gpt2`, `cl100k`, `o200k`, `llama3`, `qwen2` or `whole`.
    pub fn named(name: &str) -> Option<Pattern> {
        Some(match name {
            "gpt2" => Pattern::Gpt2,
            "cl100k" => Pattern::Cl100k,
            "o200k" => Pattern::O200k,
            "llama3" => Pattern::Llama3,
            "qwen2" => Pattern::Qwen2,
            "whole" => Pattern::Whole,
            _ => return None,
        })
    }

    /// The named pattern that `regex` is a known spelling of. tiktoken's cl100k is not Llama 3's:
    /// see `cl100k.rs`.
    pub fn recognise(regex: &str) -> Option<Pattern> {
        spellings::all().find_map(|(pattern, spelling)| (spelling == regex).then_some(pattern))
    }

    /// Any regex, in fancy-regex's syntax. As with Hugging Face's `Split` in mode `Isolated`, the
    /// text between two matches is a piece as well, and an empty match cuts it.
    pub fn custom(regex: &str) -> Result<Pattern, String> {
        Ok(Pattern::Custom(Box::new(Custom::new(regex)?)))
    }

    /// The reference regex, in a spelling that means the same to fancy-regex, Python's `regex` and
    /// Oniguruma (which is Hugging Face's).
    pub fn regex(&self) -> &str {
        match self {
            Pattern::Gpt2 => spellings::GPT2,
            Pattern::Cl100k => spellings::CL100K,
            Pattern::O200k => spellings::O200K,
            Pattern::Llama3 => spellings::LLAMA3,
            Pattern::Qwen2 => spellings::QWEN2,
            Pattern::Whole => spellings::WHOLE,
            Pattern::Custom(custom) => custom.regex(),
        }
    }

    /// How often a custom regex has given up (it backtracked too much) in this pattern and all its
    /// clones. The text there, up to 4 KB each time, became one piece. 0 for the named patterns.
    pub fn failures(&self) -> u64 {
        match self {
            Pattern::Custom(custom) => custom.failures(),
            _ => 0,
        }
    }

    /// Tiles `text` with pieces, in order: `emit(start, end)` in bytes, none empty.
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

    /// The last place in `text` that is a boundary whatever stands around it: behind a letter, before
    /// something that no pattern joins to one. `None` if there is none near the end, or for a custom regex.
    pub fn word_boundary(&self, text: &str) -> Option<usize> {
        match self {
            Pattern::Whole | Pattern::Custom(_) => None,
            _ => stable::behind_a_word(text),
        }
    }

    /// An `n` such that `text[..n]` alone has the pieces it has at the start of any longer text
    /// that begins with `text`; 0 if there is none. `text` itself begins at a piece boundary.
    ///
    /// For the named patterns this is certain. With a cap, less than three times `cap` bytes
    /// are left over; without, a text of one endless run has no stable prefix. For a custom regex
    /// it holds as long as the regex looks at no more than 4 KB behind or before a match.
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
    // A block that is not all ASCII is walked through to its last foreign character first.
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
            // Rare. 16 more bytes are enough to see whether the match would have gone on.
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

/// The last character boundary that is not behind `at`, nor behind the end.
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
