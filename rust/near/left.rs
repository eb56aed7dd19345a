//! The share of documents that are near-duplicates of an earlier one, estimated in bounded memory.
//!
//! Documents are grouped by the least hash of their shingles: two documents have the same one with a probability that is
//! their similarity. A group is in the sample if its own hash is below a limit, which is halved whenever the sample has
//! too many shingles, so a group is there with all its documents or not at all. A document is compared with the first
//! ones of its group. One that is found with a similarity s stands for 1/s documents, because a pair like it is found
//! with probability s.

use super::shingles::Shingler;
use super::similarity;
use serde_json::{Value, json};
use std::collections::HashMap;

pub const SIMILARITY: f64 = 0.8;
/// Shingles of the sample; 8 bytes each.
const HELD: usize = if cfg!(test) { 20_000 } else { 2 << 20 };
/// Documents of a group that others are compared with.
const FIRST: usize = 4;

#[derive(Default)]
struct Group {
    /// Sets of shingles of documents that are not similar to each other.
    sets: Vec<Vec<u64>>,
    documents: u64,
    similar: f64,
}

pub struct Left {
    shingler: Shingler,
    groups: HashMap<u64, Group>,
    limit: u64,
    held: usize,
}

impl Default for Left {
    fn default() -> Left {
        Left { shingler: Shingler::default(), groups: HashMap::new(), limit: u64::MAX, held: 0 }
    }
}

impl Left {
    /// Documents that are too short for shingles are not counted.
    pub fn add(&mut self, text: &str) {
        let mut least = u64::MAX;
        let mut count = 0u64;
        self.shingler.hashes(text, |hash| {
            least = least.min(hash);
            count += 1;
        });
        let key = scattered(least);
        if count == 0 || key > self.limit {
            return;
        }
        let mut set = self.shingler.set(text);
        let group = self.groups.entry(key).or_default();
        group.documents += 1;
        let nearest = group.sets.iter().map(|other| similarity(&set, other, SIMILARITY)).fold(0.0, f64::max);
        if nearest >= SIMILARITY {
            group.similar += 1.0 / nearest;
        } else if group.sets.len() < FIRST {
            self.held += set.len();
            set.shrink_to_fit();
            group.sets.push(set);
        }
        while self.held > HELD && self.limit > 0 {
            self.limit /= 2;
            let limit = self.limit;
            self.groups.retain(|key, _| *key <= limit);
            self.held = self.groups.values().flat_map(|group| &group.sets).map(Vec::len).sum();
        }
    }

    pub fn to_json(&self) -> Value {
        let documents: u64 = self.groups.values().map(|group| group.documents).sum();
        let similar: f64 = self.groups.values().map(|group| group.similar).sum();
        let share = if documents == 0 { 0.0 } else { (similar / documents as f64).min(1.0) };
        json!({"similarity": SIMILARITY, "sampled": documents, "share": share})
    }
}

/// The least hash itself is smaller in longer documents: they would be sampled more often.
fn scattered(hash: u64) -> u64 {
    let mixed = (hash ^ hash >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text of 60 words; with a `change`, one of them is another: 10 of its 56 shingles are new, in about 0.84.
    fn text(number: u64, change: Option<u64>) -> String {
        let word = |at: u64| format!("w{}", scattered(number * 1000 + at) % 100_000);
        let words: Vec<String> = (0..60)
            .map(|at| match change {
                Some(change) if at == 30 => format!("changed{change}"),
                _ => word(at),
            })
            .collect();
        words.join(" ")
    }

    fn share(texts: impl Iterator<Item = String>) -> f64 {
        let mut left = Left::default();
        texts.for_each(|text| left.add(&text));
        assert!(left.held <= HELD);
        left.to_json()["share"].as_f64().unwrap()
    }

    #[test]
    fn different_texts_and_copies() {
        assert_eq!(share((0..2000).map(|n| text(n, None))), 0.0);
        assert_eq!(share((0..2000).map(|n| text(n % 1000, None))), 0.5);
        assert_eq!(share(["too short".to_owned(), String::new()].into_iter()), 0.0);
    }

    #[test]
    fn near_copies_are_estimated() {
        let mixed = (0..4000).map(|n| if n < 3000 { text(n, None) } else { text(n - 3000, Some(n)) });
        let found = share(mixed);
        assert!((0.2..0.3).contains(&found), "{found}"); // 1,000 of 4,000
    }

    #[test]
    fn a_million_copies_take_no_memory() {
        let mut left = Left::default();
        (0..100_000).for_each(|n| left.add(&text(1, Some(n))));
        assert!(left.groups.values().all(|group| group.sets.len() <= FIRST));
    }
}
