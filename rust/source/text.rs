//! Text, cut into documents and, if a document is larger than a block, into parts of documents.
//!
//! Only unchanged bytes of the stream are carried from block to block, so the position of a reader is one offset and
//! two numbers. Everything here happens under the lane's lock: reading, validating UTF-8 and searching for the last
//! place to cut run at memory speed, much faster than what the workers do with the text.

use aho_corasick::{AhoCorasick, Input};

use super::block::{Block, Fragment};
use super::scan::find_byte;
use super::tally::add;
use super::utf8::{decode, raw_prefix};
use super::window::Window;
use super::{Documents, Shared};
use crate::error::{Error, Result};
use crate::split::floor;

/// A document without any place to cut may grow the buffer to this many blocks, unless `longest_part` says how far; then
/// it is cut anyway.
const GROWTH: usize = 8;

/// What ends a document.
pub(super) enum Boundary {
    /// The end of the stream.
    End,
    /// "\n" or "\r\n".
    Line,
    Separator {
        separator: String,
        finder: AhoCorasick,
    },
}

impl Boundary {
    pub fn new(documents: &Documents) -> Result<Boundary> {
        Ok(match documents {
            Documents::File => Boundary::End,
            Documents::Line => Boundary::Line,
            Documents::Separator(separator) if separator.is_empty() => {
                return Err(Error::Invalid(
                    "the document separator is empty: it needs at least one character".into(),
                ));
            }
            Documents::Separator(separator) => Boundary::Separator {
                separator: separator.clone(),
                finder: AhoCorasick::new([separator])
                    .map_err(|error| Error::Invalid(format!("document separator: {error}")))?,
            },
        })
    }

    /// The first boundary in `text[from..]`: where the document ends and where the next begins.
    fn find(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        match self {
            Boundary::End => None,
            Boundary::Line => {
                let newline = find_byte(text.as_bytes(), from, b'\n')?;
                let return_before = newline > from && text.as_bytes()[newline - 1] == b'\r';
                Some((newline - usize::from(return_before), newline + 1))
            }
            Boundary::Separator { finder, .. } => {
                let found = finder.find(Input::new(text).range(from..))?;
                Some((found.start(), found.end()))
            }
        }
    }

    /// How many bytes at the end of `text` may begin a boundary.
    fn held_back(&self, text: &str) -> usize {
        match self {
            Boundary::End => 0,
            Boundary::Line => usize::from(text.ends_with('\r')),
            Boundary::Separator { separator, .. } => (1..separator.len())
                .rev()
                .find(|&length| text.as_bytes().ends_with(&separator.as_bytes()[..length]))
                .unwrap_or(0),
        }
    }

    /// A window must have space for a boundary and some text before it.
    fn least_window(&self) -> usize {
        match self {
            Boundary::Separator { separator, .. } => 4 * separator.len(),
            _ => 4,
        }
    }
}

/// Where a reader is in its documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DocumentPlace {
    pub document: u64,
    /// A part of `document` was returned already.
    pub continues: bool,
}

pub(super) struct TextReader {
    pub window: Window,
    pub place: DocumentPlace,
    /// How much to process; less than a block after one with too many fragments.
    want: usize,
}

/// One block's worth of a stream.
struct Cut {
    /// Bytes of text that are finished.
    end: usize,
    documents: u64,
    text_bytes: u64,
    finished: bool,
    /// There were too many fragments for all of the text.
    crowded: bool,
}

impl TextReader {
    pub fn new(window: Window, place: DocumentPlace, shared: &Shared) -> TextReader {
        TextReader { window, place, want: shared.block_bytes }
    }

