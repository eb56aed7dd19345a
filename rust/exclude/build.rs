//! Reads an evaluation set and writes the sorted file of its n-grams.
//!
//! Records are collected in a buffer of known size; a full one is sorted and written as a run, and runs are merged when
//! there are [`FAN_IN`] of them, so neither memory nor the number of open files depends on the size of the set.

use super::set::{Record, SetFile, SetReader, SetWriter};
use crate::clean::{self, Cleaner, Dropped, Verdict};
use crate::crew::Progress;
use crate::documents::{Documents, Limits};
use crate::error::{Error, Result};
use crate::source::Sources;
use crate::words::{Ngrams, Words};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

const FAN_IN: usize = if cfg!(test) { 3 } else { 8 };

/// What the set consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Built {
    pub documents: u64,
    /// Documents with fewer words than an n-gram has: they cannot be found anywhere.
    pub too_short: u64,
    /// Different n-grams.
    pub ngrams: u64,
}

pub struct Reading {
    pub limits: Limits,
    /// Only the normalization is used: a document is not dropped, or it could not be kept out.
    pub clean: clean::Settings,
    pub n: usize,
    /// For the buffer of records.
    pub memory: usize,
}

/// Writes the n-grams of all documents to `path`; runs are written next to it.
pub fn build(sources: &Sources, reading: Reading, path: &Path, progress: &Progress) -> Result<Built> {
    let Reading { limits, clean, n, memory } = reading;
    let mut cleaner = Cleaner::new(clean::Settings { filter: false, ..clean });
    let mut runs = Runs::new(path, memory);
    let mut built = Built::default();
    let mut ngrams = Ngrams::new(n);
    let mut documents = Documents::new(sources, limits);
    while let Some(document) = documents.next()? {
        // The parts of a document that was cut are one text.
        if document.part == 0 {
            ngrams.clear();
            built.documents += 1;
        }
        let last_part = document.last_part;
        let source = u32::try_from(document.file).unwrap_or(u32::MAX);
        let number = u32::try_from(document.document).unwrap_or(u32::MAX);
        if let Verdict::Keep(text) = cleaner.clean(document.text, &mut Dropped::default()) {
            for word in Words::of(text) {
                if let Some(ngram) = ngrams.push(word) {
                    runs.push(Record { hash: ngram.hash, source, document: number })?;
                }
            }
        }
        built.too_short += u64::from(last_part && ngrams.words_seen() < n as u64);
        progress.check()?;
        progress.done.store(sources.counters().bytes_on_disk, Relaxed);
    }
    built.ngrams = runs.finish(path)?;
    Ok(built)
}

struct Runs {
    records: Vec<Record>,
    capacity: usize,
    stem: PathBuf,
    paths: Vec<PathBuf>,
    next: u32,
}

impl Runs {
    fn new(stem: &Path, memory: usize) -> Runs {
        let capacity = memory.saturating_sub(FAN_IN * SetReader::MEMORY) / size_of::<Record>();
        Runs {
            records: Vec::new(),
            capacity: capacity.max(8),
            stem: stem.to_owned(),
            paths: Vec::new(),
            next: 0,
        }
    }

    fn push(&mut self, record: Record) -> Result<()> {
        if self.records.len() == self.capacity {
            self.shrink()?;
        }
        if self.records.capacity() == self.records.len() {
            // Never beyond the limit, which doubling could exceed.
            let more = self.records.len().max(1024).min(self.capacity - self.records.len());
            self.records.reserve_exact(more);
        }
        self.records.push(record);
        Ok(())
    }

    /// Makes space: n-grams that occur again and again take none.
    fn shrink(&mut self) -> Result<()> {
        self.sort();
        if self.records.len() <= self.capacity / 2 {
            return Ok(());
        }
        let path = self.run_path();
        let mut writer = SetWriter::create(&path)?;
        self.records.drain(..).try_for_each(|record| writer.push(record))?;
        writer.commit()?;
        self.paths.push(path);
        if self.paths.len() == FAN_IN {
            let path = self.run_path();
            self.merge(&path)?;
            self.paths.push(path);
        }
        Ok(())
    }

    fn run_path(&mut self) -> PathBuf {
        self.next += 1;
        self.stem.with_extension(format!("run{}", self.next))
    }

    fn sort(&mut self) {
        self.records.sort_unstable();
        self.records.dedup_by_key(|record| record.hash);
    }

    /// Merges all runs into a file and removes them.
    fn merge(&mut self, path: &Path) -> Result<u64> {
        let mut readers = Vec::new();
        let mut heap = BinaryHeap::new();
        for path in &self.paths {
            let mut reader = SetFile::open(path)?.into_reader();
            if let Some(record) = reader.next()? {
                heap.push(Reverse((record, readers.len())));
            }
            readers.push(reader);
        }
        let mut writer = SetWriter::create(path)?;
        while let Some(Reverse((record, from))) = heap.pop() {
            writer.push(record)?;
            if let Some(next) = readers[from].next()? {
                heap.push(Reverse((next, from)));
            }
        }
        let written = writer.commit()?;
        for path in self.paths.drain(..) {
            std::fs::remove_file(&path).map_err(|error| Error::write(&path, error))?;
        }
        Ok(written)
    }

    fn finish(mut self, path: &Path) -> Result<u64> {
        self.sort();
        if !self.paths.is_empty() {
            let last = self.run_path();
            let mut writer = SetWriter::create(&last)?;
            self.records.drain(..).try_for_each(|record| writer.push(record))?;
            writer.commit()?;
            self.records = Vec::new();
            self.paths.push(last);
            return self.merge(path);
        }
        let mut writer = SetWriter::create(path)?;
        self.records.drain(..).try_for_each(|record| writer.push(record))?;
        writer.commit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_memory_gives_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let records: Vec<Record> = (0..2000u32)
            .map(|n| Record {
                hash: u64::from(n * 7919 % 1009) * 1_000_000_007 + 1,
                source: n / 100,
                document: n,
            })
            .collect();
        let mut files = Vec::new();
        for (at, memory) in [0, 50 * 16, 1 << 20].into_iter().enumerate() {
            let path = folder.path().join(format!("{at}"));
            let mut runs = Runs::new(&path, FAN_IN * SetReader::MEMORY + memory);
            records.iter().try_for_each(|record| runs.push(*record)).unwrap();
            assert_eq!(runs.finish(&path).unwrap(), 1009);
            files.push(std::fs::read(&path).unwrap());
        }
        assert_eq!(files[0], files[1]);
        assert_eq!(files[0], files[2]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}
