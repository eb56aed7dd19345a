//! How repetitive a dataset is: the most frequent lines and n-grams of words, and the share of documents that are copies
//! of another, in memory that does not depend on the dataset.
//!
//! The text is read twice, in the same order. The first reading finds candidates with a sketch of [`COUNTERS`] counters
//! (Misra and Gries): it underestimates a count by at most `missed`, which is at most 1/[`COUNTERS`] of all occurrences.
//! So everything more frequent than `missed` is a candidate. The second reading counts the candidates exactly.
//!
//! Documents are counted by the hash of their text: all of them up to [`SAMPLED`] different ones, then only those whose
//! hash is below a limit that is halved whenever there are more. Copies have the same hash, so a text is in the sample
//! with all its copies or with none.

use crate::near::left::Left;
use crate::words::{Ngrams, Words};
use serde_json::{Value, json};
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64;

const COUNTERS: usize = if cfg!(test) { 16 } else { 1 << 16 };
const CANDIDATES: usize = 4096;
const SAMPLED: usize = if cfg!(test) { 64 } else { 1 << 17 };
const SHOWN_CHARACTERS: usize = 300;

/// Counts of the most frequent hashes, each too low by at most `missed`.
#[derive(Default)]
struct Sketch {
    counts: HashMap<u64, u64>,
    total: u64,
    missed: u64,
}

impl Sketch {
    fn add(&mut self, hash: u64) {
        self.total += 1;
        *self.counts.entry(hash).or_insert(0) += 1;
        if self.counts.len() == 2 * COUNTERS {
            let mut all: Vec<u64> = self.counts.values().copied().collect();
            let (_, &mut least, _) = all.select_nth_unstable(COUNTERS);
            self.missed += least;
            self.counts.retain(|_, count| {
                *count = count.saturating_sub(least);
                *count > 0
            });
        }
    }

    /// The most frequent hashes, to be counted exactly.
    fn candidates(self) -> Exact {
        let mut all: Vec<(u64, u64)> = self.counts.into_iter().map(|(hash, count)| (count, hash)).collect();
        all.sort_unstable_by(|one, other| other.cmp(one));
        // A hash that is left out may be as frequent as the first of those, and what the sketch missed of it.
        let left_out = all.get(CANDIDATES).map_or(0, |(count, _)| *count);
        all.truncate(CANDIDATES);
        let found = all.into_iter().map(|(_, hash)| (hash, Found::default())).collect();
        Exact { found, total: self.total, unlisted: self.missed + left_out }
    }
}

#[derive(Clone, Default)]
struct Found {
    count: u64,
    /// The document of the first occurrence, and its place in it.
    document: u64,
    start: usize,
    end: usize,
    text: String,
}

/// Exact counts of the candidates.
struct Exact {
    found: HashMap<u64, Found>,
    total: u64,
    /// No other hash is more frequent.
    unlisted: u64,
}

impl Exact {
    fn add(&mut self, hash: u64, document: u64, text: &str, start: usize, end: usize) {
        let Some(found) = self.found.get_mut(&hash) else { return };
        if found.count == 0 {
            let text = text[start..end].chars().take(SHOWN_CHARACTERS).collect();
            *found = Found { count: 0, document, start, end, text };
        }
        found.count += 1;
    }

    /// The `most` most frequent ones that occur more than once. One whose first occurrence overlaps that of another in
    /// the list is a part of the same passage, and not listed.
    fn to_json(&self, most: usize) -> Value {
        let mut all: Vec<&Found> = self.found.values().filter(|found| found.count > 1).collect();
        all.sort_unstable_by_key(|found| (std::cmp::Reverse(found.count), found.document, found.start));
        let mut listed: Vec<&Found> = Vec::new();
        for found in all {
            let overlaps = |other: &&Found| {
                other.document == found.document && other.start < found.end && found.start < other.end
            };
            if listed.len() == most {
                break;
            }
            if !listed.iter().any(overlaps) {
                listed.push(found);
            }
        }
        let listed: Vec<Value> =
            listed.iter().map(|found| json!({"text": found.text, "count": found.count})).collect();
        json!({"total": self.total, "most_frequent": listed, "unlisted_at_most": self.unlisted})
    }
}

/// Documents by the hash of their text.
struct Documents {
    counts: HashMap<u64, u64>,
    limit: u64,
    total: u64,
}

impl Documents {
    fn add(&mut self, hash: u64) {
        self.total += 1;
        if hash > self.limit {
            return;
        }
        *self.counts.entry(hash).or_insert(0) += 1;
        while self.counts.len() > SAMPLED {
            self.limit /= 2;
            let limit = self.limit;
            self.counts.retain(|hash, _| *hash <= limit);
        }
    }

    fn to_json(&self) -> Value {
        let sampled: u64 = self.counts.values().sum();
        let copies = sampled - self.counts.len() as u64;
        json!({
            "total": self.total,
            "sampled": sampled,
            "copies": copies,
            "share": if sampled == 0 { 0.0 } else { copies as f64 / sampled as f64 },
        })
    }
}

