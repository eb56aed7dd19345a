//! The class of each character, as far as it matters to the splitting patterns.
//!
//! The patterns only distinguish letters (of three kinds), marks, numbers, white space and line ends, so one byte of
//! flags per code point is enough for any of them, with a single AND. The table is built once, in about a millisecond,
//! from the Unicode tables of regex-syntax: the same ones that the reference regexes use, so the two cannot disagree
//! about a new Unicode version.

use std::sync::OnceLock;

use regex_syntax::hir::HirKind;

/// Lu and Lt.
pub const UPPER: u8 = 1;
/// Ll.
pub const LOWER: u8 = 2;
/// Lm and Lo: letters that o200k treats as both upper and lower case.
pub const CASELESS: u8 = 4;
/// M.
pub const MARK: u8 = 8;
/// N.
pub const NUMBER: u8 = 16;
/// White_Space, which is `\s`: includes U+0085 and U+00A0, not U+001C..U+001F, U+180E or U+200B.
pub const SPACE: u8 = 32;
/// `\r` and `\n`; these are SPACE as well.
pub const NEWLINE: u8 = 64;
/// Everything else: punctuation, symbols, controls, unassigned code points.
pub const REST: u8 = 128;

/// `\p{L}`
pub const LETTER: u8 = UPPER | LOWER | CASELESS;
/// `[^\s\p{L}\p{N}]`, which includes marks.
pub const OTHER: u8 = MARK | REST;

const WHITE_SPACE: [(u32, u32); 10] = [
    (0x09, 0x0D),
    (0x20, 0x20),
    (0x85, 0x85),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
];

/// Flags of the ASCII characters; 0 for bytes from 0x80 on, which need [`Classes::decode`].
pub const ASCII: [u8; 256] = ascii_flags();

const fn ascii_flags() -> [u8; 256] {
    let mut flags = [0; 256];
    let mut byte = 0;
    while byte < 128 {
        flags[byte] = match byte as u8 {
            b'A'..=b'Z' => UPPER,
            b'a'..=b'z' => LOWER,
            b'0'..=b'9' => NUMBER,
            b'\r' | b'\n' => SPACE | NEWLINE,
            b'\t' | 0x0B | 0x0C | b' ' => SPACE,
            _ => REST,
        };
        byte += 1;
    }
    flags
}

const BLOCK: usize = 128;
const CODE_POINTS: usize = 0x11_0000;
/// Large enough for any 21 bits, so that no lookup needs a bounds check.
const STAGES: usize = (1 << 21) / BLOCK;

/// A byte for every code point, in two stages: the high bits select a block, the low bits a byte in it. Equal blocks
/// are stored once, which reduces 1.1 MB to about 50 KB.
pub struct Table {
    stage: Box<[u16; STAGES]>,
    blocks: Box<[[u8; BLOCK]]>,
}

impl Table {
    pub fn build(of: impl Fn(u32) -> u8) -> Table {
        let mut blocks: Vec<[u8; BLOCK]> = Vec::new();
        let mut stage = Box::new([0; STAGES]);
        for (place, first) in stage.iter_mut().zip((0..CODE_POINTS as u32).step_by(BLOCK)) {
            let block = std::array::from_fn(|at| of(first + at as u32));
            // From the end: most blocks equal a recent one (ideographs, planes without characters).
            let known = blocks.iter().rposition(|other| *other == block);
            *place = known.unwrap_or(blocks.len()) as u16;
            if known.is_none() {
                blocks.push(block);
            }
        }
        Table { stage, blocks: blocks.into() }
    }

    #[inline(always)]
    pub fn of(&self, code_point: u32) -> u8 {
        let block = self.stage[code_point as usize / BLOCK % STAGES];
        self.blocks[block as usize][code_point as usize % BLOCK]
    }
}

/// The flags of every character.
pub struct Classes(Table);

