//! GPT-2: `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

use super::Rule;
use super::blocks::Block;
use crate::unicode::{Classes, LETTER, NUMBER, OTHER, SPACE};

#[derive(Clone, Copy)]
pub(super) struct Gpt2;

impl Rule for Gpt2 {
    const CUTS_AFTER_NEWLINES: bool = false;

    #[inline]
    fn piece_end(self, classes: &Classes, text: &[u8], start: usize) -> usize {
        let first = text[start];
        if first == b'\''
            && let Some(end) = contraction(text, start)
        {
            return end;
        }
        let body = start + usize::from(first == b' ');
        let (flags, width) = classes.decode(text, body);
        for class in [LETTER, NUMBER, OTHER] {
            if flags & class != 0 {
                return classes.skip(text, body + width, class);
            }
        }
        white_space(classes, text, start)
    }

    /// A piece starts where the class changes, except right after a space, which starts the piece instead; and at the
    /// last white space before anything else, whether or not the two are joined.
    #[inline]
    fn starts(self, block: &Block, text: &[u8]) -> u64 {
        let Block { letters, digits, white, spaces, others, .. } = *block;
        let change = |class: u64| class & !(class << 1);
        let bodies = change(letters) | change(digits) | change(others);
        let starts = bodies & !(spaces << 1) | change(white) | white & block.followed_by(!white);
        if starts & block.apostrophes == 0 {
            return starts;
        }
        block.with_contractions(starts, starts & block.apostrophes, |at| contraction(text, at))
    }
}

/// The end of the contraction with its apostrophe at `start`.
#[inline]
fn contraction(text: &[u8], start: usize) -> Option<usize> {
    match text.get(start + 1..)? {
        [b's' | b'd' | b'm' | b't', ..] => Some(start + 2),
        [b'l', b'l', ..] | [b'v' | b'r', b'e', ..] => Some(start + 3),
        _ => None,
    }
}

/// `\s+(?!\S)|\s+`: the whole run at the end of the text, else all but its last character, which is left to what
/// follows; a single one is a piece.
#[inline]
fn white_space(classes: &Classes, text: &[u8], start: usize) -> usize {
    let (mut last, mut end) = (start, start);
    loop {
        let (flags, width) = classes.decode(text, end);
        if width == 0 {
            return end;
        }
        if flags & SPACE == 0 {
            return if last == start { end } else { last };
        }
        last = end;
        end += width;
    }
}
