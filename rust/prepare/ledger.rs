//! What became of every document, line and byte of a task.

use crate::clean::{DOCUMENT_RULES, Dropped, LINE_RULES};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Behind the rules of cleaning: what else a document can be dropped for.
pub const DUPLICATE: usize = DOCUMENT_RULES.len();
pub const TOO_FEW_TOKENS: usize = DUPLICATE + 1;
pub const TOO_MANY_TOKENS: usize = DUPLICATE + 2;
const RULES: usize = DOCUMENT_RULES.len() + 3;
const DUPLICATE_LINE: usize = LINE_RULES.len();

/// Examples kept of what a rule dropped: the first ones of each task.
const EXAMPLES: usize = 3;
const EXAMPLE_CHARACTERS: usize = 200;

fn rule_name(rule: usize) -> &'static str {
    match rule {
        DUPLICATE => "duplicate",
        TOO_FEW_TOKENS => "too_few_tokens",
        TOO_MANY_TOKENS => "too_many_tokens",
        _ => DOCUMENT_RULES[rule],
    }
}

fn line_rule_name(rule: usize) -> &'static str {
    LINE_RULES.get(rule).copied().unwrap_or("duplicate_line")
}

#[derive(Default)]
pub struct Ledger {
    read: u64,
    cut: u64,
    kept: u64,
    dropped: [u64; RULES],
    bytes_read: u64,
    bytes_kept: u64,
    bytes_dropped: [u64; RULES],
    lines_dropped: [u64; LINE_RULES.len() + 1],
    line_bytes_dropped: [u64; LINE_RULES.len() + 1],
    characters: u64,
    end_ids: u64,
    examples: Vec<(usize, Value)>,
}

/// Where a document came from, for the examples.
#[derive(Clone)]
pub struct Origin {
    pub path: Arc<str>,
    pub document: u64,
}

impl Ledger {
    /// A document, or a later part of one that was cut.
    pub fn read(&mut self, bytes: usize, later_part: bool) {
        self.bytes_read += bytes as u64;
        self.read += u64::from(!later_part);
        self.cut += u64::from(later_part);
    }

    pub fn lines(&mut self, dropped: &Dropped) {
        for rule in 0..LINE_RULES.len() {
            self.lines_dropped[rule] += dropped.lines[rule];
            self.line_bytes_dropped[rule] += dropped.bytes[rule];
        }
    }

    pub fn duplicate_lines(&mut self, lines: u64, bytes: usize) {
        self.lines_dropped[DUPLICATE_LINE] += lines;
        self.line_bytes_dropped[DUPLICATE_LINE] += bytes as u64;
    }

    /// Documents without a single byte, which the reader only counts.
    pub fn empty(&mut self, documents: u64) {
        self.read += documents;
        self.dropped[0] += documents;
    }

    /// `bytes` are those not yet accounted for; the text is for the examples.
    pub fn dropped(&mut self, rule: usize, bytes: usize, text: &str, origin: &Origin) {
        self.dropped[rule] += 1;
        self.bytes_dropped[rule] += bytes as u64;
        if self.examples.iter().filter(|(of, _)| *of == rule).count() < EXAMPLES {
            let shown: String = text.chars().take(EXAMPLE_CHARACTERS).collect();
            let example = json!({"file": &*origin.path, "document": origin.document, "text": shown});
            self.examples.push((rule, example));
        }
    }

    /// `pieces` documents came of this one: more than one where it was divided for its tokens.
    pub fn kept(&mut self, bytes: usize, characters: usize, pieces: u64, end_ids: u64) {
        self.kept += pieces;
        self.cut += pieces - 1;
        self.bytes_kept += bytes as u64;
        self.characters += characters as u64;
        self.end_ids += end_ids;
    }

    pub fn to_json(&self) -> Value {
        let documents = |counts: &[u64; RULES]| -> Map<String, Value> {
            counts.iter().enumerate().map(|(rule, &n)| (rule_name(rule).into(), n.into())).collect()
        };
        let lines = |counts: &[u64]| -> Map<String, Value> {
            counts.iter().enumerate().map(|(rule, &n)| (line_rule_name(rule).into(), n.into())).collect()
        };
        let accounted = self.bytes_kept
            + self.bytes_dropped.iter().sum::<u64>()
            + self.line_bytes_dropped.iter().sum::<u64>();
        json!({
            "documents": {
                "read": self.read, "cut": self.cut, "kept": self.kept, "dropped": documents(&self.dropped)
            },
            "lines": {"dropped": lines(&self.lines_dropped)},
            "bytes": {
                "read": self.bytes_read,
                "kept": self.bytes_kept,
                "dropped": documents(&self.bytes_dropped),
                "lines_dropped": lines(&self.line_bytes_dropped),
                "normalised": self.bytes_read as i64 - accounted as i64,
            },
            "characters": self.characters,
            "end_ids": self.end_ids,
        })
    }

    pub fn examples(&self) -> Value {
        let mut all = Map::new();
        for (rule, example) in &self.examples {
            let of_rule = all.entry(rule_name(*rule)).or_insert_with(|| json!([]));
            of_rule.as_array_mut().expect("made above").push(example.clone());
        }
        Value::Object(all)
    }
}
