//! Hashes that a run keeps for later runs: `DIR/<run id>.hashes`, one file per run.
//!
//! Byte by byte (all integers little-endian):
//!
//! ```text
//! 8 bytes    "ramlhash"
//! u32        version, 1
//! u32        1: hashes of lines, 2: of documents
//! 16 bytes   fingerprint of the settings that change a text before it is hashed
//! u64        number of hashes
//! n x u128   the hashes, each larger than the one before
//! u64        xxh3-64 of everything before it
//! ```
//!
//! A run never reads its own file, so that running the same command again gives the same result. What it reads is listed
//! in its plan: another run may add a file at any time, and all stages must compare with the same ones.

use super::Unit;
use super::grid::{GridFile, commit};
use super::settle::{FRESH_MAGIC, Slice};
use crate::atomic::create_folder;
use crate::crew::Progress;
use crate::error::{Error, Result, option};
use crate::own_files;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

const MAGIC: &[u8; 8] = b"ramlhash";
const VERSION: u32 = 1;
const HEADER: usize = 40;
const HASH: usize = 16;
const BLOCK: usize = 256 << 10;
const SUFFIX: &str = "hashes";

fn header(unit: Unit, fingerprint: [u8; 16], count: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(unit as u32).to_le_bytes());
    header[16..32].copy_from_slice(&fingerprint);
    header[32..].copy_from_slice(&count.to_le_bytes());
    header
}

pub(crate) fn damaged(path: &Path) -> Error {
    Error::Invalid(format!(
        "{} is damaged: remove it (the hashes of its run are then lost), or choose another {}",
        path.display(),
        option("dedup_cache")
    ))
}

fn short_is_damage(path: &Path, error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => damaged(path),
        _ => Error::io(path, error),
    }
}

/// The hashes of one earlier run. Opened for each read: a folder may have more files than a process may have open.
#[derive(Debug, Clone)]
pub struct CacheFile {
    path: PathBuf,
    pub(super) count: u64,
}

/// The files of a cache when a run was planned: names and sizes, without those of the run itself.
pub type Listing = BTreeMap<String, u64>;

/// The listed files, sorted by name, after reading each once to check that it is undamaged.
pub fn open_caches(
    dir: &Path,
    listing: &Listing,
    unit: Unit,
    fingerprint: [u8; 16],
) -> Result<Vec<CacheFile>> {
    let paths = cache_files(dir, listing, SUFFIX)?;
    paths.into_iter().map(|path| CacheFile::open(path, unit, fingerprint)).collect()
}

/// The paths of the listed files with this ending, sorted by name; an error if one is not as it was listed.
pub(crate) fn cache_files(dir: &Path, listing: &Listing, suffix: &str) -> Result<Vec<PathBuf>> {
    let is_wanted = |name: &str| Path::new(name).extension().is_some_and(|ending| ending == suffix);
    let listed = listing.iter().filter(|(name, _)| is_wanted(name));
    listed.map(|(name, &size)| as_listed(dir.join(name), size)).collect()
}

fn as_listed(path: PathBuf, size: u64) -> Result<PathBuf> {
    match std::fs::metadata(&path) {
        Ok(found) if found.len() == size => Ok(path),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(&path, error)),
        _ => Err(Error::Invalid(format!(
            "{} of the dedup cache was removed or changed after the run was planned: restore it, or plan the run again with the same command",
            path.display()
        ))),
    }
}

