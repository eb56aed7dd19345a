//! The output of a scan: the hash and index of every unit, grouped by partition.
//!
//! A task's file is a grid (`grid.rs`): a row for each time the buffer was full, a column for each partition. A
//! record is the hash (u128) and the unit's index within the task (u32), 20 bytes; within a cell the indices increase.

use super::grid::{GridWriter, Magic};
use crate::error::{Error, Result};
use std::path::Path;

pub const RECORD: usize = 20;
pub const MAGIC: Magic = *b"ramlrec1";

/// Bytes per buffered hash, and its record in the order of partitions.
const BUFFERED: usize = 16 + RECORD;

#[inline(always)]
pub fn partition(hash: u128, bits: u32) -> usize {
    // Two shifts, because a shift by all 128 bits would overflow.
    ((hash >> 64) as u64 >> 1 >> (63 - bits)) as usize
}

/// Writes the hashes of one task, in order. Larger buffers make longer cells, which are faster to read.
pub struct RecordWriter {
    grid: GridWriter,
    bits: u32,
    /// Hashes since the last row; the index of the first is `base`.
    hashes: Vec<u128>,
    capacity: usize,
    base: u64,
    /// Where the next record of each partition goes; one extra entry, so that counts can be summed in place.
    places: Vec<u32>,
    row: Vec<u8>,
}

impl RecordWriter {
    /// `path` is a temporary name; the caller renames it after `finish`. Takes `buffer_bytes`, plus 64 KB and 52 bytes
    /// per partition.
    pub fn create(path: &Path, partitions: u32, buffer_bytes: usize) -> Result<Self> {
        assert!(partitions.is_power_of_two());
        // Positions within a row are u32.
        let capacity = (buffer_bytes / BUFFERED).clamp(1, (u32::MAX as usize) / RECORD);
        Ok(RecordWriter {
            grid: GridWriter::create(path, MAGIC, partitions as usize)?,
            bits: partitions.ilog2(),
            hashes: Vec::with_capacity(capacity),
            capacity,
            base: 0,
            places: vec![0; partitions as usize + 1],
            row: Vec::new(),
        })
    }

    #[inline]
    pub fn push(&mut self, hash: u128) -> Result<()> {
        if self.hashes.len() == self.capacity {
            self.write_row()?;
        }
        self.hashes.push(hash);
        Ok(())
    }

    fn write_row(&mut self) -> Result<()> {
        if self.base + self.hashes.len() as u64 > 1 << 32 {
            return Err(Error::Invalid(
                "one task has more than 4,294,967,296 lines or documents: split its input into smaller files"
                    .into(),
            ));
        }
        // Allocates only once: no row is longer than the first.
        self.row.resize(self.hashes.len() * RECORD, 0);
        self.places.fill(0);
        for &hash in &self.hashes {
            self.places[partition(hash, self.bits) + 1] += RECORD as u32;
        }
        for n in 1..self.places.len() {
            self.places[n] += self.places[n - 1];
        }
        for (index, &hash) in (self.base..).zip(&self.hashes) {
            let place = &mut self.places[partition(hash, self.bits)];
            let record: &mut [u8; RECORD] = (&mut self.row[*place as usize..][..RECORD]).try_into().unwrap();
            record[..16].copy_from_slice(&hash.to_le_bytes());
            record[16..].copy_from_slice(&(index as u32).to_le_bytes());
            *place += RECORD as u32;
        }
        // Each place has advanced to where the next partition starts.
        self.grid.append_row(&self.row, &self.places[..self.places.len() - 1])?;
        self.base += self.hashes.len() as u64;
        self.hashes.clear();
        Ok(())
    }

    /// Returns how many hashes were pushed: the task's lines or documents.
    pub fn finish(mut self) -> Result<u64> {
        if !self.hashes.is_empty() {
            self.write_row()?;
        }
        self.grid.finish(self.base)?;
        Ok(self.base)
    }
}
