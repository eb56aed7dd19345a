//! The shingles of a text (docs/design/near.md has the definition).
//!
//! A text is folded into units: words in lower case, and single characters of scripts that are written without spaces.
//! A shingle is five consecutive units, joined by one space, and it is known by its xxh3-64.

use crate::unicode::Classes;
use crate::words::{FOLDED, WORD, is_unspaced};
use xxhash_rust::xxh3::xxh3_64;

/// Units of a shingle.
pub const UNITS: usize = 5;

/// Folded text kept before what is no longer needed is removed.
const KEPT: usize = 64 << 10;

/// Splits texts into shingles. Memory: 128 KB, and six times the longest unit.
#[derive(Default)]
pub struct Shingler {
    /// The last units, each with a space after it.
    folded: Vec<u8>,
}

impl Shingler {
    /// Calls `each` with the hashes of the text's shingles, in order, with repetitions.
    pub fn hashes(&mut self, text: &str, mut each: impl FnMut(u64)) {
        let (classes, bytes, folded) = (Classes::get(), text.as_bytes(), &mut self.folded);
        if folded.capacity() > 4 * KEPT {
            *folded = Vec::new(); // the last text had very long units
        }
        folded.clear();
        // Where the last five units start; unit n is at n % 5.
        let mut starts = [0; UNITS];
        let (mut units, mut at) = (0, 0);
        loop {
            at = skip_separators(classes, bytes, at);
            if at == bytes.len() {
                return;
            }
            if folded.len() > KEPT {
                let needed = if units < UNITS { starts[0] } else { starts[(units + 1) % UNITS] };
                folded.drain(..needed);
                starts.iter_mut().for_each(|start| *start = start.wrapping_sub(needed));
            }
            starts[units % UNITS] = folded.len();
            at = take_unit(classes, text, at, folded);
            units += 1;
            if units >= UNITS {
                each(xxh3_64(&folded[starts[units % UNITS]..]));
            }
            folded.push(b' ');
        }
    }

    /// The set of the text's shingles, ascending.
    pub fn set(&mut self, text: &str) -> Vec<u64> {
        // Every shingle but the first four needs two bytes of text. Pages that are not used take no memory, those of a
        // vector that grows would.
        let mut hashes = Vec::with_capacity(text.len() / 2 + 1);
        self.hashes(text, |hash| hashes.push(hash));
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }
}

#[inline]
fn skip_separators(classes: &Classes, bytes: &[u8], mut at: usize) -> usize {
    while let Some(&lead) = bytes.get(at) {
        if lead < 0x80 {
            if FOLDED[lead as usize] != 0 {
                break;
            }
            at += 1;
        } else {
            let (flags, width) = classes.decode(bytes, at);
            if flags & WORD != 0 {
                break;
            }
            at += width;
        }
    }
    at
}

/// Appends the unit that starts at `at`, folded; returns where it ends.
#[inline]
fn take_unit(classes: &Classes, text: &str, at: usize, folded: &mut Vec<u8>) -> usize {
    let bytes = text.as_bytes();
    let (start, mut at) = (at, at);
    loop {
        let run = bytes[at..].iter().position(|&byte| FOLDED[byte as usize] == 0);
        let end = run.map_or(bytes.len(), |run| at + run);
        folded.extend(bytes[at..end].iter().map(|&byte| FOLDED[byte as usize]));
        at = end;
        if at == bytes.len() || bytes[at] < 0x80 {
            return at;
        }
        let (flags, width) = classes.decode(bytes, at);
        if flags & WORD == 0 {
            return at;
        }
        let character = text[at..].chars().next().expect("there is one of this width");
        let unspaced = is_unspaced(character as u32);
        if unspaced && at > start {
            return at;
        }
        for lower in character.to_lowercase() {
            folded.extend_from_slice(lower.encode_utf8(&mut [0; 4]).as_bytes());
        }
        at += width;
        if unspaced {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(shingles: &[&str]) -> Vec<u64> {
        shingles.iter().map(|shingle| xxh3_64(shingle.as_bytes())).collect()
    }

    fn hashes(text: &str) -> Vec<u64> {
        let mut all = Vec::new();
        Shingler::default().hashes(text, |hash| all.push(hash));
        all
    }

    #[test]
    fn words_are_folded_and_joined() {
        assert_eq!(hashes("One, TWO -- three_four\n5"), of(&["one two three four 5"]));
        assert_eq!(hashes("Ünë ДВА 3x y z w!"), of(&["ünë два 3x y z", "два 3x y z w"]));
        assert!(hashes("one two three four").is_empty());
        assert!(hashes("").is_empty());
    }

    #[test]
    fn characters_of_scripts_without_spaces_are_units() {
        assert_eq!(hashes("我们在学习"), of(&["我 们 在 学 习"]));
        assert_eq!(hashes("GPT模型v2 は"), of(&["gpt 模 型 v2 は"]));
        assert_eq!(hashes("กินข้าว"), of(&["ก ิ น ข ้", "ิ น ข ้ า", "น ข ้ า ว"]));
    }

    #[test]
    fn long_texts_are_the_same_as_short_ones() {
        let text: String = (0..60_000).map(|n| format!("word{n} ")).collect();
        let words: Vec<&str> = text.split_whitespace().collect();
        let slow: Vec<u64> = words.windows(5).map(|five| xxh3_64(five.join(" ").as_bytes())).collect();
        assert_eq!(hashes(&text), slow);
        let long = format!("{} b c d e f", "a".repeat(300_000));
        assert_eq!(hashes(&long).len(), 2);
    }
}
