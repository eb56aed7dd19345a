//! Which documents may be similar: those that share a key.
//!
//! Of the documents with one key, in order, each of the first few is paired with all before it, and every later one with
//! the first two and the one before it: a million copies of one page give three million pairs, and not the square.
//!
//! The pairs of a partition are a grid (`dedup/grid.rs`): a column for each task, a row for each time the buffer was
//! full; the pairs of a cell, in order, are written as in `pair_code.rs`.

use super::Near;
use super::band_records::{self, key_range};
use super::cache::CacheFile;
use super::in_order::{Buffer, Source, in_order};
use super::ordinal::{Ordinal, Which};
use super::pair_code::{self, PairReader};
use crate::atomic::temporary_name;
use crate::crew::Progress;
use crate::dedup::grid::{GridFile, GridWriter, Magic, commit};
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

const MAGIC: Magic = *b"ramlprs1";

/// The documents of a key that are paired with all before them.
const ALL_PAIRS: usize = 8;
/// The first documents of a key that every later one is paired with.
const FIRST: usize = 2;

const READ_BLOCK: usize = 64 << 10;
/// The share of the memory that is for pairs; the rest is for keys.
const PAIRS_SHARE: usize = 4;

/// How to pair the documents of all partitions. Threads share it, each working on other partitions.
pub struct PairPlan {
    pub near: Near,
    /// The keys of each task, in the order of tasks.
    pub records: Vec<PathBuf>,
    pub caches: Vec<CacheFile>,
    /// Folder of the results.
    pub out: PathBuf,
    pub memory: usize,
}

pub fn pairs_file(out: &Path, partition: u32) -> PathBuf {
    out.join(format!("{partition:04}.pairs"))
}

/// Finds the pairs of one partition and commits its file.
pub fn find_pairs(partition: u32, plan: &PairPlan, progress: &Progress) -> Result<()> {
    let path = pairs_file(&plan.out, partition);
    let temporary = temporary_name(&path);
    let range = key_range(partition, plan.near.partitions);
    let mut keys = Keys { partition: partition as usize, range, plan, progress };
    let count = keys.count()?;
    let mut pairs = PairWriter::create(&temporary, plan.records.len(), plan.memory / PAIRS_SHARE)?;
    let mut buffer = Buffer::new(plan.memory / PAIRS_SHARE * (PAIRS_SHARE - 1));
    let mut bucket = Bucket::default();
    in_order(&mut keys, range, count, &mut buffer, &mut |key, ordinal| {
        bucket.add(key, Ordinal::from_number(ordinal), |later, earlier| pairs.push(later, earlier))
    })?;
    pairs.finish()?;
    progress.done.fetch_add(1, Relaxed);
    commit(&temporary, &path)
}

/// The documents with one key, as far as they are needed.
#[derive(Default)]
struct Bucket {
    key: u64,
    first: Vec<Ordinal>,
    previous: Option<Ordinal>,
}

impl Bucket {
    fn add(
        &mut self,
        key: u64,
        ordinal: Ordinal,
        mut pair: impl FnMut(Ordinal, Ordinal) -> Result<()>,
    ) -> Result<()> {
        if self.previous.is_none() || self.key != key {
            self.key = key;
            self.first.clear();
        } else if matches!(ordinal.which(), Which::Own { .. }) {
            let full = self.first.len() == ALL_PAIRS;
            let previous = self.previous.filter(|previous| self.first.last() != Some(previous));
            let shown = if full && previous.is_some() { FIRST } else { self.first.len() };
            self.first[..shown].iter().try_for_each(|&earlier| pair(ordinal, earlier))?;
            previous.into_iter().try_for_each(|earlier| pair(ordinal, earlier))?;
        }
        if self.first.len() < ALL_PAIRS {
            self.first.push(ordinal);
        }
        self.previous = Some(ordinal);
        Ok(())
    }
}

/// The keys of a partition, those of earlier runs first.
struct Keys<'a> {
    partition: usize,
    range: (u64, u64),
    plan: &'a PairPlan,
    progress: &'a Progress,
}

impl Keys<'_> {
    fn open(&self, path: &Path) -> Result<GridFile> {
        let file = GridFile::open(path, band_records::MAGIC)?;
        match file.columns == self.plan.near.partitions as usize {
            true => Ok(file),
            false => Err(file.damaged()),
        }
    }

    fn count(&self) -> Result<u64> {
        let mut count = 0;
        for path in &self.plan.records {
            let file = self.open(path)?;
            for row in 0..file.rows() {
                count += file.cell(row, self.partition, band_records::RECORD)?.records();
            }
        }
        for cache in &self.plan.caches {
            count += cache.count(self.range)?;
        }
        Ok(count)
    }
}

