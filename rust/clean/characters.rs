//! Everything cleaning needs to know about a character, as one byte of flags.
//!
//! One table has all flags, so that text that is not ASCII costs one lookup per character. It is built, in a few
//! milliseconds, when the first such text is cleaned, and takes about 60 KB.

use crate::unicode::{self, Classes, Table};
use std::sync::OnceLock;
use unicode_normalization::char::{canonical_combining_class, decompose_canonical};
use unicode_normalization::{IsNormalized, is_nfc_quick};

/// Not a letter, mark, number or white space.
pub const SYMBOL: u8 = 1;
/// White_Space.
pub const SPACE: u8 = 2;
/// Zs and tab: white space that does not end a line. These are SPACE as well.
pub const BLANK: u8 = 4;
/// Normalizing turns it into `\n` or removes it.
pub const REPLACEABLE: u8 = 8;
/// NFC_Quick_Check=Maybe: it may compose with the characters before it.
pub const MAY_COMPOSE: u8 = 16;
/// NFC_Quick_Check=No: it never occurs in NFC text.
pub const NOT_NFC: u8 = 32;
/// A combining class other than 0: it may have to swap places with its neighbors.
pub const REORDERS: u8 = 64;
/// It has a canonical decomposition.
pub const DECOMPOSES: u8 = 128;

/// The characters that NFC may change. Any other starts a new run: nothing composes or moves across its start.
pub const UNSETTLED: u8 = MAY_COMPOSE | NOT_NFC | REORDERS;

/// Flags of the ASCII characters; 0 for bytes from 0x80 on.
pub const ASCII: [u8; 256] = ascii_flags();

const fn ascii_flags() -> [u8; 256] {
    let mut flags = [0; 256];
    let mut byte = 0;
    while byte < 128 {
        flags[byte] = match byte as u8 {
            b'\t' | b' ' => SPACE | BLANK,
            b'\n' => SPACE,
            0x0B..=0x0D => SPACE | REPLACEABLE,
            0..=0x1F | 0x7F => SYMBOL | REPLACEABLE,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => 0,
            _ => SYMBOL,
        };
        byte += 1;
    }
    flags
}

/// U+FDD0..U+FDEF and the last two code points of every plane.
fn is_noncharacter(code_point: u32) -> bool {
    matches!(code_point, 0xFDD0..=0xFDEF) || code_point & 0xFFFE == 0xFFFE
}

/// Saves nine tenths of the code points the three lookups that make up most of the time to build the table.
fn may_matter_to_nfc(code_point: u32) -> bool {
    code_point < 0x3_0000
}

/// The flags of any character.
#[inline]
pub fn flags(character: char) -> u8 {
    match character.is_ascii() {
        true => ASCII[character as usize],
        false => Characters::get().of(character as u32),
    }
}

/// The flags of every character.
pub struct Characters(Table);

impl Characters {
    pub fn get() -> &'static Characters {
        static CHARACTERS: OnceLock<Characters> = OnceLock::new();
        CHARACTERS.get_or_init(Characters::build)
    }

    #[inline]
    pub fn of(&self, code_point: u32) -> u8 {
        self.0.of(code_point)
    }

    /// Code point, flags and width of the character that begins at `at`, of two bytes or more.
    #[inline]
    pub fn decode(&self, text: &[u8], at: usize) -> (u32, u8, usize) {
        let rest = &text[at..];
        let bytes = match rest.first_chunk() {
            Some(&bytes) => bytes,
            None => std::array::from_fn(|place| rest.get(place).copied().unwrap_or(0)),
        };
        let [lead, second, third, fourth] = bytes.map(u32::from);
        let [second, third, fourth] = [second & 0x3F, third & 0x3F, fourth & 0x3F];
        let (code_point, width) = if lead < 0xE0 {
            ((lead & 0x1F) << 6 | second, 2)
        } else if lead < 0xF0 {
            ((lead & 0x0F) << 12 | second << 6 | third, 3)
        } else {
            ((lead & 0x07) << 18 | second << 12 | third << 6 | fourth, 4)
        };
        (code_point, self.of(code_point), width)
    }

    /// Flags and width of any character.
    #[inline]
    pub fn flags(&self, text: &[u8], at: usize) -> (u8, usize) {
        let lead = text[at];
        if lead < 0x80 {
            return (ASCII[lead as usize], 1);
        }
        let (_, flags, width) = self.decode(text, at);
        (flags, width)
    }

    fn build() -> Characters {
        let classes = Classes::get();
        let flags = |character| flags_of(character, classes);
        Characters(Table::build(|code_point| char::from_u32(code_point).map_or(0, flags)))
    }
}

fn flags_of(character: char, classes: &Classes) -> u8 {
    if character.is_ascii() {
        return ASCII[character as usize];
    }
    let code_point = character as u32;
    let mut flags = 0;
    let class = classes.of(code_point);
    if class & unicode::REST != 0 {
        flags |= SYMBOL;
    }
    if class & unicode::SPACE != 0 {
        flags |= SPACE;
    }
    if matches!(code_point, 0x80..=0x9F | 0x2028 | 0x2029 | 0xFEFF) || is_noncharacter(code_point) {
        flags |= REPLACEABLE;
    } else if flags & SPACE != 0 {
        flags |= BLANK;
    }
    if !may_matter_to_nfc(code_point) {
        return flags;
    }
    match is_nfc_quick(std::iter::once(character)) {
        IsNormalized::Yes => {}
        IsNormalized::Maybe => flags |= MAY_COMPOSE,
        IsNormalized::No => flags |= NOT_NFC,
    }
    if canonical_combining_class(character) != 0 {
        flags |= REORDERS;
    }
    decompose_canonical(character, |part| {
        if part != character {
            flags |= DECOMPOSES;
        }
    });
    flags
}
