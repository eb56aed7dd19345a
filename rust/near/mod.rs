//! Near-duplicates among more documents than fit into memory (docs/design/near.md).
//!
//! ```text
//! write    task       -> the keys of each document's bands, by partition        (signature.rs, band_records.rs)
//! pair     partition  -> the documents that share a key                         (pairs.rs)
//! near     task       -> those pairs compared on their shingles; what is dropped (prepare/near.rs)
//! ```

pub mod band_records;
pub mod cache;
mod in_order;
pub mod left;
pub mod ordinal;
mod pair_code;
pub mod pairs;
pub mod shingles;
pub mod signature;

pub use in_order::{Buffer, Source, in_order};

use serde::{Deserialize, Serialize};

/// How documents are compared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Near {
    /// The least similarity of documents of which only the first is kept.
    pub threshold: f64,
    /// Documents are compared if they agree in all rows of a band.
    pub bands: usize,
    pub rows: usize,
    /// Parts into which the keys of bands are divided.
    pub partitions: u32,
}

const MOST_PARTITIONS: u64 = 4096;
const PARTITION_BYTES: u64 = 8 << 20;
/// Typical bytes of text per document: the number of partitions is planned with it before anything is read.
const USUAL_BYTES: u64 = 1024;

/// The number of partitions, determined by the input's size alone.
pub fn partitions(total_bytes: u64, bands: usize) -> u32 {
    let records = (total_bytes / USUAL_BYTES).saturating_mul((bands * band_records::RECORD) as u64);
    records.div_ceil(PARTITION_BYTES).clamp(1, MOST_PARTITIONS).next_power_of_two() as u32
}

/// The Jaccard similarity of two sets, each ascending; 0 if it is certainly below `least`.
pub fn similarity(one: &[u64], other: &[u64], least: f64) -> f64 {
    let (small, large) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    // Rounding is monotonic, so this is never below the quotient at the end.
    if small.is_empty() || (small.len() as f64 / large.len() as f64) < least {
        return 0.0;
    }
    let (mut a, mut b, mut common) = (0, 0, 0);
    while a < small.len() && b < large.len() {
        let (x, y) = (small[a], large[b]);
        common += usize::from(x == y);
        a += usize::from(x <= y);
        b += usize::from(y <= x);
    }
    common as f64 / (small.len() + large.len() - common) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarity_is_the_quotient() {
        assert_eq!(similarity(&[1, 2, 3, 4], &[2, 3, 4, 5], 0.5), 0.6);
        assert_eq!(similarity(&[1, 2, 3, 4], &[1, 2, 3, 4], 1.0), 1.0);
        assert_eq!(similarity(&[1], &[1, 2, 3, 4], 0.5), 0.0);
        assert_eq!(similarity(&[], &[], 0.1), 0.0);
    }

    #[test]
    fn partitions_follow_from_the_size() {
        assert_eq!(partitions(0, 16), 1);
        assert_eq!(partitions(1 << 30, 16), 32);
        assert_eq!(partitions(1 << 60, 16), 4096);
    }
}
