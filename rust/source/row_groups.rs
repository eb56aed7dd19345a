//! The row groups of a parquet file, by which it can be read in parts.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::Range as Part;
use super::disk::Disk;
use crate::error::{Error, Result};
use crate::own_files;

/// The row groups of a part of the file, their rows, and the bytes that they count as: the file's bytes are divided by
/// rows, so that all parts together count every byte once.
pub(super) fn extent(
    file: &SerializedFileReader<File>,
    disk: &Disk,
    part: Option<Part>,
) -> Result<(Range<usize>, u64, Range<u64>)> {
    let all = file.metadata().row_groups();
    let groups = match part {
        None => 0..all.len(),
        Some(Part::RowGroups { first, end }) if first <= end && end <= all.len() => first..end,
        Some(Part::RowGroups { .. }) => {
            return Err(Error::Changed {
                path: disk.path.clone(),
                what: "has fewer row groups than before".into(),
            });
        }
        Some(Part::Bytes { .. }) => return Err(disk.indivisible()),
    };
    let rows = |groups: Range<usize>| -> u64 {
        let rows = all[groups].iter().map(|group| u64::try_from(group.num_rows()).unwrap_or(0));
        rows.fold(0, u64::saturating_add)
    };
    let size = disk.planned().unwrap_or(0);
    let before = |group: usize| share(size, rows(0..group), rows(0..all.len()));
    // There may be no rows at all: then the last part has all the bytes.
    let end = if groups.end == all.len() { size } else { before(groups.end) };
    let bytes = before(groups.start)..end;
    if part.is_some() {
        disk.confine(bytes.clone());
    }
    Ok((groups.clone(), rows(groups), bytes))
}

/// `done` of `all` parts of `bytes`.
pub(super) fn share(bytes: u64, done: u64, all: u64) -> u64 {
    (u128::from(bytes) * u128::from(done.min(all)) / u128::from(all.max(1))) as u64
}

/// The size on disk of each row group, from the file's footer; `None` if that is not valid.
pub fn row_group_bytes(path: &Path) -> Result<Option<Vec<u64>>> {
    let file = own_files::open(path).map_err(|error| Error::io(path, error))?;
    match catch(|| SerializedFileReader::new(file)) {
        Ok(table) => {
            let groups = table.metadata().row_groups().iter();
            Ok(Some(groups.map(|group| group.compressed_size().try_into().unwrap_or(0)).collect()))
        }
        Err(Failure::Disk(source)) => Err(Error::io(path, source)),
        Err(Failure::Content(_)) => Ok(None),
    }
}

pub(super) enum Failure {
    Disk(io::Error),
    /// What is wrong with the file.
    Content(String),
}

/// Distinguishes failures of the parquet crate, including panics on damaged files.
pub(super) fn catch<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, Failure> {
    Err(match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(ParquetError::External(error))) if error.is::<io::Error>() => {
            let source = *error.downcast::<io::Error>().expect("checked above");
            // A damaged offset may point past the end; any other error is from the disk.
            match source.kind() {
                io::ErrorKind::UnexpectedEof => Failure::Content(source.to_string()),
                _ => Failure::Disk(source),
            }
        }
        Ok(Err(error)) => Failure::Content(error.to_string()),
        Err(_) => Failure::Content("the reader failed".into()),
    })
}
