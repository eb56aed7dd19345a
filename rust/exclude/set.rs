//! The n-grams of an evaluation set: all of them in a file, and those of one pass in memory.
//!
//! The file is a grid (`dedup/grid.rs`) of one column; a row has [`ROW`] records, the last one fewer. A record is the
//! hash of an n-gram (u64) and where it occurs first: the number of its file (u32) and of the document in it (u32).
//! Records are sorted by hash, and each hash is there once.

use crate::atomic::temporary_name;
use crate::dedup::grid::{GridFile, GridWriter, Magic, commit};
use crate::error::Result;
use std::path::{Path, PathBuf};

pub const RECORD: usize = 16;
const MAGIC: Magic = *b"ramlngr1";
const READ_BLOCK: usize = 64 << 10;

/// Records in a row, the least that a pass can hold.
const ROW: usize = if cfg!(test) { 8 } else { 8 << 10 };

/// Slots per hash: 4 for 3 hashes.
const SLOTS: (usize, usize) = (4, 3);

/// The memory of a row in a [`Set`].
pub const ROW_MEMORY: usize = ROW * 8 * SLOTS.0 / SLOTS.1;

/// Enough for a few rows, and for building the file.
pub const LEAST_MEMORY: usize = 4 << 20;

/// An n-gram and where it occurs first. In the order of the fields, which is that of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    pub hash: u64,
    pub source: u32,
    pub document: u32,
}

impl Record {
    pub fn to_bytes(self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&self.hash.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.source.to_le_bytes());
        bytes[12..].copy_from_slice(&self.document.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Record {
        Record {
            hash: u64::from_le_bytes(bytes[..8].try_into().unwrap()),
            source: u32::from_le_bytes(bytes[8..12].try_into().unwrap()),
            document: u32::from_le_bytes(bytes[12..].try_into().unwrap()),
        }
    }
}

/// Writes records, which must be sorted; of those with the same hash only the first.
pub struct SetWriter {
    grid: GridWriter,
    path: PathBuf,
    temporary: PathBuf,
    written: u64,
    last: u64,
}

impl SetWriter {
    pub fn create(path: &Path) -> Result<SetWriter> {
        let temporary = temporary_name(path);
        let grid = GridWriter::create(&temporary, MAGIC, 1)?;
        // No n-gram has the hash 0.
        Ok(SetWriter { grid, path: path.to_owned(), temporary, written: 0, last: 0 })
    }

    pub fn push(&mut self, record: Record) -> Result<()> {
        if record.hash == self.last {
            return Ok(());
        }
        self.last = record.hash;
        self.grid.append(&record.to_bytes())?;
        self.written += 1;
        if self.written.is_multiple_of(ROW as u64) { self.grid.end_row() } else { Ok(()) }
    }

    /// Returns the number of hashes.
    pub fn commit(mut self) -> Result<u64> {
        if !self.written.is_multiple_of(ROW as u64) {
            self.grid.end_row()?;
        }
        self.grid.finish(self.written)?;
        commit(&self.temporary, &self.path)?;
        Ok(self.written)
    }
}

pub struct SetFile(GridFile);

impl SetFile {
    pub fn open(path: &Path) -> Result<SetFile> {
        let file = GridFile::open(path, MAGIC)?;
        if file.columns == 1 { Ok(SetFile(file)) } else { Err(file.damaged()) }
    }

    pub fn rows(&self) -> usize {
        self.0.rows()
    }

    /// Calls `each` with the records of some rows, in order.
    pub fn read(
        &self,
        rows: std::ops::Range<usize>,
        mut each: impl FnMut(Record) -> Result<()>,
    ) -> Result<()> {
        let mut block = vec![0; READ_BLOCK];
        let mut last = 0;
        for row in rows {
            let mut cell = self.0.cell(row, 0, RECORD)?;
            while let Some(bytes) = cell.next(&mut block)? {
                for bytes in bytes.chunks_exact(RECORD) {
                    let record = Record::from_bytes(bytes);
                    if record.hash <= last {
                        return Err(self.0.damaged());
                    }
                    last = record.hash;
                    each(record)?;
                }
            }
        }
        Ok(())
    }

    /// All records, one at a time.
    pub fn into_reader(self) -> SetReader {
        SetReader { file: self, row: 0, row_records: Vec::new(), at: 0 }
    }