enum Reading {
    First { lines: Sketch, ngrams: Sketch },
    Second { lines: Exact, ngrams: Exact },
}

pub struct Repetition {
    roller: Ngrams,
    reading: Reading,
    documents: Documents,
    near: Left,
    /// Documents of the second reading.
    document: u64,
}

impl Repetition {
    pub fn new(n: usize) -> Repetition {
        Repetition {
            roller: Ngrams::new(n),
            reading: Reading::First { lines: Sketch::default(), ngrams: Sketch::default() },
            documents: Documents { counts: HashMap::new(), limit: u64::MAX, total: 0 },
            near: Left::default(),
            document: 0,
        }
    }

    /// A document, in either reading.
    pub fn add(&mut self, text: &str) {
        self.roller.clear();
        match &mut self.reading {
            Reading::First { lines, ngrams } => {
                self.documents.add(xxh3_64(text.as_bytes()));
                self.near.add(text);
                lines_of(text).for_each(|(_, line)| lines.add(xxh3_64(line.as_bytes())));
                Words::of(text)
                    .filter_map(|word| self.roller.push(word))
                    .for_each(|ngram| ngrams.add(ngram.hash));
            }
            Reading::Second { lines, ngrams } => {
                let document = self.document;
                self.document += 1;
                for (start, line) in lines_of(text) {
                    lines.add(xxh3_64(line.as_bytes()), document, text, start, start + line.len());
                }
                for ngram in Words::of(text).filter_map(|word| self.roller.push(word)) {
                    ngrams.add(ngram.hash, document, text, ngram.start, ngram.end);
                }
            }
        }
    }

    /// To be called after the first reading.
    pub fn begin_counting(&mut self) {
        if let Reading::First { lines, ngrams } = &mut self.reading {
            let (lines, ngrams) = (std::mem::take(lines), std::mem::take(ngrams));
            self.reading = Reading::Second { lines: lines.candidates(), ngrams: ngrams.candidates() };
        }
    }

    /// The result; lines and n-grams after the second reading, at most `most` of each.
    pub fn to_json(&self, most: usize) -> Value {
        let (lines, ngrams) = match &self.reading {
            Reading::First { .. } => (Value::Null, Value::Null),
            Reading::Second { lines, ngrams } => (lines.to_json(most), ngrams.to_json(most)),
        };
        let near = self.near.to_json();
        json!({"documents": self.documents.to_json(), "near_duplicates": near, "lines": lines, "ngrams": ngrams})
    }
}

/// The lines that are not blank, without the blanks around them, and where they start.
fn lines_of(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.split('\n').map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| (line.as_ptr() as usize - text.as_ptr() as usize, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(texts: &[String], n: usize, most: usize) -> Value {
        let mut repetition = Repetition::new(n);
        texts.iter().for_each(|text| repetition.add(text));
        repetition.begin_counting();
        texts.iter().for_each(|text| repetition.add(text));
        repetition.to_json(most)
    }

    #[test]
    fn frequent_lines_are_counted_exactly_among_many_rare_ones() {
        let texts: Vec<String> = (0..2000)
            .map(|at| {
                let menu = if at % 4 == 0 { "\n  Home | About  \n\n" } else { "\n" };
                format!("a line that is here once, {at}{menu}{}", if at % 10 == 0 { "the end" } else { "" })
            })
            .collect();
        let found = read(&texts, 4, 5);
        let lines = &found["lines"];
        assert_eq!(lines["most_frequent"][0], json!({"text": "Home | About", "count": 500}));
        assert_eq!(lines["most_frequent"][1], json!({"text": "the end", "count": 200}));
        assert_eq!(lines["total"], 2700);
        assert!(lines["unlisted_at_most"].as_u64().unwrap() <= 2700 / COUNTERS as u64);
        // "a line that is" and the n-grams that overlap it are one passage.
        let ngrams = &found["ngrams"]["most_frequent"];
        assert_eq!(ngrams[0], json!({"text": "a line that is", "count": 2000}));
        assert_ne!(ngrams[1]["text"], "line that is here");
    }

    #[test]
    fn copies_are_sampled_with_all_their_copies() {
        let few: Vec<String> = (0..60).map(|at| format!("text {}", at % 40)).collect();
        let found = read(&few, 3, 5)["documents"].clone();
        assert_eq!(found, json!({"total": 60, "sampled": 60, "copies": 20, "share": 20.0 / 60.0}));
        // Every text three times: two of three documents are copies, in every sample.
        let many: Vec<String> = (0..3000).map(|at| format!("text {}", at % 1000)).collect();
        let found = read(&many, 3, 5)["documents"].clone();
        assert_eq!(found["share"], 2.0 / 3.0);
        assert!(found["sampled"].as_u64().unwrap() <= 3 * SAMPLED as u64);
    }

    #[test]
    fn nothing_is_repeated_in_nothing() {
        let found = read(&[String::new()], 3, 5);
        assert_eq!(found["lines"], json!({"total": 0, "most_frequent": [], "unlisted_at_most": 0}));
        assert_eq!(found["documents"]["share"], 0.0);
    }
}
