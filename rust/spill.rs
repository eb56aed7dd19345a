//! Sorted runs of (piece, count) on disk, and their merge.
//!
//! A run, byte by byte (all integers little-endian):
//!
//! ```text
//! records     varint length, the piece, varint count; ascending by (hash, piece)
//! 65 x u64    where each of the 64 partitions (the hash's top 6 bits) starts; the last is their end
//! u64         number of records
//! u64         xxh3-64 of everything before it
//! 8 bytes     "ramlrun1"
//! ```
//!
//! A run is written under a temporary name, synced and renamed, so a file with a run's name is complete.
//! The partitions of all runs can be merged in parallel and concatenated: the result is sorted.

use crate::atomic::{create_locked, temporary_name};
use crate::error::{Error, Result};
use crate::own_files::{self, damaged};
use crate::table::{CountTable, hash};
use crate::varint;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

pub const PARTITIONS: usize = 64;
/// The most runs that are merged, and open, at a time: a process may often have no more than 256 files open.
pub const FAN_IN: usize = 64;
const MAGIC: &[u8; 8] = b"ramlrun1";
const FOOTER: usize = (PARTITIONS + 1) * 8 + 8 + 8 + 8;
const WRITE_BUFFER: usize = 256 << 10;

#[inline(always)]
fn partition(hash: u64) -> usize {
    (hash >> (64 - PARTITIONS.ilog2())) as usize
}

pub struct RunWriter {
    file: File,
    path: PathBuf,
    temporary: PathBuf,
    buffer: Vec<u8>,
    digest: Xxh3,
    written: u64,
    records: u64,
    starts: [u64; PARTITIONS + 1],
    open: usize,
}

impl RunWriter {
    pub fn create(path: &Path) -> Result<Self> {
        let temporary = temporary_name(path);
        let file = create_locked(&temporary)?;
        Ok(RunWriter {
            file,
            path: path.to_owned(),
            temporary,
            buffer: Vec::with_capacity(WRITE_BUFFER + (16 << 10)),
            digest: Xxh3::new(),
            written: 0,
            records: 0,
            starts: [0; PARTITIONS + 1],
            open: 0,
        })
    }

