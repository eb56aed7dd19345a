//! Counters of what was read and what was skipped.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

/// How many places of skipped input are kept as examples; the rest is only counted.
const EXAMPLES: usize = 8;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A snapshot. After all files are read: every non-blank line of jsonl and every row of parquet is in exactly
        /// one of `documents`, `broken_json`, `missing_field`, `not_a_string` and `null_text`.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// The first few skipped places, "FILE:LINE what is wrong".
            pub examples: Vec<String>,
        }

        impl Counters {
            /// Every counter with its name.
            pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }

        /// The counters while all workers count.
        #[derive(Default)]
        pub(super) struct Tally {
            $(pub $name: AtomicU64,)*
            examples: Mutex<Vec<String>>,
        }

        impl Tally {
            pub fn snapshot(&self) -> Counters {
                Counters { $($name: self.$name.load(Relaxed),)* examples: self.examples().clone() }
            }

            pub fn restore(&self, counters: Counters) {
                $(self.$name.store(counters.$name, Relaxed);)*
                *self.examples() = counters.examples;
            }
        }
    };
}

counters! {
    /// Files read to their end; a file read in parts is counted with its first part.
    files,
    /// Documents that ended, including empty ones.
    documents,
    /// Bytes of the files consumed, compressed if they are: for progress.
    bytes_on_disk,
    /// Bytes of text in the fragments returned.
    text_bytes,
    /// Invalid UTF-8 sequences replaced by U+FFFD.
    invalid_utf8,
    /// Escapes like \ud800 in jsonl texts that are not a character, replaced by U+FFFD.
    lone_surrogates,
    /// Parquet rows whose text is null.
    null_text,
    /// Lines skipped because they are not a JSON object.
    broken_json,
    /// Lines skipped because they lack the text field.
    missing_field,
    /// Lines skipped because the text field is not a string.
    not_a_string,
    /// Files skipped from where they are damaged; for a file read in parts, the number of such parts.
    broken_files,
}

impl Tally {
    pub fn example(&self, place: impl FnOnce() -> String) {
        let mut examples = self.examples();
        if examples.len() < EXAMPLES {
            examples.push(place());
        }
    }

    fn examples(&self) -> MutexGuard<'_, Vec<String>> {
        self.examples.lock().expect("no panic under this lock")
    }
}

/// Adds to a counter. Relaxed, because nothing is ordered by the counters, and snapshots that must add up are taken
/// when no worker is reading.
pub(super) fn add(counter: &AtomicU64, amount: u64) {
    if amount > 0 {
        counter.fetch_add(amount, Relaxed);
    }
}
