//! The words of a text, folded, and its n-grams of words: what `--exclude` compares, and those of the
//! shingles of `--near`, whatever the punctuation, the line ends and the case.
//!
//! **A word** is a longest run of letters (L), marks (M) and numbers (N); everything else separates words. In scripts
//! that put no spaces between words, the blocks of [`UNSPACED`], each such character is a word by itself and also ends
//! the word before it. **Folded**: each character becomes its lowercase mapping by itself (`char::to_lowercase`, without
//! the rule for a final sigma). Nothing else is changed: accents stay, and two spellings of one accented letter are
//! different unless the text is normalized (NFC) before, as `prepare` does.
//!
//! ```text
//! "Don't STOP: 3.5% of 東京タワー!"   ->   don  t  stop  3  5  of  東  京  タ  ワ  ー
//! ```
//!
//! A word is identified by the xxh3-64 of its folded UTF-8, an n-gram by a polynomial of its words' hashes in one odd
//! base, modulo 2^64, which takes two multiplications per word however long the n-gram is.
//!
//! Nothing is copied except words with an upper-case or non-ASCII character, 256 bytes at a time, so memory does not
//! depend on the length of a word.

use crate::unicode::{ASCII, Classes, LETTER, MARK, NUMBER};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Classes of characters.
pub const WORD: u8 = LETTER | MARK | NUMBER;

/// First and last code point of the blocks whose letters, marks and numbers are words by themselves.
const UNSPACED: [(u32, u32); 15] = [
    (0x0E00, 0x0EFF),     // Thai, Lao
    (0x1000, 0x109F),     // Myanmar
    (0x1780, 0x17FF),     // Khmer
    (0x1950, 0x19DF),     // Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),     // Tai Tham
    (0x3005, 0x3007),     // iteration mark, closing mark and zero of Han
    (0x3040, 0x30FF),     // Hiragana, Katakana
    (0x31F0, 0x31FF),     // Katakana extensions
    (0x3400, 0x9FFF),     // Han
    (0xA9E0, 0xA9FF),     // Myanmar extended B
    (0xAA60, 0xAA7F),     // Myanmar extended A
    (0xF900, 0xFAFF),     // Han, for compatibility
    (0xFF66, 0xFF9F),     // Katakana, half width
    (0x1_B000, 0x1_B16F), // kana supplements
    (0x2_0000, 0x3_FFFF), // the planes of Han
];

pub fn is_unspaced(code_point: u32) -> bool {
    // Below Thai are all alphabets of Europe and most of India and the Near East.
    code_point >= UNSPACED[0].0 && UNSPACED.iter().any(|&(first, last)| (first..=last).contains(&code_point))
}

/// ASCII letters in lower case and digits; 0 for everything else.
pub const FOLDED: [u8; 256] = folded_ascii();

const fn folded_ascii() -> [u8; 256] {
    let mut folded = [0; 256];
    let mut byte = 0;
    while byte < 128 {
        if ASCII[byte] & WORD != 0 {
            folded[byte] = (byte as u8).to_ascii_lowercase();
        }
        byte += 1;
    }
    folded
}

/// A word: the hash of its folded text, and where it is in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word {
    pub hash: u64,
    pub start: usize,
    pub end: usize,
}

/// Iterates over the words of a text.
pub struct Words<'a> {
    text: &'a str,
    at: usize,
    classes: &'static Classes,
}

impl<'a> Words<'a> {
    pub fn of(text: &'a str) -> Words<'a> {
        Words { text, at: 0, classes: Classes::get() }
    }

    /// A word of ASCII characters that begins at `start`; `None` if it continues with another one.
    #[inline]
    fn ascii_word(&mut self, start: usize) -> Option<Word> {
        let bytes = self.text.as_bytes();
        let (mut end, mut changed) = (start, 0);
        while end < bytes.len() && FOLDED[bytes[end] as usize] != 0 {
            changed |= FOLDED[bytes[end] as usize] ^ bytes[end];
            end += 1;
        }
        if end < bytes.len() && bytes[end] >= 0x80 {
            return None;
        }
        let word = &bytes[start..end];
        let hash = if changed == 0 {
            xxh3_64(word)
        } else {
            let mut folding = Folding::new();
            word.iter().for_each(|&byte| folding.push(&[FOLDED[byte as usize]]));
            folding.hash()
        };
        self.at = end;
        Some(Word { hash, start, end })
    }

    /// A word with any characters; `start` is where its first one begins.
    #[cold]
    fn any_word(&mut self, start: usize) -> Word {
        let mut folding = Folding::new();
        let mut end = start;
        for character in self.text[start..].chars() {
            let code_point = character as u32;
            if self.classes.of(code_point) & WORD == 0 {
                break;
            }
            let alone = is_unspaced(code_point);
            if alone && end > start {
                break;
            }
            for lower in character.to_lowercase() {
                folding.push(lower.encode_utf8(&mut [0; 4]).as_bytes());
            }
            end += character.len_utf8();
            if alone {
                break;
            }
        }
        self.at = end;
        Word { hash: folding.hash(), start, end }
    }
}

impl Iterator for Words<'_> {
    type Item = Word;

    #[inline]
    fn next(&mut self) -> Option<Word> {
        let bytes = self.text.as_bytes();
        loop {
            let &byte = bytes.get(self.at)?;
            if FOLDED[byte as usize] != 0 {
                let start = self.at;
                return Some(match self.ascii_word(start) {
                    Some(word) => word,
                    None => self.any_word(start),
                });
            }
            if byte < 0x80 {
                self.at += 1;
                continue;
            }
            let (flags, width) = self.classes.decode(bytes, self.at);
            if flags & WORD != 0 {
                return Some(self.any_word(self.at));
            }
            self.at += width;
        }
    }
}

