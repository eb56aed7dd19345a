//! Lines of a document that occurred before in it.

use super::characters::{self, SPACE};
use super::lines::Lines;
use super::rules::is_above;
use super::survey::Survey;
use xxhash_rust::xxh3::xxh3_64;

/// With fewer lines than this, "half of it is repeated" says nothing.
const FEWEST_LINES: u64 = 4;

fn is_blank(line: &str) -> bool {
    // From the end: most lines begin with white space, few end in it.
    line.chars().rev().all(|character| characters::flags(character) & SPACE != 0)
}

/// The lines of one document, each once: an open table of where they begin.
#[derive(Default)]
pub struct Repeats {
    /// 0, or where the line begins plus one, below 24 bits of its hash. Equal hashes are compared as text.
    slots: Vec<u64>,
}

const PLACE_BITS: u32 = 40;

impl Repeats {
    pub fn are_above(&mut self, limit: f64, text: &str, survey: &Survey) -> bool {
        if survey.newlines + 1 < FEWEST_LINES {
            return false;
        }
        self.make_room(text.len(), survey.newlines);
        let mut lines = 0;
        let mut total = survey.characters - survey.newlines;
        let mut repeated = 0;
        for (at, line) in Lines::of(text) {
            if is_blank(line) {
                total -= line.chars().count() as u64;
            } else {
                lines += 1;
                if self.has_or_insert(text, at, line, xxh3_64(line.as_bytes())) {
                    repeated += line.chars().count() as u64;
                }
            }
        }
        lines >= FEWEST_LINES && is_above(repeated, limit, total)
    }

    /// For all distinct lines there can be: at most 128 of them take two bytes, all others take three or more.
    pub fn make_room(&mut self, bytes: usize, newlines: u64) {
        let distinct = (newlines as usize + 1).min(bytes / 3 + 129);
        self.slots.clear();
        self.slots.resize((distinct + distinct / 3 + 1).next_power_of_two(), 0);
    }

    /// Whether the line at `at` occurred before; if not, it has now.
    pub fn has_or_insert(&mut self, text: &str, at: usize, line: &str, hash: u64) -> bool {
        let tag = hash >> PLACE_BITS << PLACE_BITS;
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let found = self.slots[slot];
            if found == 0 {
                self.slots[slot] = tag | (at as u64 + 1);
                return false;
            }
            if (found ^ tag) >> PLACE_BITS == 0 {
                let other = &text[(found ^ tag) as usize - 1..];
                if other.strip_prefix(line).is_some_and(|rest| rest.is_empty() || rest.starts_with('\n')) {
                    return true;
                }
            }
            slot = (slot + 1) & mask;
        }
    }

    pub fn held_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }

    pub fn give_back(&mut self, kept_bytes: usize) {
        if self.held_bytes() > kept_bytes {
            self.slots = Vec::new();
        }
    }
}
