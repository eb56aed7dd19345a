//! Repeated lines within a document.

use super::characters::{self, SPACE};
use super::lines::Lines;
use super::rules::is_above;
use super::survey::Survey;
use xxhash_rust::xxh3::xxh3_64;

/// With fewer lines than this, a share of repeated lines means nothing.
const MIN_LINES: u64 = 4;

fn is_blank(line: &str) -> bool {
    // From the end: many lines begin with white space, few end with it.
    line.chars().rev().all(|character| characters::flags(character) & SPACE != 0)
}

/// The distinct lines of one document: an open-addressing table of where they begin.
#[derive(Default)]
pub struct Repeats {
    /// 0, or 24 bits of the line's hash and below them its offset plus one. Lines of equal hash are compared as text.
    slots: Vec<u64>,
}

const PLACE_BITS: u32 = 40;

impl Repeats {
    pub fn are_above(&mut self, limit: f64, text: &str, survey: &Survey) -> bool {
        if survey.newlines + 1 < MIN_LINES {
            return false;
        }
        self.reset(text.len(), survey.newlines);
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
        lines >= MIN_LINES && is_above(repeated, limit, total)
    }

    /// Empties the table and sizes it for the most distinct lines there can be: at most 128 take two bytes, all others
    /// more.
    pub fn reset(&mut self, bytes: usize, newlines: u64) {
        let distinct = (newlines as usize + 1).min(bytes / 3 + 129);
        self.slots.clear();
        self.slots.resize((distinct + distinct / 3 + 1).next_power_of_two(), 0);
    }

    /// Whether the line at `at` occurred before; if not, it is added.
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

    pub fn capacity_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }

    pub fn free_above(&mut self, max_bytes: usize) {
        if self.capacity_bytes() > max_bytes {
            self.slots = Vec::new();
        }
    }
}