impl Classes {
    pub fn get() -> &'static Classes {
        static CLASSES: OnceLock<Classes> = OnceLock::new();
        CLASSES.get_or_init(Classes::build)
    }

    /// The flags of any code point.
    #[inline]
    pub fn of(&self, code_point: u32) -> u8 {
        self.0.of(code_point)
    }

    /// Flags and width in bytes of the character at `text[at]`, which must start one in valid
    /// UTF-8; `(0, 0)` at the end of `text`.
    #[inline]
    pub fn decode(&self, text: &[u8], at: usize) -> (u8, usize) {
        let Some(&lead) = text.get(at) else {
            return (0, 0);
        };
        if lead < 0x80 {
            return (ASCII[lead as usize], 1);
        }
        self.decode_multibyte(text, at, lead)
    }

    #[inline]
    fn decode_multibyte(&self, text: &[u8], at: usize, lead: u8) -> (u8, usize) {
        let tail = |offset: usize| u32::from(text[at + offset] & 0x3F);
        let lead = u32::from(lead);
        if lead < 0xE0 {
            (self.of((lead & 0x1F) << 6 | tail(1)), 2)
        } else if lead < 0xF0 {
            (self.of((lead & 0x0F) << 12 | tail(1) << 6 | tail(2)), 3)
        } else {
            let high = (lead & 0x07) << 18 | tail(1) << 12;
            (self.of(high | tail(2) << 6 | tail(3)), 4)
        }
    }

    /// Where the run of characters with any flag of `mask` that begins at `at` ends.
    #[inline]
    pub fn skip(&self, text: &[u8], mut at: usize, mask: u8) -> usize {
        while let Some(&lead) = text.get(at) {
            if lead < 0x80 {
                if ASCII[lead as usize] & mask == 0 {
                    break;
                }
                at += 1;
            } else {
                let (flags, width) = self.decode_multibyte(text, at, lead);
                if flags & mask == 0 {
                    break;
                }
                at += width;
            }
        }
        at
    }

    fn build() -> Classes {
        let mut flat = vec![REST; CODE_POINTS];
        for (category, flag) in [
            (r"[\p{Lu}\p{Lt}]", UPPER),
            (r"\p{Ll}", LOWER),
            (r"[\p{Lm}\p{Lo}]", CASELESS),
            (r"\p{M}", MARK),
            (r"\p{N}", NUMBER),
        ] {
            for (first, last) in ranges(category) {
                flat[first as usize..=last as usize].fill(flag);
            }
        }
        for (first, last) in WHITE_SPACE {
            flat[first as usize..=last as usize].fill(SPACE);
        }
        for newline in [b'\r', b'\n'] {
            flat[newline as usize] = SPACE | NEWLINE;
        }
        Classes(Table::build(|code_point| flat[code_point as usize]))
    }
}

fn ranges(category: &str) -> Vec<(u32, u32)> {
    let parsed = regex_syntax::parse(category).expect("general categories are compiled in");
    match parsed.kind() {
        HirKind::Class(regex_syntax::hir::Class::Unicode(class)) => {
            class.iter().map(|range| (range.start() as u32, range.end() as u32)).collect()
        }
        other => unreachable!("{category} parses to a class, not {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_point_agrees_with_the_regex_engine() {
        let classes = Classes::get();
        for (regex, mask) in [
            (r"[\p{Lu}\p{Lt}]", UPPER),
            (r"\p{Ll}", LOWER),
            (r"[\p{Lm}\p{Lo}]", CASELESS),
            (r"\p{L}", LETTER),
            (r"\p{M}", MARK),
            (r"\p{N}", NUMBER),
            (r"\s", SPACE),
            (r"[\r\n]", NEWLINE),
            (r"[^\s\p{L}\p{N}]", OTHER),
        ] {
            let regex = fancy_regex::Regex::new(&format!("^{regex}$")).unwrap();
            let mut buffer = [0; 4];
            for character in '\0'..=char::MAX {
                let text = character.encode_utf8(&mut buffer);
                let expected = regex.is_match(text).unwrap();
                let (flags, width) = classes.decode(text.as_bytes(), 0);
                assert_eq!(width, text.len());
                assert_eq!(flags, classes.of(character as u32), "{character:?}");
                assert_eq!(flags & mask != 0, expected, "{character:?} {regex:?}");
            }
        }
    }

    #[test]
    fn the_table_stays_small() {
        assert!(Classes::get().0.blocks.len() < 512);
    }

    #[test]
    fn runs_stop_at_the_first_other_character_and_at_the_end() {
        let text = "aé中1".as_bytes();
        let classes = Classes::get();
        assert_eq!(classes.skip(text, 0, LETTER), 6);
        assert_eq!(classes.skip(text, 0, LETTER | NUMBER), 7);
        assert_eq!(classes.skip(text, 7, LETTER), 7);
        assert_eq!(classes.decode(text, 7), (0, 0));
    }
}