impl Source for Keys<'_> {
    fn scan(&mut self, each: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        let mut block = vec![0; READ_BLOCK];
        for (number, cache) in self.plan.caches.iter().enumerate() {
            self.progress.check()?;
            cache.keys(self.range, &mut block, |key, index| {
                each(key, Ordinal::cached(number as u32, index).number())
            })?;
        }
        for (task, path) in self.plan.records.iter().enumerate() {
            self.progress.check()?;
            let file = self.open(path)?;
            band_records::for_each(&file, self.partition, &mut block, |key, index| {
                each(key, Ordinal::own(task as u32, index).number())
            })?;
        }
        Ok(())
    }
}

struct PairWriter {
    grid: GridWriter,
    pairs: Vec<(Ordinal, Ordinal)>,
    capacity: usize,
    written: u64,
    bytes: Vec<u8>,
}

impl PairWriter {
    fn create(path: &Path, tasks: usize, memory: usize) -> Result<PairWriter> {
        let capacity = (memory / size_of::<(Ordinal, Ordinal)>()).max(1);
        let grid = GridWriter::create(path, MAGIC, tasks)?;
        Ok(PairWriter { grid, pairs: Vec::with_capacity(capacity), capacity, written: 0, bytes: Vec::new() })
    }

    fn push(&mut self, later: Ordinal, earlier: Ordinal) -> Result<()> {
        if self.pairs.len() == self.capacity {
            self.write_row()?;
        }
        self.pairs.push((later, earlier));
        Ok(())
    }

    fn write_row(&mut self) -> Result<()> {
        self.pairs.sort_unstable();
        self.pairs.dedup();
        let mut before = 0;
        for &(later, earlier) in &self.pairs {
            let Which::Own { task, index } = later.which() else { unreachable!("of this run") };
            while self.grid.column() < task as usize {
                self.grid.close_column();
                before = 0;
            }
            self.bytes.clear();
            pair_code::put(&mut self.bytes, before, task, index, earlier);
            self.grid.append(&self.bytes)?;
            before = index;
        }
        self.grid.end_row()?;
        self.written += self.pairs.len() as u64;
        self.pairs.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.write_row()?;
        self.grid.finish(self.written)
    }
}

/// The pairs of one task, from the files of all partitions: the later document's index, the earlier one's ordinal.
pub struct TaskPairs<'a> {
    pub files: &'a [PathBuf],
    pub task: u32,
    pub progress: &'a Progress,
}

impl TaskPairs<'_> {
    /// No fewer pairs than there are: each has two bytes at least.
    pub fn count(&self) -> Result<u64> {
        let mut count = 0;
        for path in self.files {
            let file = self.open(path)?;
            for row in 0..file.rows() {
                count += file.cell(row, self.task as usize, 1)?.records() / 2;
            }
        }
        Ok(count)
    }

    fn open(&self, path: &Path) -> Result<GridFile> {
        let file = GridFile::open(path, MAGIC)?;
        if (self.task as usize) < file.columns {
            return Ok(file);
        }
        Err(Error::Invalid(format!(
            "{} has no task {}: it is from another run, remove it and run the same command again",
            path.display(),
            self.task
        )))
    }
}

impl Source for TaskPairs<'_> {
    fn scan(&mut self, each: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        let mut block = vec![0; READ_BLOCK];
        for path in self.files {
            self.progress.check()?;
            let file = self.open(path)?;
            for row in 0..file.rows() {
                let mut cell = file.cell(row, self.task as usize, 1)?;
                let mut pairs = PairReader::new(self.task);
                while let Some(bytes) = cell.next(&mut block)? {
                    let read =
                        pairs.read(bytes, |later, earlier| each(u64::from(later), earlier.number()))?;
                    read.ok_or_else(|| file.damaged())?;
                }
                if !pairs.is_done() {
                    return Err(file.damaged());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_paired_with_all_and_many_with_some() {
        let (mut bucket, mut pairs) = (Bucket::default(), Vec::new());
        for n in 0..1000 {
            let ordinal = Ordinal::own(0, n);
            let pair = |later, earlier| {
                pairs.push((later, earlier));
                Ok(())
            };
            bucket.add(7, ordinal, pair).unwrap();
        }
        let of = |later: u32| -> Vec<Ordinal> {
            let later = Ordinal::own(0, later);
            pairs.iter().filter(|pair| pair.0 == later).map(|pair| pair.1).collect()
        };
        let own = |n: u32| Ordinal::own(0, n);
        assert_eq!(of(8), (0..8).map(own).collect::<Vec<_>>());
        assert_eq!(of(9), [own(0), own(1), own(8)]);
        assert_eq!(of(999), [own(0), own(1), own(998)]);
        pairs.clear();
        bucket.add(8, own(1000), |_, _| panic!("another key")).unwrap();
    }
}
