//! Where a text can be cut before all of it is known, without changing a piece on either side.
//!
//! Two things must hold at a cut: the pieces before it do not depend on what follows the text so far, and they are the
//! same if the text ends at the cut.

use super::custom::Custom;
use super::{Rule, floor, tile, tile_whole};
use crate::unicode::{Classes, LETTER, MARK, SPACE};

/// How far back to search for a cut that needs no context.
pub const LOOK_BACK: usize = 64 * 1024;

/// A custom regex is assumed not to look further ahead than this.
const CUSTOM_MARGIN: usize = 4096;

pub(super) fn prefix<R: Rule>(rule: R, text: &str, cap: usize) -> usize {
    after_a_word(text).unwrap_or_else(|| by_scanning(rule, text, cap))
}

/// The last place between a letter and a character that no pattern joins to a letter before it. Patterns join only
/// letters, marks (o200k) and apostrophes (o200k's contractions).
pub(super) fn after_a_word(text: &str) -> Option<usize> {
    let classes = Classes::get();
    let from = floor(text, text.len().saturating_sub(LOOK_BACK));
    let mut next_ends_word = false;
    for (at, character) in text[from..].char_indices().rev() {
        let flags = classes.of(character as u32);
        if next_ends_word && flags & LETTER != 0 {
            return Some(from + at + character.len_utf8());
        }
        next_ends_word = flags & (LETTER | MARK) == 0 && character != '\'';
    }
    None
}

/// Splits the whole text and returns the end of the last piece that is certain.
pub(super) fn by_scanning<R: Rule>(rule: R, text: &str, cap: usize) -> usize {
    let run = last_run(text);
    let bytes = text.as_bytes();
    let classes = Classes::get();
    let mut stable = 0;
    tile(rule, text, cap, |start: usize, end: usize| {
        let whole_window = start.saturating_add(cap) <= text.len();
        // A match never looks further than its last run of white space or of letters and marks (which a single
        // character may precede), or three bytes for a contraction.
        let run_is_over = start + 4 < run && end + 4 <= text.len();
        if !whole_window && !run_is_over {
            return;
        }
        // If the text ended with white space before the cut, the white space piece before that would be longer
        // (`\s+(?!\S)`). Not after a line end, for the rules that cut there; nor after a piece cut off by the cap:
        // those before it see the same text as before.
        let has_other = || classes.skip(&bytes[..end], start, SPACE) < end;
        let at_newline = R::CUTS_AFTER_NEWLINES && matches!(bytes[end - 1], b'\r' | b'\n');
        let at_cap = || whole_window && end == floor(text, start.saturating_add(cap));
        if at_newline || has_other() || at_cap() {
            stable = end;
        }
    });
    stable
}

/// Where the run of white space, or of letters and marks, at the end of `text` begins.
fn last_run(text: &str) -> usize {
    let classes = Classes::get();
    let mut run = text.len();
    let mut kind = SPACE | LETTER | MARK;
    for (at, character) in text.char_indices().rev() {
        let flags = classes.of(character as u32);
        if flags & kind == 0 {
            break;
        }
        kind = if flags & SPACE != 0 { SPACE } else { LETTER | MARK };
        run = at;
    }
    run
}

pub(super) fn prefix_whole(text: &str, cap: usize) -> usize {
    let mut stable = 0;
    tile_whole(text, cap, |start: usize, end: usize| {
        if start.saturating_add(cap) <= text.len() {
            stable = end;
        }
    });
    stable
}

/// Tries a few cuts, a margin before the end, and returns the last that changes nothing: the pieces before it are the
/// same if the text ends there, and those after it if it begins there.
pub(super) fn prefix_custom(custom: &Custom, text: &str, cap: usize) -> usize {
    const CUTS_TRIED: usize = 32;

    if text.len() < CUSTOM_MARGIN {
        return 0;
    }
    let mut ends = Vec::new();
    custom.tile(text, 0, cap, |_, end| ends.push(end));
    let candidates = ends.partition_point(|&end| end + CUSTOM_MARGIN <= text.len());
    for cut in (0..candidates).rev().take(CUTS_TRIED) {
        let margin = ends[cut].saturating_sub(CUSTOM_MARGIN);
        let before = ends[..cut].partition_point(|&end| end <= margin);
        let from = before.checked_sub(1).map_or(0, |index| ends[index]);
        let mut expected = ends[before..=cut].iter();
        let mut same = true;
        custom.tile(&text[..ends[cut]], from, cap, |_, end| {
            same &= expected.next() == Some(&end);
        });
        // And those after it if the text begins there: a regex may look behind.
        let mut expected = ends[cut + 1..].iter();
        custom.tile(&text[ends[cut]..], 0, cap, |_, end| {
            same &= expected.next() == Some(&(ends[cut] + end));
        });
        if same {
            return ends[cut];
        }
    }
    0
}