    /// To be called in the order of (hash, piece).
    pub fn push(&mut self, piece: &[u8], hash: u64, count: u64) -> Result<()> {
        while self.open < partition(hash) {
            self.open += 1;
            self.starts[self.open] = self.written + self.buffer.len() as u64;
        }
        varint::put(&mut self.buffer, piece.len() as u64);
        self.buffer.extend_from_slice(piece);
        varint::put(&mut self.buffer, count);
        self.records += 1;
        if self.buffer.len() >= WRITE_BUFFER {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.digest.update(&self.buffer);
        self.file.write_all(&self.buffer).map_err(|error| Error::write(&self.temporary, error))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    pub fn finish(mut self) -> Result<Run> {
        let end = self.written + self.buffer.len() as u64;
        self.starts[self.open + 1..].fill(end);
        for start in self.starts {
            self.buffer.extend_from_slice(&start.to_le_bytes());
        }
        self.buffer.extend_from_slice(&self.records.to_le_bytes());
        self.flush()?;
        self.file
            .write_all(&self.digest.digest().to_le_bytes())
            .and_then(|()| self.file.write_all(MAGIC))
            .and_then(|()| self.file.sync_data())
            .and_then(|()| std::fs::rename(&self.temporary, &self.path))
            .map_err(|error| Error::write(&self.temporary, error))?;
        Ok(Run { path: self.path.clone(), starts: self.starts })
    }
}

impl Drop for RunWriter {
    fn drop(&mut self) {
        // Already renamed if the run is finished.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

/// Writes the contents of the table as a run and empties it.
pub fn spill(table: &mut CountTable, path: &Path) -> Result<Run> {
    let mut writer = RunWriter::create(path)?;
    table.for_each_sorted(|piece, hash, count| writer.push(piece, hash, count))?;
    table.clear();
    writer.finish()
}

/// A finished run. Its file is opened only to be read: a count may have more runs than a process may have files open.
#[derive(Debug)]
pub struct Run {
    pub path: PathBuf,
    starts: [u64; PARTITIONS + 1],
}

impl Run {
    /// A run of an interrupted count, after reading all of it: a damaged one must not be used.
    pub fn find_checked(path: &Path) -> Result<Self> {
        let io = |error| Error::io(path, error);

        let mut file = own_files::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        if length < FOOTER as u64 {
            return Err(damaged(path));
        }
        let mut digest = Xxh3::new();
        let mut left = length - 16;
        let mut block = vec![0; WRITE_BUFFER];
        while left > 0 {
            let take = left.min(block.len() as u64) as usize;
            file.read_exact(&mut block[..take]).map_err(io)?;
            digest.update(&block[..take]);
            left -= take as u64;
        }
        let mut footer = [0; FOOTER];
        file.read_exact_at(&mut footer, length - FOOTER as u64).map_err(io)?;
        let word = |at: usize| u64::from_le_bytes(footer[at..at + 8].try_into().unwrap());
        if &footer[FOOTER - 8..] != MAGIC || word(FOOTER - 16) != digest.digest() {
            return Err(damaged(path));
        }
        Ok(Run { path: path.to_owned(), starts: std::array::from_fn(|n| word(n * 8)) })
    }

    /// A finished run, without reading it; `sum` checks the partitions that are read.
    pub fn find(path: &Path) -> Result<Self> {
        let io = |error| Error::io(path, error);
        let file = own_files::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut footer = [0; FOOTER];
        if length < FOOTER as u64 {
            return Err(damaged(path));
        }
        file.read_exact_at(&mut footer, length - FOOTER as u64).map_err(io)?;
        let starts = std::array::from_fn(|n| u64::from_le_bytes(footer[n * 8..][..8].try_into().unwrap()));
        let ordered = starts.is_sorted() && starts[PARTITIONS] <= length;
        if &footer[FOOTER - 8..] != MAGIC || !ordered {
            return Err(damaged(path));
        }
        Ok(Run { path: path.to_owned(), starts })
    }

    pub fn open(self) -> Result<OpenRun> {
        let file = own_files::open(&self.path).map_err(|error| Error::io(&self.path, error))?;
        Ok(OpenRun { run: self, file })
    }
}

/// A run that is read, by any number of threads.
pub struct OpenRun {
    run: Run,
    file: File,
}

impl OpenRun {
    /// Reads exactly these bytes.
    fn read(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        self.file.read_exact_at(bytes, at).map_err(|error| Error::io(&self.run.path, error))
    }

    /// xxh3 of the bytes of a partition.
    pub fn sum(&self, partition: usize) -> Result<u64> {
        let (mut at, end) = (self.run.starts[partition], self.run.starts[partition + 1]);
        let mut digest = Xxh3::new();
        let mut block = vec![0; WRITE_BUFFER];
        while at < end {
            let take = (end - at).min(block.len() as u64) as usize;
            self.read(&mut block[..take], at)?;
            digest.update(&block[..take]);
            at += take as u64;
        }
        Ok(digest.digest())
    }

    fn cursor(&self, partition: usize, buffer: usize) -> Cursor<'_> {
        Cursor {
            run: self,
            next: self.run.starts[partition],
            end: self.run.starts[partition + 1],
            buffer: Vec::with_capacity(buffer),
            at: 0,
            hash: 0,
            piece: 0..0,
            count: 0,
        }
    }
}

/// Reads one partition of one run, a record at a time.
struct Cursor<'a> {
    run: &'a OpenRun,
    next: u64,
    end: u64,
    buffer: Vec<u8>,
    at: usize,
    hash: u64,
    piece: std::ops::Range<usize>,
    count: u64,
}

/// Two varints and the piece, with a margin: pieces have at most `MAX_PIECE` bytes (`count.rs`).
const LONGEST_RECORD: usize = 8 << 10;

impl Cursor<'_> {
    fn advance(&mut self) -> Result<bool> {
        if self.buffer.len() - self.at < LONGEST_RECORD && self.next < self.end {
            self.buffer.drain(..self.at);
            self.at = 0;
            let kept = self.buffer.len();
            let free = self.buffer.capacity().max(2 * LONGEST_RECORD) - kept;
            let take = (self.end - self.next).min(free as u64) as usize;
            self.buffer.resize(kept + take, 0);
            self.run.read(&mut self.buffer[kept..], self.next)?;
            self.next += take as u64;
        }
        if self.at == self.buffer.len() {
            return Ok(false);
        }
        let length = varint::get(&self.buffer, &mut self.at) as usize;
        self.piece = self.at..self.at + length;
        self.at += length;
        self.count = varint::get(&self.buffer, &mut self.at);
        self.hash = hash(&self.buffer[self.piece.clone()]);
        Ok(true)
    }

    fn piece(&self) -> &[u8] {
        &self.buffer[self.piece.clone()]
    }
}

/// Calls `each(piece, hash, count)` for every distinct piece of a partition over all runs, in order,
/// with `memory` bytes of read buffers.
pub fn merge_partition(
    runs: &[OpenRun],
    partition: usize,
    memory: usize,
    mut each: impl FnMut(&[u8], u64, u64) -> Result<()>,
) -> Result<()> {
    let buffer = (memory / runs.len().max(1)).clamp(2 * LONGEST_RECORD, 256 << 10);
    let mut cursors: Vec<Cursor> = runs.iter().map(|run| run.cursor(partition, buffer)).collect();
    let mut heap = BinaryHeap::with_capacity(cursors.len());
    for (n, cursor) in cursors.iter_mut().enumerate() {
        if cursor.advance()? {
            heap.push(Reverse((cursor.hash, n)));
        }
    }
    // The records of one hash: nearly always of a single piece; different pieces with the same hash are told apart by
    // their bytes. The vectors are reused for the next hash.
    let mut same: Vec<(Vec<u8>, u64)> = Vec::new();
    while let Some(&Reverse((hash, _))) = heap.peek() {
        let mut found = 0;
        while let Some(top) = heap.peek_mut().filter(|top| top.0.0 == hash) {
            let cursor = &mut cursors[top.0.1];
            match same[..found].iter_mut().find(|(piece, _)| piece == cursor.piece()) {
                Some((_, count)) => *count += cursor.count,
                None => {
                    if found == same.len() {
                        same.push(Default::default());
                    }
                    let (piece, count) = &mut same[found];
                    piece.clear();
                    piece.extend_from_slice(cursor.piece());
                    *count = cursor.count;
                    found += 1;
                }
            }
            replace(top, cursor)?;
        }
        same[..found].sort_unstable();
        for (piece, count) in &same[..found] {
            each(piece, hash, *count)?;
        }
    }
    Ok(())
}

fn replace(mut top: PeekMut<'_, Reverse<(u64, usize)>>, cursor: &mut Cursor<'_>) -> Result<()> {
    if cursor.advance()? {
        top.0.0 = cursor.hash;
    } else {
        PeekMut::pop(top);
    }
    Ok(())
}

/// Merges runs until at most `most` are left, and opens these: the last merge then has memory for a buffer per run.
pub fn reduce(
    mut runs: Vec<Run>,
    most: usize,
    memory: usize,
    mut name: impl FnMut() -> PathBuf,
) -> Result<Vec<OpenRun>> {
    let most = most.clamp(2, FAN_IN);
    while runs.len() > most {
        let group: Vec<OpenRun> = runs.drain(..most).map(Run::open).collect::<Result<_>>()?;
        let mut writer = RunWriter::create(&name())?;
        for partition in 0..PARTITIONS {
            merge_partition(&group, partition, memory, |piece, hash, count| writer.push(piece, hash, count))?;
        }
        runs.push(writer.finish()?);
    }
    runs.into_iter().map(Run::open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn merging_runs_adds_up(tables in prop::collection::vec(prop::collection::vec(("[ab]{1,20}|[a-z]{1,3}", 1u64..1000), 0..200), 0..9), most in 2usize..6) {
            let folder = tempfile::tempdir().unwrap();
            let mut oracle: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
            let mut runs = Vec::new();
            for (n, records) in tables.iter().enumerate() {
                let mut table = CountTable::new(1 << 20);
                for (piece, count) in records {
                    table.add(piece.as_bytes(), *count).unwrap();
                    *oracle.entry(piece.clone().into_bytes()).or_default() += count;
                }
                spill(&mut table, &folder.path().join(format!("{n}.run"))).unwrap();
                runs.push(Run::find_checked(&folder.path().join(format!("{n}.run"))).unwrap());
            }
            let mut extra = 0;
            let runs = reduce(runs, most, 1 << 16, || { extra += 1; folder.path().join(format!("r{extra}.run")) }).unwrap();
            prop_assert!(runs.len() <= most);
            let (mut found, mut last) = (BTreeMap::new(), None);
            for partition in 0..PARTITIONS {
                merge_partition(&runs, partition, 1 << 16, |piece, hash, count| {
                    assert!(last.clone().is_none_or(|last| last < (hash, piece.to_vec())));
                    last = Some((hash, piece.to_vec()));
                    found.insert(piece.to_vec(), count);
                    Ok(())
                }).unwrap();
            }
            prop_assert_eq!(found, oracle);
        }
    }

    #[test]
    fn a_damaged_run_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.run");
        let mut table = CountTable::new(1 << 20);
        (0..1000).for_each(|n| table.add(format!("piece {n}").as_bytes(), n).unwrap());
        spill(&mut table, &path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for (at, length) in [(0, whole.len()), (whole.len() / 2, whole.len()), (0, whole.len() - 1), (0, 0)] {
            let mut bytes = whole[..length].to_vec();
            if let Some(byte) = bytes.get_mut(at).filter(|_| length == whole.len()) {
                *byte ^= 1;
            }
            std::fs::write(&path, &bytes).unwrap();
            assert!(matches!(Run::find_checked(&path), Err(Error::Invalid(_))));
        }
        assert!(table.is_empty());
    }
}
