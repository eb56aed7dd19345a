//! Exact duplicates among more lines or documents than memory holds (docs/design/dedup.md).
//!
//! ```text
//! scan     task -> RecordWriter -> one file a task: (hash, index), partition by partition
//! settle   partition, all tasks -> the indices to leave out, and the hashes that are new
//! write    task -> Drops: is this index to be left out?
//! ```
//!
//! Of units with one hash the first in the order of (task, index) stays. Nothing else has a say: not the
//! partitions, the memory, the threads, or the order in which partitions are settled.
//!
//! A hash has 128 bits: among 10 billion different lines the odds that any two share one are below 1 in 10^18.

mod cache;
mod drops;
mod grid;
mod records;
mod set;
mod settle;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use cache::{CacheFile, commit_cache, open_caches};
pub use drops::Drops;
pub use records::{RecordSummary, RecordWriter};
pub use settle::{SettlePlan, SettleSummary, drop_file, fresh_file, settle};

/// What is compared with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum Unit {
    Line = 1,
    Document = 2,
}

impl Unit {
    /// Bytes of text for each unit, roughly: partitions are planned by it before anything is read.
    fn usual_bytes(self) -> u64 {
        match self {
            Unit::Line => 32,
            Unit::Document => 1024,
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Unit::Line => "lines",
            Unit::Document => "documents",
        }
    }
}

const MOST_PARTITIONS: u64 = 4096;
const PARTITION_BYTES: u64 = 32 << 20;

/// Least `SettlePlan::memory` that is worth running with: a set of 1 MB and the buffers around it.
pub const LEAST_MEMORY: usize = 2 << 20;

/// Partitions, fixed by the input's size alone: a power of two, so that a partition is a hash prefix and
/// partition order is hash order.
pub fn partitions(total_bytes: u64, unit: Unit) -> u32 {
    let records = (total_bytes / unit.usual_bytes()).saturating_mul(records::RECORD as u64);
    records.div_ceil(PARTITION_BYTES).clamp(1, MOST_PARTITIONS).next_power_of_two() as u32
}
