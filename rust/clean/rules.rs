//! What is left out, and why: the rules in the order of their names.

use super::characters::{self, SPACE};
use super::lines::Lines;
use super::survey::Survey;
use super::{Dropped, Settings};
use xxhash_rust::xxh3::xxh3_64;

/// With fewer lines than this, "half of it is repeated" says nothing.
const FEWEST_LINES: u64 = 4;

fn is_above(count: u64, limit: f64, total: u64) -> bool {
    count as f64 > limit * total as f64
}

/// The first document rule that drops the text.
pub fn judge(text: &str, survey: &Survey, settings: &Settings, repeats: &mut Repeats) -> Option<usize> {
    let characters = survey.characters;
    if survey.empty {
        return Some(0);
    }
    if !settings.filter {
        return None;
    }
    if characters < settings.min_chars {
        return Some(1);
    }
    if settings.max_chars > 0 && characters > settings.max_chars {
        return Some(2);
    }
    if is_above(survey.symbols, settings.max_symbols, characters) {
        return Some(3);
    }
    // At most everything is repeated.
    if settings.max_repeated < 1.0 && repeats.are_above(settings.max_repeated, text, survey) {
        return Some(4);
    }
    is_above(survey.invalid, settings.max_invalid, characters).then_some(5)
}

/// Writes the text without the lines that a line rule drops; says whether there are any, and writes nothing if not.
pub fn drop_lines(text: &str, settings: &Settings, dropped: &mut Dropped, out: &mut String) -> bool {
    // No line is longer than the text: with the settings as they come, most documents are not looked at.
    let any_too_long = settings.max_line_chars > 0 && text.len() as u64 > settings.max_line_chars;
    let any_too_short = settings.min_line_chars > 0;
    let any_symbols = settings.max_line_symbols < 1.0;
    if !(any_too_long || any_too_short || any_symbols) {
        return false;
    }
    let mut changed = false;
    let mut copied = 0;
    for (at, line) in Lines::of(text) {
        let may_be_too_long = any_too_long && line.len() as u64 > settings.max_line_chars;
        if !(may_be_too_long || any_too_short || any_symbols) {
            continue;
        }
        if let Some(rule) = judge_line(line, settings) {
            let end = text.len().min(at + line.len() + 1);
            if !changed {
                out.clear();
                out.reserve(text.len());
                changed = true;
            }
            out.push_str(&text[copied..at]);
            copied = end;
            dropped.lines[rule] += 1;
            dropped.bytes[rule] += (end - at) as u64;
        }
    }
    if changed {
        out.push_str(&text[copied..]);
    }
    changed
}

fn judge_line(line: &str, settings: &Settings) -> Option<usize> {
    let survey = Survey::of(line, false);
    if survey.empty {
        return None;
    }
    if survey.characters < settings.min_line_chars {
        return Some(0);
    }
    if settings.max_line_chars > 0 && survey.characters > settings.max_line_chars {
        return Some(1);
    }
    is_above(survey.symbols, settings.max_line_symbols, survey.characters).then_some(2)
}

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
    fn are_above(&mut self, limit: f64, text: &str, survey: &Survey) -> bool {
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
