//! What a run keeps for later runs: `DIR/<run id>.near`, the band keys and the shingles of every document it kept.
//!
//! A grid of one column (`dedup/grid.rs`), so that every part that is read alone has a checksum. Its rows:
//!
//! ```text
//! keys       up to 4096 records each: key (u64), number of the document (u32); ascending over all rows
//! shingles   about 32 KB each: per document its number, the number of its shingles, and their hashes, ascending; each
//!            number as its difference from the one before, as a varint (the first of a row as it is)
//! first key of each row of keys (u64)
//! first document of each row of shingles (u32)
//! JSON       how it was made
//! ```
//!
//! A cache may be far larger than what a run adds to it, so nothing of a file stays in memory: rows are found by
//! bisection of these lists on disk, and while a file is written they are collected on disk too.

use super::Near;
use super::in_order::{Buffer, Source, in_order};
use crate::atomic::create_folder;
use crate::dedup::grid::{GridFile, GridWriter, Listed, Magic, commit};
use crate::dedup::tail::Tail;
use crate::dedup::{Listing, cache_damaged, cache_files};
use crate::error::{Error, Result, option};
use crate::varint;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: Magic = *b"ramlnea1";
const SUFFIX: &str = "near";
const KEY: usize = 12;
const KEYS: usize = 4096;
const SHINGLES: usize = 32 << 10;
/// Of the definition of a shingle.
const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Made {
    shingles: u32,
    threshold: f64,
    bands: usize,
    rows: usize,
    fingerprint: String,
}

impl Made {
    fn by(near: &Near, fingerprint: &str) -> Made {
        let Near { threshold, bands, rows, .. } = *near;
        Made { shingles: VERSION, threshold, bands, rows, fingerprint: fingerprint.into() }
    }

    fn check(&self, wanted: &Made, path: &Path) -> Result<()> {
        let what = if self.shingles != wanted.shingles {
            "with other shingles".into()
        } else if (self.threshold, self.bands, self.rows) != (wanted.threshold, wanted.bands, wanted.rows) {
            format!("with the similarity {}, not {}", self.threshold, wanted.threshold)
        } else if self.fingerprint != wanted.fingerprint {
            "with different cleaning settings or limits of tokens".into()
        } else {
            return Ok(());
        };
        Err(Error::Invalid(format!(
            "{} was made {what}, so its documents cannot be compared: use the same settings, or choose another {}",
            path.display(),
            option("dedup_cache")
        )))
    }
}

/// The documents of one earlier run.
#[derive(Clone)]
pub struct CacheFile {
    path: Arc<PathBuf>,
    file: Arc<GridFile>,
    first_keys: Listed<8>,
    first_documents: Listed<4>,
}

/// The listed files, sorted by name: `Ordinal::cached` has the position of one among them.
pub fn open_caches(
    folder: &Path,
    listing: &Listing,
    near: &Near,
    fingerprint: &str,
) -> Result<Vec<CacheFile>> {
    let wanted = Made::by(near, fingerprint);
    cache_files(folder, listing, SUFFIX)?.into_iter().map(|path| CacheFile::open(path, &wanted)).collect()
}

impl CacheFile {
    fn open(path: PathBuf, wanted: &Made) -> Result<CacheFile> {
        let opened = || -> Result<(GridFile, Listed<8>, Listed<4>, Made)> {
            let file = GridFile::open_on_disk(&path, MAGIC)?;
            let last = file.rows().checked_sub(3).filter(|_| file.columns == 1);
            let last = last.ok_or_else(|| file.damaged())?;
            let made = serde_json::from_slice(&file.whole(last + 2)?).map_err(|_| file.damaged())?;
            let (keys, documents) = (file.listed(last)?, file.listed(last + 1)?);
            match keys.count + documents.count == last {
                true => Ok((file, keys, documents, made)),
                false => Err(file.damaged()),
            }
        };
        let (file, first_keys, first_documents, made) = opened().map_err(|error| explained(&path, error))?;
        made.check(wanted, &path)?;
        Ok(CacheFile { file: Arc::new(file), path: Arc::new(path), first_keys, first_documents })
    }

    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The rows that may have keys of the range.
    fn rows_of(&self, (first, last): (u64, u64)) -> Result<std::ops::Range<usize>> {
        let before = |is_before: &dyn Fn(u64) -> bool| {
            let found = self.file.partition_point(self.first_keys, |key| is_before(u64::from_le_bytes(key)));
            found.map_err(|error| explained(&self.path, error))
        };
        let start = before(&|key| key < first)?.saturating_sub(1);
        Ok(start..before(&|key| key <= last)?.max(start))
    }