impl CacheFile {
    fn open(path: PathBuf, unit: Unit, fingerprint: [u8; 16]) -> Result<Self> {
        let io = |error| short_is_damage(&path, error);
        let mut file = own_files::open(&path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut found = [0; HEADER];
        file.read_exact(&mut found).map_err(io)?;
        let count = u64::from_le_bytes(found[32..].try_into().unwrap());
        let size = count.checked_mul(HASH as u64).and_then(|bytes| bytes.checked_add(HEADER as u64 + 8));
        let version = u32::from_le_bytes(found[8..12].try_into().unwrap());
        if &found[..8] == MAGIC && version > VERSION {
            return Err(Error::Invalid(format!(
                "{} was written by a newer ramlet (version {version}): update ramlet, or choose another {}",
                path.display(),
                option("dedup_cache")
            )));
        }
        if &found[..8] != MAGIC || version != VERSION || size != Some(length) {
            return Err(damaged(&path));
        }
        let mut digest = Xxh3::new();
        digest.update(&found);
        let mut block = vec![0; BLOCK];
        let mut left = count * HASH as u64;
        let mut before = None;
        while left > 0 {
            let take = left.min(BLOCK as u64) as usize;
            file.read_exact(&mut block[..take]).map_err(io)?;
            digest.update(&block[..take]);
            for hash in block[..take].chunks_exact(HASH) {
                let hash = u128::from_le_bytes(hash.try_into().unwrap());
                if before.is_some_and(|before| before >= hash) {
                    return Err(damaged(&path));
                }
                before = Some(hash);
            }
            left -= take as u64;
        }
        let mut sum = [0; 8];
        file.read_exact(&mut sum).map_err(io)?;
        if u64::from_le_bytes(sum) != digest.digest() {
            return Err(damaged(&path));
        }
        // Only now: a flipped bit must not be reported as another setting.
        if found[12..16] != (unit as u32).to_le_bytes() {
            let (other, name) =
                (if unit == Unit::Line { Unit::Document } else { Unit::Line }, path.display());
            return Err(Error::Invalid(format!(
                "{name} has hashes of {}, but this run compares {}: choose another {}",
                other.plural(),
                unit.plural(),
                option("dedup_cache")
            )));
        }
        if found[16..32] != fingerprint {
            return Err(Error::Invalid(format!(
                "{} was made with different cleaning settings or limits of tokens, so its hashes cannot be compared: use the same settings, or choose another {}",
                path.display(),
                option("dedup_cache")
            )));
        }
        Ok(CacheFile { path, count })
    }

    /// Calls `each` with the slice's hashes in order, as bytes, a block at a time.
    pub(super) fn read(
        &self,
        slice: Slice,
        block: &mut [u8],
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let io = |error| short_is_damage(&self.path, error);
        let file = own_files::open(&self.path).map_err(io)?;
        let place = |n: u64| HEADER as u64 + n * HASH as u64;
        let hash_at = |n: u64| -> Result<u128> {
            let mut hash = [0; HASH];
            file.read_exact_at(&mut hash, place(n)).map_err(io)?;
            Ok(u128::from_le_bytes(hash))
        };
        // How many hashes are before the first one that is `at_or_after`.
        let search = |at_or_after: &dyn Fn(u128) -> bool| -> Result<u64> {
            let (mut low, mut high) = (0, self.count);
            while low < high {
                let middle = low + (high - low) / 2;
                match at_or_after(hash_at(middle)?) {
                    true => high = middle,
                    false => low = middle + 1,
                }
            }
            Ok(low)
        };
        let (first, last) = (slice.first, slice.last());
        let (mut at, end) = (search(&|hash| hash >= first)?, search(&|hash| hash > last)?);
        let most = (block.len() / HASH) as u64;
        while at < end {
            let take = (end - at).min(most);
            let bytes = &mut block[..take as usize * HASH];
            file.read_exact_at(bytes, place(at)).map_err(io)?;
            each(bytes)?;
            at += take;
        }
        Ok(())
    }
}

/// Writes the partitions' new hashes, given in the order of partitions, to the run's file and returns their number. The
/// folder is created if it does not exist.
pub fn commit_cache(
    dir: &Path,
    run_id: &str,
    unit: Unit,
    fingerprint: [u8; 16],
    fresh_files: &[PathBuf],
    progress: &Progress,
) -> Result<u64> {
    create_folder(dir)?;
    let mut count = 0;
    for path in fresh_files {
        count += GridFile::open(path, FRESH_MAGIC)?.units;
    }
    let temporary = dir.join(format!("{run_id}.{SUFFIX}.tmp"));
    let io = |error| Error::write(&temporary, error);
    let mut file = File::create(&temporary).map_err(io)?;
    let mut digest = Xxh3::new();
    let mut write = |bytes: &[u8]| {
        digest.update(bytes);
        file.write_all(bytes).map_err(io)
    };
    write(&header(unit, fingerprint, count))?;
    let mut block = vec![0; BLOCK];
    let mut joined = 0;
    for path in fresh_files {
        let fresh = GridFile::open(path, FRESH_MAGIC)?;
        for row in 0..fresh.rows() {
            let mut cell = fresh.cell(row, 0, HASH)?;
            joined += cell.records();
            while let Some(bytes) = cell.next(&mut block)? {
                progress.check()?;
                write(bytes)?;
            }
        }
    }
    assert_eq!(joined, count, "every column was checked");
    file.write_all(&digest.digest().to_le_bytes()).and_then(|()| file.sync_data()).map_err(io)?;
    commit(&temporary, &dir.join(format!("{run_id}.{SUFFIX}")))?;
    Ok(count)
}
