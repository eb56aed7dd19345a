//! Normalizing the characters of a text: line ends, control characters, NFC.

use super::characters::{self, ASCII, Characters, DECOMPOSES, MAY_COMPOSE, NOT_NFC, REPLACEABLE, UNSETTLED};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::{canonical_combining_class, compose as composed_pair};

/// The bytes that may begin a replaceable character: the ASCII controls, and the lead bytes of U+0080..U+009F, of
/// U+2028 and its neighbors, of U+FDD0 to U+FFFF, and of everything above.
const CANDIDATES: [bool; 256] = {
    let mut candidates = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        candidates[byte] = ASCII[byte] & REPLACEABLE != 0 || matches!(byte, 0xC2 | 0xE2 | 0xEF..);
        byte += 1;
    }
    candidates
};

/// Line ends become `\n`; controls, U+FEFF and noncharacters are removed. Returns whether any were removed: their
/// neighbors, now adjacent, may compose.
pub fn replace_characters(text: &str, out: &mut String) -> bool {
    out.clear();
    out.reserve(text.len());
    let bytes = text.as_bytes();
    let characters = Characters::get();
    let mut removed = false;
    let mut copied = 0;
    let mut at = 0;
    while at < bytes.len() {
        if !CANDIDATES[bytes[at] as usize] {
            at += 1;
            continue;
        }
        let (flags, width) = characters.flags(bytes, at);
        if flags & REPLACEABLE != 0 {
            out.push_str(&text[copied..at]);
            copied = at + width;
            match &text[at..copied] {
                "\r" if bytes.get(copied) == Some(&b'\n') => {}
                "\r" | "\u{85}" | "\u{2028}" | "\u{2029}" => out.push('\n'),
                _ => removed = true,
            }
        }
        at += width;
    }
    out.push_str(&text[copied..]);
    removed
}

/// NFC. Only a run of unsettled characters can change, together with the character right before it; the rest is copied.
pub fn compose(text: &str, out: &mut String) {
    out.clear();
    out.reserve(text.len());
    let bytes = text.as_bytes();
    let characters = Characters::get();
    let mut copied = 0;
    let mut at = 0;
    while at < bytes.len() {
        let (flags, width) = characters.flags(bytes, at);
        if flags & UNSETTLED == 0 {
            at += width;
            continue;
        }
        let stretch = Stretch::at(text, at, characters);
        if !stretch.is_composed(text) {
            let start = at - text[..at].chars().next_back().map_or(0, char::len_utf8);
            out.push_str(&text[copied..start]);
            out.extend(text[start..stretch.end].nfc());
            copied = stretch.end;
        }
        at = stretch.end;
    }
    out.push_str(&text[copied..]);
}

/// Whether NFC changes the run of unsettled characters that begins at `at`, and where the run ends.
pub fn changes_at(text: &str, at: usize) -> (bool, usize) {
    let stretch = Stretch::at(text, at, Characters::get());
    (!stretch.is_composed(text), stretch.end)
}

/// A run of unsettled characters.
struct Stretch {
    start: usize,
    end: usize,
    /// The flags of all of them.
    all: u8,
    several: bool,
    /// Their combining classes never decrease, except to 0.
    ordered: bool,
}

impl Stretch {
    #[inline]
    fn at(text: &str, start: usize, characters: &Characters) -> Stretch {
        let (all, width) = characters.flags(text.as_bytes(), start);
        let mut stretch = Stretch { start, end: start + width, all, several: false, ordered: true };
        stretch.extend(text, characters);
        stretch
    }

    #[inline]
    fn extend(&mut self, text: &str, characters: &Characters) {
        let bytes = text.as_bytes();
        let class = |at: usize| text[at..].chars().next().map_or(0, canonical_combining_class);
        let mut last = None;
        while self.end < bytes.len() && bytes[self.end] >= 0x80 {
            let (flags, width) = characters.flags(bytes, self.end);
            if flags & UNSETTLED == 0 {
                break;
            }
            let before = last.unwrap_or_else(|| class(self.start));
            let this = class(self.end);
            self.ordered &= this == 0 || before <= this;
            last = Some(this);
            self.several = true;
            self.all |= flags;
            self.end += width;
        }
    }

    /// The cheap checks come first: in Bengali or Tamil every tenth character may compose in principle, but hardly any
    /// does.
    #[inline]
    fn is_composed(&self, text: &str) -> bool {
        if self.all & NOT_NFC != 0 || !self.ordered {
            return false;
        }
        if self.all & MAY_COMPOSE == 0 {
            return true;
        }
        let Some(before) = text[..self.start].chars().next_back() else {
            let run = &text[..self.end];
            return run.nfc().eq(run.chars());
        };
        // One character after one that does not decompose: either the two compose or nothing changes. If that one
        // decomposes, a mark may have to go between its parts (ê and a dot below make ệ, although no pair of the three
        // composes).
        if !self.several && (self.all | characters::flags(before)) & DECOMPOSES == 0 {
            let run = text[self.start..].chars().next();
            return run.is_none_or(|run| composed_pair(before, run).is_none());
        }
        let stretch = &text[self.start - before.len_utf8()..self.end];
        stretch.nfc().eq(stretch.chars())
    }
}
