//! What was read and what was left out, each under its own name.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// Places of skipped input that are kept to be shown; the rest is only counted.
const EXAMPLES: usize = 8;

/// A snapshot. After all files are read: every non-blank line of jsonl and every row of parquet is in exactly
/// one of `documents`, `broken_json`, `missing_field`, `not_a_string` and `null_text`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Files read to their end; of a file read in parts the first counts.
    pub files: u64,
    /// Documents ended, empty ones included.
    pub documents: u64,
    /// Bytes of the files consumed, compressed where they are: for progress.
    pub bytes_on_disk: u64,
    /// Bytes of text in the fragments handed out.
    pub text_bytes: u64,
    /// Invalid UTF-8 sequences replaced by U+FFFD.
    pub invalid_utf8: u64,
    /// Escapes like \ud800 in jsonl texts that stand for no character, replaced by U+FFFD.
    pub lone_surrogates: u64,
    /// Parquet rows whose text is null.
    pub null_text: u64,
    /// Lines skipped because they are no JSON object.
    pub broken_json: u64,
    /// Lines skipped because they lack the text field.
    pub missing_field: u64,
    /// Lines skipped because the text field holds no string.
    pub not_a_string: u64,
    /// Files skipped from the place where they are damaged; of a file read in parts, each part that is.
    pub broken_files: u64,
    /// The first few skipped places, "FILE:LINE what is wrong".
    pub examples: Vec<String>,
}

impl Counters {
    /// Lines left out, for whatever reason.
    pub fn skipped_lines(&self) -> u64 {
        self.broken_json + self.missing_field + self.not_a_string
    }
}

/// The counters while they are counted, by all workers at once.
#[derive(Default)]
pub(super) struct Tally {
    pub files: AtomicU64,
    pub documents: AtomicU64,
    pub bytes_on_disk: AtomicU64,
    pub text_bytes: AtomicU64,
    pub invalid_utf8: AtomicU64,
    pub lone_surrogates: AtomicU64,
    pub null_text: AtomicU64,
    pub broken_json: AtomicU64,
    pub missing_field: AtomicU64,
    pub not_a_string: AtomicU64,
    pub broken_files: AtomicU64,
    examples: Mutex<Vec<String>>,
}

impl Tally {
    pub fn example(&self, place: impl FnOnce() -> String) {
        let mut examples = self.examples.lock().expect("no panic under this lock");
        if examples.len() < EXAMPLES {
            examples.push(place());
        }
    }

    pub fn snapshot(&self) -> Counters {
        Counters {
            files: self.files.load(Relaxed),
            documents: self.documents.load(Relaxed),
            bytes_on_disk: self.bytes_on_disk.load(Relaxed),
            text_bytes: self.text_bytes.load(Relaxed),
            invalid_utf8: self.invalid_utf8.load(Relaxed),
            lone_surrogates: self.lone_surrogates.load(Relaxed),
            null_text: self.null_text.load(Relaxed),
            broken_json: self.broken_json.load(Relaxed),
            missing_field: self.missing_field.load(Relaxed),
            not_a_string: self.not_a_string.load(Relaxed),
            broken_files: self.broken_files.load(Relaxed),
            examples: self.examples.lock().expect("no panic under this lock").clone(),
        }
    }

    pub fn restore(&self, counters: Counters) {
        self.files.store(counters.files, Relaxed);
        self.documents.store(counters.documents, Relaxed);
        self.bytes_on_disk.store(counters.bytes_on_disk, Relaxed);
        self.text_bytes.store(counters.text_bytes, Relaxed);
        self.invalid_utf8.store(counters.invalid_utf8, Relaxed);
        self.lone_surrogates.store(counters.lone_surrogates, Relaxed);
        self.null_text.store(counters.null_text, Relaxed);
        self.broken_json.store(counters.broken_json, Relaxed);
        self.missing_field.store(counters.missing_field, Relaxed);
        self.not_a_string.store(counters.not_a_string, Relaxed);
        self.broken_files.store(counters.broken_files, Relaxed);
        *self.examples.lock().expect("no panic under this lock") = counters.examples;
    }
}

/// Adds to a counter. Relaxed: the counters order nothing, and snapshots that must add up are taken when no
/// worker is reading.
pub(super) fn add(counter: &AtomicU64, amount: u64) {
    if amount > 0 {
        counter.fetch_add(amount, Relaxed);
    }
}