    /// Where the n-grams with these hashes occur first, as (file, document); `None` for one that is not in the set.
    pub fn origins(&self, hashes: &[u64]) -> Result<Vec<Option<(u32, u32)>>> {
        let mut wanted: Vec<(u64, usize)> = hashes.iter().copied().zip(0..).collect();
        wanted.sort_unstable();
        let mut found = vec![None; hashes.len()];
        self.read(0..self.rows(), |record| {
            let first = wanted.partition_point(|(hash, _)| *hash < record.hash);
            for (_, at) in wanted[first..].iter().take_while(|(hash, _)| *hash == record.hash) {
                found[*at] = Some((record.source, record.document));
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// Holds one row at a time.
pub struct SetReader {
    file: SetFile,
    row: usize,
    row_records: Vec<Record>,
    at: usize,
}

impl SetReader {
    /// The memory of a reader.
    pub const MEMORY: usize = ROW * RECORD + READ_BLOCK;

    pub fn next(&mut self) -> Result<Option<Record>> {
        if self.at == self.row_records.len() {
            if self.row == self.file.rows() {
                return Ok(None);
            }
            (self.at, self.row) = (0, self.row + 1);
            let SetReader { file, row_records, row, .. } = self;
            row_records.clear();
            file.read(*row - 1..*row, |record| {
                row_records.push(record);
                Ok(())
            })?;
        }
        self.at += 1;
        Ok(self.row_records.get(self.at - 1).copied())
    }
}

/// Some rows of a file in memory, for lookups.
///
/// A hash's first slot is its position in the range of the hashes, scaled to the number of slots. Hashes are inserted in
/// order, each into the first free slot from its own on, so all slots are in hash order: a lookup ends at the first
/// larger hash or free slot, usually within one cache line.
pub struct Set {
    slots: Vec<u64>,
    first: u64,
    last: u64,
    scale: u64,
}

impl Set {
    pub fn load(file: &SetFile, rows: std::ops::Range<usize>) -> Result<Set> {
        let (mut first, mut last, mut count) = (u64::MAX, 0, 0);
        file.read(rows.clone(), |Record { hash, .. }| {
            (first, last, count) = (first.min(hash), hash, count + 1);
            Ok(())
        })?;
        let slots = count * SLOTS.0 / SLOTS.1 + 1;
        // Below 2^64, because the divisor is at least the number of slots.
        let scale = ((slots as u128) << 64) / u128::from(last.saturating_sub(first).max(slots as u64) + 1);
        let mut set = Set { slots: vec![0; slots], first, last, scale: scale as u64 };
        let mut next = 0;
        file.read(rows, |Record { hash, .. }| {
            let slot = set.slot(hash).max(next);
            if slot >= set.slots.len() {
                set.slots.push(0); // the last hashes may go past the end
            }
            set.slots[slot] = hash;
            next = slot + 1;
            Ok(())
        })?;
        Ok(set)
    }

    #[inline]
    fn slot(&self, hash: u64) -> usize {
        ((u128::from(hash - self.first) * u128::from(self.scale)) >> 64) as usize
    }

    #[inline]
    pub fn contains(&self, hash: u64) -> bool {
        if hash < self.first || hash > self.last {
            return false;
        }
        for &found in &self.slots[self.slot(hash)..] {
            if found >= hash || found == 0 {
                return found == hash;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(folder: &Path, hashes: &[u64]) -> SetFile {
        let path = folder.join("ngrams");
        let mut writer = SetWriter::create(&path).unwrap();
        for (at, &hash) in hashes.iter().enumerate() {
            writer.push(Record { hash, source: at as u32, document: 7 }).unwrap();
        }
        writer.commit().unwrap();
        SetFile::open(&path).unwrap()
    }

    proptest! {
        #[test]
        fn finds_what_it_has_in_any_rows(
            mut hashes in prop::collection::vec(prop_oneof![1u64..50, any::<u64>().prop_map(|hash| hash.max(1)),
                                                            (u64::MAX - 50)..=u64::MAX], 1..60),
            others in prop::collection::vec(any::<u64>(), 0..20),
        ) {
            let folder = tempfile::tempdir().unwrap();
            hashes.sort_unstable();
            let file = written(folder.path(), &hashes);
            let first = hashes.iter().position(|hash| *hash == hashes[hashes.len() / 2]).unwrap() as u32;
            prop_assert_eq!(file.origins(&[hashes[hashes.len() / 2], 0]).unwrap(), [Some((first, 7)), None]);
            hashes.dedup();
            let rows: Vec<&[u64]> = hashes.chunks(ROW).collect();
            prop_assert_eq!(file.rows(), rows.len());
            for start in 0..rows.len() {
                for end in start + 1..=rows.len() {
                    let set = Set::load(&file, start..end).unwrap();
                    let has = |hash: u64| rows[start..end].iter().any(|row| row.contains(&hash));
                    for &hash in hashes.iter().chain(&others) {
                        for near in [hash.wrapping_sub(1), hash, hash.wrapping_add(1)] {
                            prop_assert_eq!(set.contains(near), near != 0 && has(near));
                        }
                    }
                }
            }
            let mut reader = file.into_reader();
            let mut read = Vec::new();
            while let Some(record) = reader.next().unwrap() {
                read.push(record.hash);
            }
            prop_assert_eq!(read, hashes);
        }
    }

    #[test]
    fn damage_is_found() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), &(1..40).map(|n| n * 1_000_003).collect::<Vec<_>>());
        let path = folder.path().join("ngrams");
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&path, bytes).unwrap();
            let read = SetFile::open(&path).and_then(|file| Set::load(&file, 0..file.rows()));
            assert!(read.is_err(), "byte {at}");
        }
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(SetFile::open(&path).is_err());
    }
}
