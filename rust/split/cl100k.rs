//! cl100k, Llama 3 and Qwen 2, which differ only in two places.
//!
//! Llama 3 is `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//! ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`; in Qwen 2 each digit is a piece; cl100k, as
//! tiktoken publishes it now, has `\s++$` before `\s*[\r\n]+`, so that white space at the end of
//! the text is one piece even if it has a line end (`a\n ` is `a`, `\n ` and not `\n`, ` `).

use super::Rule;
use super::blocks::Block;
use crate::unicode::{Classes, LETTER, NEWLINE, NUMBER, OTHER, SPACE};

#[derive(Clone, Copy)]
pub(super) struct Cl100k<const DIGITS: usize, const WHOLE_TAIL: bool>;

impl<const DIGITS: usize, const WHOLE_TAIL: bool> Rule for Cl100k<DIGITS, WHOLE_TAIL> {
    const CUTS_AFTER_NEWLINES: bool = !WHOLE_TAIL;

    #[inline]
    fn piece_end(self, classes: &Classes, text: &[u8], start: usize) -> usize {
        let (flags, width) = classes.decode(text, start);
        let body = start + width;
        if flags & LETTER != 0 {
            return classes.skip(text, body, LETTER);
        }
        if flags & NUMBER != 0 {
            return numbers(classes, text, body, DIGITS - 1);
        }
        if flags & NEWLINE == 0 {
            if text[start] == b'\''
                && let Some(end) = contraction(text, start)
            {
                return end;
            }
            let (next, next_width) = classes.decode(text, body);
            if next & LETTER != 0 {
                return classes.skip(text, body + next_width, LETTER);
            }
            if flags & OTHER != 0 || text[start] == b' ' && next & OTHER != 0 {
                let end = classes.skip(text, body, OTHER);
                return classes.skip(text, end, NEWLINE);
            }
        }
        white_space(classes, text, start, WHOLE_TAIL)
    }

    #[inline]
    fn starts(self, block: &Block, text: &[u8]) -> u64 {
        let Block { letters, white, spaces, newlines, others, .. } = *block;
        let change = |class: u64| class & !(class << 1);

        // Line ends after punctuation belong to it: adding the first of a run carries through the whole run and clears
        // it.
        let after_others = newlines & others << 1;
        let tail = newlines & !newlines.wrapping_add(after_others);
        let (white, newlines) = (white & !tail, newlines & !tail);

        let bodies = change(others) & !(spaces << 1);
        let horizontal = white & !newlines;
        // One character that is not a line end joins the letters after it, if it starts a piece.
        let words = change(letters) & !((horizontal | bodies) << 1);
        let starts = words
            | bodies
            | block.digit_groups(DIGITS)
            | change(white)
            | block.after_last_newline(white, newlines)
            | horizontal & block.followed_by(!block.white);
        if bodies & block.apostrophes == 0 {
            return starts;
        }
        block.with_contractions(starts, bodies & block.apostrophes, |at| contraction(text, at))
    }
}

/// The end of the contraction with its apostrophe at `start`, ignoring case. U+017F, the long s, is an `s` when case is
/// ignored; it is the only character outside ASCII that folds to one of these letters.
#[inline]
pub(super) fn contraction(text: &[u8], start: usize) -> Option<usize> {
    let after = text.get(start + 1..)?;
    match after {
        [b's' | b'S' | b'd' | b'D' | b'm' | b'M' | b't' | b'T', ..] => Some(start + 2),
        [b'l' | b'L', b'l' | b'L', ..] | [b'v' | b'V' | b'r' | b'R', b'e' | b'E', ..] => Some(start + 3),
        [0xC5, 0xBF, ..] => Some(start + 3),
        _ => None,
    }
}

/// The end of a run of at most `more` numbers that begins at `at`.
#[inline]
pub(super) fn numbers(classes: &Classes, text: &[u8], mut at: usize, more: usize) -> usize {
    for _ in 0..more {
        let (flags, width) = classes.decode(text, at);
        if flags & NUMBER == 0 {
            break;
        }
        at += width;
    }
    at
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`: up to the last line end of the run if it has one, else as in GPT-2; with `whole_tail`,
/// the whole run at the end of the text.
#[inline]
pub(super) fn white_space(classes: &Classes, text: &[u8], start: usize, whole_tail: bool) -> usize {
    let (mut last, mut end, mut newline) = (start, start, None);
    loop {
        let (flags, width) = classes.decode(text, end);
        if flags & SPACE == 0 {
            let at_end = width == 0;
            return match newline {
                _ if whole_tail && at_end => end,
                Some(newline) => newline,
                None if at_end || last == start => end,
                None => last,
            };
        }
        last = end;
        end += width;
        if flags & NEWLINE != 0 {
            newline = Some(end);
        }
    }
}
