//! Exact duplicates among more lines or documents than fit into memory (docs/design/dedup.md).
//!
//! ```text
//! scan     task -> RecordWriter -> one file per task: (hash, index), partition by partition
//! settle   partition, all tasks -> the indices to drop, and the hashes that are new
//! write    task -> Drops: is this index to be dropped?
//! ```
//!
//! Of all units with the same hash, the first in the order of (task, index) is kept. Nothing else matters: not the
//! partitions, the memory, the threads, or the order in which partitions are settled.
//!
//! A hash has 128 bits: among 10 billion different lines, the probability that any two share one is below 1 in 10^18.

mod cache;
mod drops;
pub(crate) mod grid;
mod records;
mod set;
mod settle;
pub(crate) mod tail;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use cache::{CacheFile, Listing, commit_cache, open_caches};
pub(crate) use cache::{cache_files, damaged as cache_damaged};
pub use drops::Drops;
pub use records::RecordWriter;
pub use settle::{SettlePlan, SettleSummary, drop_file, fresh_file, settle};

/// What is compared to find duplicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum Unit {
    Line = 1,
    Document = 2,
}

impl Unit {
    /// Typical bytes of text per unit: the number of partitions is planned with it before anything is read.
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

/// The least sensible `SettlePlan::memory`: a set of 1 MB and its buffers.
pub const LEAST_MEMORY: usize = 2 << 20;

/// The number of partitions, determined by the input's size alone: a power of two, so that a partition is a hash prefix
/// and partition order is hash order.
pub fn partitions(total_bytes: u64, unit: Unit) -> u32 {
    let records = (total_bytes / unit.usual_bytes()).saturating_mul(records::RECORD as u64);
    records.div_ceil(PARTITION_BYTES).clamp(1, MOST_PARTITIONS).next_power_of_two() as u32
}