    /// Fills `block` with the next text. True when that was the last.
    pub fn next(
        &mut self,
        shared: &Shared,
        boundary: &Boundary,
        file: u64,
        block: &mut Block,
    ) -> Result<bool> {
        let least = boundary.least_window();
        let longest = shared.options.longest_part.unwrap_or(GROWTH * shared.block_bytes).max(least);
        let mut want = self.want.max(least);
        loop {
            self.window.fill(want)?;
            let there = self.window.bytes();
            let look = &there[..there.len().min(want)];
            let decoded = decode(look, self.window.ended() && look.len() == there.len(), want);
            let text = decoded.text.as_ref();
            let at_end = self.window.ended() && decoded.raw == there.len();

            let force = (want >= longest).then_some(longest);
            block.fragments.clear();
            let Some(cut) = self.place.cut(shared, boundary, file, text, at_end, force, block) else {
                want = (2 * want).min(longest);
                continue;
            };
            let mut invalid = 0;
            match decoded.text {
                std::borrow::Cow::Borrowed(_) => {
                    let mut bytes = std::mem::take(&mut block.text).into_bytes();
                    self.window.move_to(cut.end, &mut bytes);
                    debug_assert!(std::str::from_utf8(&bytes).is_ok());
                    // SAFETY: `decode` has validated these bytes above, up to a character boundary.
                    block.text = unsafe { String::from_utf8_unchecked(bytes) };
                }
                std::borrow::Cow::Owned(text) => {
                    let raw;
                    (raw, invalid) = raw_prefix(&look[..decoded.raw], cut.end);
                    block.text.clear();
                    block.text.push_str(&text[..cut.end]);
                    self.window.consume(raw);
                }
            }
            self.want = if cut.crowded { (2 * cut.end).min(shared.block_bytes) } else { shared.block_bytes };
            add(&shared.tally.invalid_utf8, invalid);
            add(&shared.tally.documents, cut.documents);
            add(&shared.tally.text_bytes, cut.text_bytes);
            return Ok(cut.finished);
        }
    }
}

impl DocumentPlace {
    /// Finds the documents in `text`, which begins at this place. `None` if nothing can be returned yet; with `force`,
    /// at most that many bytes of it are, wherever that cuts.
    #[allow(clippy::too_many_arguments)] // one call, and a struct would only rename the arguments
    fn cut(
        &mut self,
        shared: &Shared,
        boundary: &Boundary,
        file: u64,
        text: &str,
        at_end: bool,
        force: Option<usize>,
        block: &mut Block,
    ) -> Option<Cut> {
        let mut cut = Cut { end: 0, documents: 0, text_bytes: 0, finished: false, crowded: false };
        let mut add_fragment = |place: &mut DocumentPlace, end: usize, ends_document: bool, cut: &mut Cut| {
            if end > cut.end || (place.continues && ends_document) {
                block.fragments.push(Fragment {
                    start: cut.end,
                    end,
                    file,
                    document: place.document,
                    ends_document,
                });
            }
            cut.text_bytes += (end - cut.end) as u64;
            cut.documents += u64::from(ends_document);
            place.document += u64::from(ends_document);
            place.continues = !ends_document;
            cut.end = end;
            block.fragments.len() >= shared.max_fragments
        };
        while let Some((end, next)) = boundary.find(text, cut.end) {
            let full = add_fragment(self, end, true, &mut cut);
            cut.end = next;
            if full {
                cut.crowded = true;
                return Some(cut);
            }
        }
        if at_end {
            // The text after the last separator is a document only if it is not empty; a file always is one.
            let is_document = cut.end < text.len() || self.continues || matches!(boundary, Boundary::End);
            if is_document {
                add_fragment(self, text.len(), true, &mut cut);
            }
            cut.finished = true;
        } else if cut.end == 0 {
            let whole = text.len() - boundary.held_back(text);
            let stable = (shared.options.stable_prefix)(&text[..whole]);
            assert!(text.is_char_boundary(stable) && stable <= whole);
            let end = match force {
                Some(longest) if stable == 0 => floor(text, whole.min(longest)),
                _ => stable,
            };
            if end == 0 {
                return None;
            }
            add_fragment(self, end, false, &mut cut);
        }
        Some(cut)
    }
}