/// The hash of a word that is folded piece by piece.
struct Folding {
    buffer: [u8; 256],
    length: usize,
    /// Of a word that is longer than the buffer.
    long: Option<Box<Xxh3>>,
}

impl Folding {
    fn new() -> Folding {
        Folding { buffer: [0; 256], length: 0, long: None }
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        if self.length + bytes.len() > self.buffer.len() {
            self.long.get_or_insert_default().update(&self.buffer[..self.length]);
            self.length = 0;
        }
        self.buffer[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn hash(self) -> u64 {
        let rest = &self.buffer[..self.length];
        match self.long {
            None => xxh3_64(rest),
            Some(mut long) => {
                long.update(rest);
                long.digest()
            }
        }
    }
}

/// Any odd number would do; this one is 2^64 divided by the golden ratio.
const BASE: u64 = 0x9E37_79B9_7F4A_7C15;

/// Several words in a row: their hash, never 0, and where they are in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ngram {
    pub hash: u64,
    pub start: usize,
    pub end: usize,
}

/// Turns words into n-grams, one for each word from the n-th on.
pub struct Ngrams {
    /// The last n words; the oldest is at `oldest`.
    words: Vec<Word>,
    oldest: usize,
    seen: u64,
    sum: u64,
    /// The factor of the oldest word after the next one is added.
    leaving: u64,
}

impl Ngrams {
    pub fn new(n: usize) -> Ngrams {
        assert!(n > 0);
        let leaving = (0..n).fold(1u64, |power, _| power.wrapping_mul(BASE));
        Ngrams { words: vec![Word::default(); n], oldest: 0, seen: 0, sum: 0, leaving }
    }

    /// To be called before each text.
    pub fn clear(&mut self) {
        self.words.fill(Word::default());
        (self.oldest, self.seen, self.sum) = (0, 0, 0);
    }

    /// The number of words since `clear`.
    pub fn words_seen(&self) -> u64 {
        self.seen
    }

    #[inline]
    pub fn push(&mut self, word: Word) -> Option<Ngram> {
        let n = self.words.len();
        let left = std::mem::replace(&mut self.words[self.oldest], word);
        self.sum = self
            .sum
            .wrapping_mul(BASE)
            .wrapping_sub(left.hash.wrapping_mul(self.leaving))
            .wrapping_add(word.hash);
        self.oldest = if self.oldest + 1 == n { 0 } else { self.oldest + 1 };
        self.seen += 1;
        if self.seen < n as u64 {
            return None;
        }
        Some(Ngram { hash: self.sum.max(1), start: self.words[self.oldest].start, end: word.end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, character by character.
    fn words_by_definition(text: &str) -> Vec<(String, usize, usize)> {
        let classes = Classes::get();
        let mut words: Vec<(String, usize, usize)> = Vec::new();
        let mut joins = false;
        for (at, character) in text.char_indices() {
            if classes.of(character as u32) & WORD == 0 {
                joins = false;
                continue;
            }
            let alone = is_unspaced(character as u32);
            let (lower, end) = (character.to_lowercase().to_string(), at + character.len_utf8());
            match words.last_mut() {
                Some(last) if joins && !alone => {
                    last.0 += &lower;
                    last.2 = end;
                }
                _ => words.push((lower, at, end)),
            }
            joins = !alone;
        }
        words
    }

    fn check(text: &str) {
        let expected: Vec<Word> = words_by_definition(text)
            .into_iter()
            .map(|(word, start, end)| Word { hash: xxh3_64(word.as_bytes()), start, end })
            .collect();
        assert_eq!(Words::of(text).collect::<Vec<_>>(), expected, "{text:?}");
    }

    #[test]
    fn words_are_folded_runs_of_letters_marks_and_numbers() {
        let folded = |text| words_by_definition(text).into_iter().map(|(word, ..)| word).collect::<Vec<_>>();
        assert_eq!(folded("Don't STOP: 3.5% of it!"), ["don", "t", "stop", "3", "5", "of", "it"]);
        assert_eq!(folded("ÉCOLE Straße ΟΔΟΣ"), ["école", "straße", "οδοσ"]);
        assert_eq!(folded("in東京2 หมา"), ["in", "東", "京", "2", "ห", "ม", "า"]);
        assert_eq!(folded("हिन्दी में"), ["हिन्दी", "में"]);
        for text in ["", " ", "a", "Ab", "aé", "aÉb c", "東", "x東y", "a\u{301}b", "İ İ", "ﾊﾝ", "--a--"]
        {
            check(text);
        }
        check(&"A".repeat(1000));
        check(&format!("{}é", "Ab".repeat(500)));
    }

    proptest! {
        #[test]
        fn any_text_has_the_words_of_the_definition(text in "[aB1 .é中ひก\u{301}Σİ\\PC]{0,60}") {
            check(&text);
        }

        #[test]
        fn ngrams_are_equal_where_their_words_are(words in prop::collection::vec(0u64..3, 0..40), n in 1usize..5) {
            let mut ngrams = Ngrams::new(n);
            let found: Vec<Ngram> = words
                .iter()
                .enumerate()
                .filter_map(|(at, word)| ngrams.push(Word { hash: xxh3_64(&[*word as u8]), start: at, end: at + 1 }))
                .collect();
            prop_assert_eq!(found.len(), (words.len() + 1).saturating_sub(n));
            for (at, one) in found.iter().enumerate() {
                prop_assert_eq!((one.start, one.end), (at, at + n));
                for (other_at, other) in found.iter().enumerate() {
                    prop_assert_eq!(one.hash == other.hash, words[at..at + n] == words[other_at..other_at + n]);
                }
            }
        }
    }
}
