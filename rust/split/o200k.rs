//! o200k: words are cut where lower case is followed by upper case, and include their contraction.
//!
//! `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|…)?`, the
//! same with `]+` and `]*` swapped, `\p{N}{1,3}`, ` ?[^\s\p{L}\p{N}]+[\r\n/]*`, then white space
//! as in Llama 3.

use super::Rule;
use super::blocks::Block;
use super::cl100k::{contraction, numbers, white_space};
use crate::unicode::{CASELESS, Classes, LETTER, LOWER, MARK, NEWLINE, NUMBER, OTHER, UPPER};

const WORD: u8 = LETTER | MARK;
/// Both halves of a word may have these.
const EITHER: u8 = CASELESS | MARK;

#[derive(Clone, Copy)]
pub(super) struct O200k;

impl Rule for O200k {
    const CUTS_AFTER_NEWLINES: bool = true;

    #[inline]
    fn piece_end(self, classes: &Classes, text: &[u8], start: usize) -> usize {
        let (flags, width) = classes.decode(text, start);
        let body = start + width;
        if flags & LETTER != 0 {
            return with_contraction(text, word(classes, text, start));
        }
        if flags & NUMBER != 0 {
            return numbers(classes, text, body, 2);
        }
        if flags & NEWLINE == 0 {
            let (next, _) = classes.decode(text, body);
            if flags & MARK != 0 {
                // A mark is tried as the leading character first. If no lower half follows, it is itself the shortest
                // lower half: the second alternative is never tried.
                let end = match halves(classes, text, body) {
                    (Some(end), _) => end,
                    (None, _) => body,
                };
                return with_contraction(text, end);
            }
            if next & WORD != 0 {
                return with_contraction(text, word(classes, text, body));
            }
            if flags & OTHER != 0 || text[start] == b' ' && next & OTHER != 0 {
                let mut end = classes.skip(text, body, OTHER);
                while matches!(text.get(end), Some(b'\r' | b'\n' | b'/')) {
                    end += 1;
                }
                return end;
            }
        }
        white_space(classes, text, start, false)
    }

    #[inline]
    fn starts(self, block: &Block, text: &[u8]) -> u64 {
        let Block { letters, white, spaces, newlines, others, .. } = *block;
        let change = |class: u64| class & !(class << 1);

        let tail = block.tail_of_others();
        let (white, newlines) = (white & !tail, newlines & !tail);
        let others = others & !tail;

        let bodies = change(others) & !(spaces << 1);
        let horizontal = white & !newlines;
        let upper = block.upper;
        let words = change(letters) & !((horizontal | bodies) << 1) | upper & (letters & !upper) << 1;
        let starts = words
            | bodies
            | block.digit_groups(3)
            | change(white)
            | block.after_last_newline(white, newlines)
            | horizontal & block.followed_by(!block.white);
        let after_letters = block.apostrophes & letters << 1;
        if after_letters == 0 {
            return starts;
        }
        block.with_joined_contractions(starts, after_letters, |at| contraction(text, at))
    }
}

#[inline]
fn with_contraction(text: &[u8], end: usize) -> usize {
    match text.get(end) {
        Some(b'\'') => contraction(text, end).unwrap_or(end),
        _ => end,
    }
}

/// The end of the word at `start`, which is a letter or mark.
#[inline]
fn word(classes: &Classes, text: &[u8], start: usize) -> usize {
    match halves(classes, text, start) {
        (Some(end), _) => end,
        (None, upper_end) => upper_end,
    }
}

/// Matches the upper half and the lower half at `at`: where the lower half ends, if there can be one, and where the
/// longest upper half ends.
///
/// If no lower case follows, the regex backtracks in the upper half until the lower half can match, which is at the
/// last character that either half may have: `A中B` ends after `中`.
#[inline]
fn halves(classes: &Classes, text: &[u8], at: usize) -> (Option<usize>, usize) {
    let mut end = at;
    let mut last_either = None;
    loop {
        let (flags, width) = classes.decode(text, end);
        if flags & LOWER != 0 {
            return (Some(classes.skip(text, end + width, LOWER | EITHER)), end);
        }
        if flags & (UPPER | EITHER) == 0 {
            return (last_either, end);
        }
        end += width;
        if flags & EITHER != 0 {
            last_either = Some(end);
        }
    }
}
