//! Where the documents of a task are among its tokens, and what has to be known to drop one.
//!
//! A grid of one column (`dedup/grid.rs`) with 128 documents in each row: any of them can be read and checked alone.

use crate::atomic::temporary_name;
use crate::dedup::grid::{GridFile, GridWriter, Magic, commit};
use crate::error::{Error, Result};
use crate::own_files::damaged;
use std::path::{Path, PathBuf};

const MAGIC: Magic = *b"ramlplc1";
const RECORD: usize = 36;
const IN_ROW: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Of the text; it decides the split.
    pub hash: u64,
    /// The first of its pieces in the files of its split, and how many there are.
    pub first: u32,
    pub pieces: u32,
    pub bytes: u32,
    pub characters: u32,
    /// The number of its file among those of the task, and its own in that file.
    pub file: u32,
    pub document: u32,
    /// A checksum of its tokens.
    pub check: u32,
}

impl Place {
    fn to_bytes(self) -> [u8; RECORD] {
        let Place { hash, first, pieces, bytes, characters, file, document, check } = self;
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(&hash.to_le_bytes());
        let words = [first, pieces, bytes, characters, file, document, check];
        for (place, word) in record[8..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        record
    }

    fn from_bytes(record: &[u8]) -> Place {
        let word = |n: usize| u32::from_le_bytes(record[8 + 4 * n..][..4].try_into().unwrap());
        Place {
            hash: u64::from_le_bytes(record[..8].try_into().unwrap()),
            first: word(0),
            pieces: word(1),
            bytes: word(2),
            characters: word(3),
            file: word(4),
            document: word(5),
            check: word(6),
        }
    }
}

pub struct PlaceWriter {
    grid: GridWriter,
    temporary: PathBuf,
    path: PathBuf,
    documents: u64,
}

impl PlaceWriter {
    pub fn create(path: &Path) -> Result<PlaceWriter> {
        let temporary = temporary_name(path);
        let grid = GridWriter::create(&temporary, MAGIC, 1)?;
        Ok(PlaceWriter { grid, temporary, path: path.to_owned(), documents: 0 })
    }

    /// Returns the number of the document.
    pub fn push(&mut self, place: Place) -> Result<u32> {
        let index = u32::try_from(self.documents).map_err(|_| {
            let most = "one task has more than 4,294,967,296 documents: split its input into smaller files";
            Error::Invalid(most.into())
        })?;
        self.grid.append(&place.to_bytes())?;
        self.documents += 1;
        if self.documents.is_multiple_of(IN_ROW as u64) {
            self.grid.end_row()?;
        }
        Ok(index)
    }

    /// Returns the number of documents.
    pub fn commit(mut self) -> Result<u64> {
        if !self.documents.is_multiple_of(IN_ROW as u64) {
            self.grid.end_row()?;
        }
        self.grid.finish(self.documents)?;
        commit(&self.temporary, &self.path)?;
        Ok(self.documents)
    }
}

pub struct Places {
    file: GridFile,
    path: PathBuf,
    row: Option<usize>,
    bytes: Vec<u8>,
}

impl Places {
    pub fn open(path: &Path) -> Result<Places> {
        let file = GridFile::open(path, MAGIC)?;
        Ok(Places { file, path: path.to_owned(), row: None, bytes: Vec::new() })
    }

    pub fn get(&mut self, index: u32) -> Result<Place> {
        let (row, at) = (index as usize / IN_ROW, index as usize % IN_ROW * RECORD);
        if row >= self.file.rows() {
            return Err(damaged(&self.path));
        }
        if self.row != Some(row) {
            self.row = None;
            self.bytes = self.file.whole(row)?;
            self.row = Some(row);
        }
        let record = self.bytes.get(at..at + RECORD).ok_or_else(|| damaged(&self.path))?;
        Ok(Place::from_bytes(record))
    }
}