    /// No fewer keys than the range has.
    pub fn count(&self, range: (u64, u64)) -> Result<u64> {
        Ok((self.rows_of(range)?.len() * KEYS) as u64)
    }

    /// Calls `each` with the keys of the range in order, and their documents' numbers.
    pub fn keys(
        &self,
        (first, last): (u64, u64),
        block: &mut [u8],
        mut each: impl FnMut(u64, u32) -> Result<()>,
    ) -> Result<()> {
        for row in self.rows_of((first, last))? {
            let mut cell = self.file.cell(row, 0, KEY).map_err(|error| explained(&self.path, error))?;
            while let Some(bytes) = cell.next(block).map_err(|error| explained(&self.path, error))? {
                for record in bytes.chunks_exact(KEY) {
                    let key = u64::from_le_bytes(record[..8].try_into().unwrap());
                    if (first..=last).contains(&key) {
                        each(key, u32::from_le_bytes(record[8..].try_into().unwrap()))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The shingles of a document.
    pub fn set(&self, document: u32) -> Result<Vec<u64>> {
        let is_before = |first| u32::from_le_bytes(first) <= document;
        let found = || -> Result<Option<Vec<u64>>> {
            let row = self.file.partition_point(self.first_documents, is_before)?;
            let Some(row) = row.checked_sub(1) else { return Ok(None) };
            let bytes = self.file.whole(self.first_keys.count + row)?;
            let (mut at, mut number) = (0, 0);
            while at < bytes.len() {
                number += varint::get(&bytes, &mut at);
                let count = varint::get(&bytes, &mut at);
                let wanted = number == u64::from(document);
                let (mut set, mut hash) = (Vec::new(), 0u64);
                for _ in 0..count {
                    if at >= bytes.len() {
                        return Ok(None);
                    }
                    hash = hash.wrapping_add(varint::get(&bytes, &mut at));
                    if wanted {
                        set.push(hash);
                    }
                }
                if wanted {
                    return Ok(Some(set));
                }
            }
            Ok(None)
        };
        let found = found().map_err(|error| explained(&self.path, error))?;
        found.ok_or_else(|| cache_damaged(&self.path))
    }
}

/// Damage of a cache is fixed differently from that of a temporary file.
fn explained(path: &Path, error: Error) -> Error {
    match error {
        Error::Invalid(_) => cache_damaged(path),
        other => other,
    }
}

/// Writes the file of a run.
pub struct CacheWriter {
    grid: GridWriter,
    temporary: PathBuf,
    path: PathBuf,
    made: Made,
    keys: Vec<u8>,
    first_keys: Tail,
    shingles: Vec<u8>,
    first_documents: Tail,
    last_document: u32,
    documents: u64,
}

impl CacheWriter {
    pub fn create(folder: &Path, run_id: &str, near: &Near, fingerprint: &str) -> Result<CacheWriter> {
        create_folder(folder)?;
        let temporary = folder.join(format!("{run_id}.{SUFFIX}.tmp"));
        Ok(CacheWriter {
            grid: GridWriter::create(&temporary, MAGIC, 1)?,
            first_keys: Tail::new(&temporary),
            first_documents: Tail::new(&temporary),
            temporary,
            path: folder.join(format!("{run_id}.{SUFFIX}")),
            made: Made::by(near, fingerprint),
            keys: Vec::new(),
            shingles: Vec::new(),
            last_document: 0,
            documents: 0,
        })
    }

    /// Adds the keys of `source` in a range, in order; the ranges of all calls ascend. All keys come before any set.
    pub fn add_keys(
        &mut self,
        source: &mut dyn Source,
        range: (u64, u64),
        count: u64,
        buffer: &mut Buffer,
    ) -> Result<()> {
        in_order(source, range, count, buffer, &mut |key, document| {
            if self.keys.is_empty() {
                self.first_keys.push(&key.to_le_bytes())?;
            }
            self.keys.extend_from_slice(&key.to_le_bytes());
            self.keys.extend_from_slice(&(document as u32).to_le_bytes());
            if self.keys.len() == KEYS * KEY { self.end_keys() } else { Ok(()) }
        })
    }

    fn end_keys(&mut self) -> Result<()> {
        if !self.keys.is_empty() {
            self.grid.append(&self.keys)?;
            self.grid.end_row()?;
            self.keys.clear();
        }
        Ok(())
    }

    /// Adds the shingles of a document, ascending; the documents' numbers ascend too.
    pub fn add_set(&mut self, document: u32, set: &[u64]) -> Result<()> {
        self.end_keys()?;
        if self.shingles.len() >= SHINGLES {
            self.end_shingles()?;
        }
        if self.shingles.is_empty() {
            self.first_documents.push(&document.to_le_bytes())?;
            self.last_document = 0;
        }
        varint::put(&mut self.shingles, u64::from(document - self.last_document));
        varint::put(&mut self.shingles, set.len() as u64);
        let mut before = 0;
        for &hash in set {
            varint::put(&mut self.shingles, hash - before);
            before = hash;
        }
        self.last_document = document;
        self.documents += 1;
        Ok(())
    }

    fn end_shingles(&mut self) -> Result<()> {
        if !self.shingles.is_empty() {
            self.grid.append(&self.shingles)?;
            self.grid.end_row()?;
            self.shingles = Vec::new();
        }
        Ok(())
    }

    pub fn commit(mut self) -> Result<()> {
        self.end_keys()?;
        self.end_shingles()?;
        for list in [self.first_keys, self.first_documents] {
            list.read(|numbers| self.grid.append(numbers))?;
            self.grid.end_row()?;
        }
        self.grid.append(&serde_json::to_vec(&self.made).expect("plain data"))?;
        self.grid.end_row()?;
        self.grid.finish(self.documents)?;
        commit(&self.temporary, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Records(Vec<(u64, u64)>);

    impl Source for Records {
        fn scan(&mut self, each: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
            self.0.iter().try_for_each(|&(key, document)| each(key, document))
        }
    }

    #[test]
    fn rows_are_found_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let near = Near { threshold: 0.8, bands: 16, rows: 8, partitions: 1 };
        let keys: Vec<(u64, u64)> = (0..3 * KEYS as u64 + 5).map(|n| (n / 2 * 1000, n)).collect();
        let set =
            |document: u32| -> Vec<u64> { (0..40).map(|n| u64::from(document) << 8 | (n << 40)).collect() };
        let mut writer = CacheWriter::create(folder.path(), "me", &near, "alike").unwrap();
        let (mut source, count) = (Records(keys.clone()), keys.len() as u64);
        writer.add_keys(&mut source, (0, u64::MAX), count, &mut Buffer::new(1 << 20)).unwrap();
        let documents = || (0..2000).step_by(3);
        documents().for_each(|document| writer.add_set(document, &set(document)).unwrap());
        writer.commit().unwrap();
        let size = std::fs::metadata(folder.path().join("me.near")).unwrap().len();
        let listing = Listing::from([("me.near".to_string(), size)]);
        let [file] = &open_caches(folder.path(), &listing, &near, "alike").unwrap()[..] else {
            panic!("one")
        };
        assert!(file.first_keys.count == 4 && file.first_documents.count > 3);
        let mut block = vec![0; 1000];
        for range in [(0, u64::MAX), (1, 999), (5000, 5000), (2_048_000, 4_097_000), (u64::MAX, u64::MAX)] {
            let mut found = Vec::new();
            let add = |key, document: u32| {
                found.push((key, u64::from(document)));
                Ok(())
            };
            file.keys(range, &mut block, add).unwrap();
            let wanted = keys.iter().filter(|(key, _)| (range.0..=range.1).contains(key));
            assert_eq!(found, wanted.copied().collect::<Vec<_>>());
            assert!(file.count(range).unwrap() >= found.len() as u64);
        }
        documents().for_each(|document| assert_eq!(file.set(document).unwrap(), set(document)));
        assert!(file.set(1).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
