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

use super::Near;
use super::in_order::{Buffer, Source, in_order};
use crate::atomic::create_folder;
use crate::dedup::grid::{GridFile, GridWriter, Magic, commit};
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
            "with different cleaning settings".into()
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
    first_keys: Arc<Vec<u64>>,
    first_documents: Arc<Vec<u32>>,
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
        let opened = || -> Result<(GridFile, Vec<u64>, Vec<u32>, Made)> {
            let file = GridFile::open(&path, MAGIC)?;
            let last = file.rows().checked_sub(3).ok_or_else(|| file.damaged())?;
            let made = serde_json::from_slice(&file.whole(last + 2)?).map_err(|_| file.damaged())?;
            let keys: Vec<u64> = numbers(&file.whole(last)?, u64::from_le_bytes);
            let documents: Vec<u32> = numbers(&file.whole(last + 1)?, u32::from_le_bytes);
            if file.columns != 1 || keys.len() + documents.len() != last {
                return Err(file.damaged());
            }
            Ok((file, keys, documents, made))
        };
        let (file, first_keys, first_documents, made) = opened().map_err(|error| explained(&path, error))?;
        made.check(wanted, &path)?;
        Ok(CacheFile {
            file: Arc::new(file),
            path: Arc::new(path),
            first_keys: Arc::new(first_keys),
            first_documents: Arc::new(first_documents),
        })
    }

    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The rows that may have keys of the range.
    fn rows_of(&self, (first, last): (u64, u64)) -> std::ops::Range<usize> {
        let start = self.first_keys.partition_point(|&key| key < first).saturating_sub(1);
        start..self.first_keys.partition_point(|&key| key <= last).max(start)
    }

    /// No fewer keys than the range has.
    pub fn count(&self, range: (u64, u64)) -> Result<u64> {
        Ok((self.rows_of(range).len() * KEYS) as u64)
    }

    /// Calls `each` with the keys of the range in order, and their documents' numbers.
    pub fn keys(
        &self,
        (first, last): (u64, u64),
        block: &mut [u8],
        mut each: impl FnMut(u64, u32) -> Result<()>,
    ) -> Result<()> {
        for row in self.rows_of((first, last)) {
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
        let row = self.first_documents.partition_point(|&first| first <= document);
        let found = || -> Result<Option<Vec<u64>>> {
            let Some(row) = row.checked_sub(1) else { return Ok(None) };
            let bytes = self.file.whole(self.first_keys.len() + row)?;
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

fn numbers<T, const N: usize>(bytes: &[u8], of: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.chunks_exact(N).map(|word| of(word.try_into().unwrap())).collect()
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
    first_keys: Vec<u64>,
    shingles: Vec<u8>,
    first_documents: Vec<u32>,
    last_document: u32,
    documents: u64,
}

impl CacheWriter {
    pub fn create(folder: &Path, run_id: &str, near: &Near, fingerprint: &str) -> Result<CacheWriter> {
        create_folder(folder)?;
        let temporary = folder.join(format!("{run_id}.{SUFFIX}.tmp"));
        Ok(CacheWriter {
            grid: GridWriter::create(&temporary, MAGIC, 1)?,
            temporary,
            path: folder.join(format!("{run_id}.{SUFFIX}")),
            made: Made::by(near, fingerprint),
            keys: Vec::new(),
            first_keys: Vec::new(),
            shingles: Vec::new(),
            first_documents: Vec::new(),
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
                self.first_keys.push(key);
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
            self.first_documents.push(document);
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
        let first_keys: Vec<u8> = self.first_keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        let first_documents: Vec<u8> =
            self.first_documents.iter().flat_map(|number| number.to_le_bytes()).collect();
        let made = serde_json::to_vec(&self.made).expect("plain data");
        for row in [first_keys, first_documents, made] {
            self.grid.append(&row)?;
            self.grid.end_row()?;
        }
        self.grid.finish(self.documents)?;
        commit(&self.temporary, &self.path)
    }
}
