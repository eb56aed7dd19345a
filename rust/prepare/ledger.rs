//! Accounts for every document, line and byte of a task.

use crate::clean::{Dropped, Rule};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Examples kept per rule: the first documents of each task that it dropped.
pub const EXAMPLES: usize = 3;
pub const EXAMPLE_CHARACTERS: usize = 200;

#[derive(Default)]
pub struct Ledger {
    read: u64,
    cut: u64,
    kept: u64,
    pub dropped: Dropped,
    bytes_read: u64,
    bytes_kept: u64,
    characters: u64,
    end_ids: u64,
    examples: Vec<(Rule, Value)>,
}

/// Where a document came from, for the examples.
#[derive(Clone)]
pub struct Origin {
    pub path: Arc<str>,
    pub document: u64,
}

impl Ledger {
    /// Counts a document, or a later part of one that was cut.
    pub fn add_read(&mut self, bytes: usize, later_part: bool) {
        self.bytes_read += bytes as u64;
        self.read += u64::from(!later_part);
        self.cut += u64::from(later_part);
    }

    /// Counts documents of zero bytes, which the reader does not return.
    pub fn add_empty(&mut self, documents: u64) {
        self.read += documents;
        self.dropped.add(Rule::Empty, documents, 0);
    }

    /// `bytes` are those not yet accounted for; the text is for the examples.
    pub fn add_dropped(&mut self, rule: Rule, bytes: usize, text: &str, origin: &Origin) {
        self.dropped.add(rule, 1, bytes);
        if self.examples.iter().filter(|(of, _)| *of == rule).count() < EXAMPLES {
            let shown: String = text.chars().take(EXAMPLE_CHARACTERS).collect();
            let example = json!({"file": &*origin.path, "document": origin.document, "text": shown});
            self.examples.push((rule, example));
        }
    }

    /// This document became `pieces` documents: more than one if it had too many tokens and was divided.
    pub fn add_kept(&mut self, bytes: usize, characters: usize, pieces: u64, end_ids: u64) {
        self.kept += pieces;
        self.cut += pieces - 1;
        self.bytes_kept += bytes as u64;
        self.characters += characters as u64;
        self.end_ids += end_ids;
    }

    pub fn to_json(&self) -> Value {
        let by_rule = |rules: &[Rule], of: fn(&Dropped, Rule) -> u64| -> Map<String, Value> {
            rules.iter().map(|&rule| (rule.facts().name.into(), of(&self.dropped, rule).into())).collect()
        };
        let accounted = self.bytes_kept + Rule::all().map(|rule| self.dropped.bytes(rule)).sum::<u64>();
        json!({
            "documents": {
                "read": self.read,
                "cut": self.cut,
                "kept": self.kept,
                "dropped": by_rule(Rule::DOCUMENTS, Dropped::count),
            },
            "lines": {"dropped": by_rule(Rule::LINES, Dropped::count)},
            "bytes": {
                "read": self.bytes_read,
                "kept": self.bytes_kept,
                "dropped": by_rule(Rule::DOCUMENTS, Dropped::bytes),
                "lines_dropped": by_rule(Rule::LINES, Dropped::bytes),
                "normalised": self.bytes_read as i64 - accounted as i64,
            },
            "characters": self.characters,
            "end_ids": self.end_ids,
        })
    }

    pub fn examples(&self) -> Value {
        let mut all = Map::new();
        for (rule, example) in &self.examples {
            let of_rule = all.entry(rule.facts().name).or_insert_with(|| json!([]));
            of_rule.as_array_mut().expect("made above").push(example.clone());
        }
        Value::Object(all)
    }
}
