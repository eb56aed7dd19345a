//! The keys of a task's documents, grouped by partition.
//!
//! A grid (`dedup/grid.rs`): a row for each time the buffer was full, a column for each partition. A record is the key
//! (u64) and the document's index within the task (u32); within a cell the indices increase. The partition is the first
//! bits of the key.

use crate::dedup::grid::{GridFile, GridWriter, Magic};
use crate::error::Result;
use std::path::Path;

pub const RECORD: usize = 12;
pub const MAGIC: Magic = *b"ramlbnd1";

/// Bytes per buffered key, and its record in the order of partitions.
const BUFFERED: usize = 16 + RECORD;

/// The keys of a partition: the first and the last.
pub fn key_range(partition: u32, partitions: u32) -> (u64, u64) {
    let bits = partitions.ilog2();
    let first = u64::from(partition).checked_shl(64 - bits).unwrap_or(0);
    (first, first | u64::MAX.checked_shr(bits).unwrap_or(0))
}

/// Calls `each` with the key and the index of every record of a partition.
pub fn for_each(
    file: &GridFile,
    partition: usize,
    block: &mut [u8],
    mut each: impl FnMut(u64, u32) -> Result<()>,
) -> Result<()> {
    for row in 0..file.rows() {
        let mut cell = file.cell(row, partition, RECORD)?;
        while let Some(bytes) = cell.next(block)? {
            for record in bytes.chunks_exact(RECORD) {
                let key = u64::from_le_bytes(record[..8].try_into().unwrap());
                let index = u32::from_le_bytes(record[8..].try_into().unwrap());
                each(key, index)?;
            }
        }
    }
    Ok(())
}

pub struct BandWriter {
    grid: GridWriter,
    bits: u32,
    keys: Vec<(u64, u32)>,
    capacity: usize,
    /// Where the next record of each partition goes; one extra entry, so that counts can be summed in place.
    places: Vec<u32>,
    row: Vec<u8>,
}

impl BandWriter {
    /// `path` is a temporary name. Takes `buffer_bytes`, plus 64 KB and 52 bytes per partition.
    pub fn create(path: &Path, partitions: u32, buffer_bytes: usize) -> Result<BandWriter> {
        assert!(partitions.is_power_of_two());
        let capacity = (buffer_bytes / BUFFERED).clamp(1, u32::MAX as usize / RECORD);
        Ok(BandWriter {
            grid: GridWriter::create(path, MAGIC, partitions as usize)?,
            bits: partitions.ilog2(),
            keys: Vec::with_capacity(capacity),
            capacity,
            places: vec![0; partitions as usize + 1],
            row: Vec::new(),
        })
    }

    #[inline]
    fn partition(&self, key: u64) -> usize {
        // Two shifts, because a shift by all 64 bits would overflow.
        (key >> 1 >> (63 - self.bits)) as usize
    }

    #[inline]
    pub fn push(&mut self, key: u64, index: u32) -> Result<()> {
        if self.keys.len() == self.capacity {
            self.write_row()?;
        }
        self.keys.push((key, index));
        Ok(())
    }

    fn write_row(&mut self) -> Result<()> {
        self.row.resize(self.keys.len() * RECORD, 0);
        self.places.fill(0);
        for &(key, _) in &self.keys {
            let partition = self.partition(key);
            self.places[partition + 1] += RECORD as u32;
        }
        for n in 1..self.places.len() {
            self.places[n] += self.places[n - 1];
        }
        for &(key, index) in &self.keys {
            let partition = self.partition(key);
            let at = self.places[partition] as usize;
            self.row[at..at + 8].copy_from_slice(&key.to_le_bytes());
            self.row[at + 8..at + RECORD].copy_from_slice(&index.to_le_bytes());
            self.places[partition] += RECORD as u32;
        }
        // Each place has advanced to where the next partition starts.
        self.grid.append_row(&self.row, &self.places[..self.places.len() - 1])?;
        self.keys.clear();
        Ok(())
    }

    /// `documents` is the number of documents that the indices count.
    pub fn finish(mut self, documents: u64) -> Result<()> {
        if !self.keys.is_empty() {
            self.write_row()?;
        }
        self.grid.finish(documents)
    }
}
