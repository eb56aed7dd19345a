//! Which documents of a task have an n-gram of the evaluation set, and the first one of each.
//!
//! A hit file is a grid (`dedup/grid.rs`) of one column, with a row for each buffer that was full. A record, 24 bytes,
//! is the number of the document among those of the task that cleaning kept (u64), where in its text the n-gram starts
//! and ends (u32 each) and its hash (u64). The grid counts as units the rows of the set that have been compared.

use super::set::Set;
use crate::atomic::temporary_name;
use crate::dedup::grid::{GridFile, GridWriter, Magic, WRITE_BUFFER, commit};
use crate::error::{Error, Result};
use crate::words::{Ngrams, Words};
use std::path::{Path, PathBuf};

const MAGIC: Magic = *b"ramlhit1";
const RECORD: usize = 24;
/// Records per row.
const ROW: u64 = (WRITE_BUFFER / RECORD) as u64;

/// A document with an n-gram of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    pub document: u64,
    /// The first such n-gram, as a range of the text.
    pub start: u32,
    pub end: u32,
    pub hash: u64,
}

/// Reads a hit file, in the order of the documents.
pub struct Hits {
    file: GridFile,
    row: usize,
    records: Vec<u8>,
    at: usize,
}

impl Hits {
    /// `None` if there is no such file.
    pub fn open(path: &Path) -> Result<Option<Hits>> {
        if !path.exists() {
            return Ok(None);
        }
        let file = GridFile::open(path, MAGIC)?;
        if file.columns != 1 {
            return Err(file.damaged());
        }
        Ok(Some(Hits { file, row: 0, records: Vec::new(), at: 0 }))
    }

    /// The hits of at least the first `rows` rows of the set. Fewer are an error, because documents that only the
    /// missing rows find would be kept: a process that runs the same part may have replaced the file meanwhile.
    pub fn of_rows(path: &Path, rows: usize) -> Result<Option<Hits>> {
        let hits = Hits::open(path)?;
        if hits.as_ref().map_or(0, Hits::rows_compared) >= rows {
            return Ok(hits);
        }
        Err(Error::Invalid(format!(
            "{} was changed by another process that runs the same part: run the same command again",
            path.display()
        )))
    }

    /// How many rows of the set were compared with the documents.
    pub fn rows_compared(&self) -> usize {
        self.file.units as usize
    }

    fn peek(&mut self) -> Result<Option<Hit>> {
        if self.at == self.records.len() {
            if self.row == self.file.rows() {
                return Ok(None);
            }
            let mut cell = self.file.cell(self.row, 0, RECORD)?;
            if cell.records() > ROW || cell.records() == 0 {
                return Err(self.file.damaged());
            }
            self.records.resize(cell.records() as usize * RECORD, 0);
            cell.next(&mut self.records)?;
            (self.at, self.row) = (0, self.row + 1);
        }
        let bytes = &self.records[self.at..][..RECORD];
        let word = |at: usize| u64::from_le_bytes(bytes[at..][..8].try_into().unwrap());
        let half = |at: usize| u32::from_le_bytes(bytes[at..][..4].try_into().unwrap());
        Ok(Some(Hit { document: word(0), start: half(8), end: half(12), hash: word(16) }))
    }

    /// The hit of a document; to be called for each document, in order.
    pub fn of(&mut self, document: u64) -> Result<Option<Hit>> {
        let Some(hit) = self.peek()? else { return Ok(None) };
        if hit.document != document {
            return if hit.document > document { Ok(None) } else { Err(self.file.damaged()) };
        }
        self.at += RECORD;
        Ok(Some(hit))
    }
}

/// Compares the documents of a task with some rows of the set, and writes the hits, those of earlier passes included.
pub struct Screen<'a> {
    set: &'a Set,
    ngrams: Ngrams,
    earlier: Option<Hits>,
    document: u64,
    grid: GridWriter,
    in_row: u64,
    path: PathBuf,
    temporary: PathBuf,
}

impl<'a> Screen<'a> {
    pub fn create(set: &'a Set, n: usize, earlier: Option<Hits>, path: &Path) -> Result<Screen<'a>> {
        let temporary = temporary_name(path);
        let grid = GridWriter::create(&temporary, MAGIC, 1)?;
        let (ngrams, path) = (Ngrams::new(n), path.to_owned());
        Ok(Screen { set, ngrams, earlier, document: 0, grid, in_row: 0, path, temporary })
    }

    /// The first n-gram of the next document that is in the set, or was in one of an earlier pass.
    pub fn compare(&mut self, text: &str) -> Result<Option<Hit>> {
        let document = self.document;
        self.document += 1;
        let mut hit = match &mut self.earlier {
            Some(earlier) => earlier.of(document)?,
            None => None,
        };
        // Only an n-gram before the known one would replace it.
        let before = hit.map_or(usize::MAX, |hit| hit.start as usize);
        self.ngrams.clear();
        for word in Words::of(text) {
            let Some(ngram) = self.ngrams.push(word) else { continue };
            if ngram.start >= before {
                break;
            }
            if self.set.contains(ngram.hash) {
                let (start, end) = (ngram.start as u32, ngram.end as u32);
                hit = Some(Hit { document, start, end, hash: ngram.hash });
                break;
            }
        }
        if let Some(Hit { document, start, end, hash }) = hit {
            if self.in_row == ROW {
                self.grid.end_row()?;
                self.in_row = 0;
            }
            self.in_row += 1;
            self.grid.append(&document.to_le_bytes())?;
            self.grid.append(&(u64::from(end) << 32 | u64::from(start)).to_le_bytes())?;
            self.grid.append(&hash.to_le_bytes())?;
        }
        Ok(hit)
    }

    /// `rows_compared` includes those of earlier passes.
    pub fn commit(mut self, rows_compared: usize) -> Result<()> {
        if self.in_row > 0 {
            self.grid.end_row()?;
        }
        self.grid.finish(rows_compared as u64)?;
        // Another process with the same task may have come further meanwhile; its hits include these.
        let known = Hits::open(&self.path).ok().flatten();
        if known.is_some_and(|known| known.rows_compared() > rows_compared) {
            return std::fs::remove_file(&self.temporary)
                .map_err(|error| Error::write(&self.temporary, error));
        }
        commit(&self.temporary, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::super::set::{Record, SetFile, SetWriter};
    use super::*;

    #[test]
    fn the_same_task_twice_loses_no_rows() {
        let folder = tempfile::tempdir().unwrap();
        let (ngrams, path) = (folder.path().join("ngrams"), folder.path().join("hits"));
        let mut writer = SetWriter::create(&ngrams).unwrap();
        writer.push(Record { hash: 7, source: 0, document: 0 }).unwrap();
        writer.commit().unwrap();
        let set = Set::load(&SetFile::open(&ngrams).unwrap(), 0..1).unwrap();
        // One process has compared five rows when another, which began earlier, is done with three.
        let [slow, fast] = [0, 1].map(|_| Screen::create(&set, 2, None, &path).unwrap());
        fast.commit(5).unwrap();
        slow.commit(3).unwrap();
        assert_eq!(Hits::open(&path).unwrap().unwrap().rows_compared(), 5);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        assert!(Hits::of_rows(&path, 5).unwrap().is_some());
        let error = Hits::of_rows(&path, 6).err().unwrap().to_string();
        assert!(error.contains("run the same command again"), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert!(Hits::of_rows(&path, 0).unwrap().is_none());
        assert!(Hits::of_rows(&path, 1).is_err());
    }
}
