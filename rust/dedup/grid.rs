//! A file of stretches of bytes, addressed by row and column; the form of everything dedup keeps for a while.
//!
//! Byte by byte (all integers little-endian):
//!
//! ```text
//! for each row
//!   stretches      column 0, column 1, ..; any of them may be empty
//!   columns x 24   u64 where the stretch starts, u64 its bytes, u64 its checksum
//! rows x u64       where the table of each row starts
//! u64              columns
//! u64              units: what the writer counted
//! u64              rows
//! u64              xxh3-64 of everything since the last table
//! 8 bytes          magic
//! ```
//!
//! A stretch's checksum is the xxh3-64 of its bytes, then row, column, start and length as u64: it vouches for its
//! entry in the table too, so one stretch can be read and trusted without reading the rest of the file.

use crate::atomic::sync_folder;
use crate::error::{Error, Result};
use crate::own_files;
use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const CELL: usize = 24;
const FOOTER: usize = 40;
pub const WRITE_BUFFER: usize = 64 << 10;

pub type Magic = [u8; 8];

pub fn damaged(path: &Path) -> Error {
    let folder = path.parent().unwrap_or(path).display();
    Error::Invalid(format!("{} is damaged: remove {folder} and start anew", path.display()))
}

fn seal(mut digest: Xxh3, row: usize, column: usize, start: u64, length: u64) -> u64 {
    for word in [row as u64, column as u64, start, length] {
        digest.update(&word.to_le_bytes());
    }
    digest.digest()
}

/// Writes row by row, in each row column by column. The caller gives a temporary path and renames.
pub struct GridWriter {
    file: File,
    path: PathBuf,
    magic: Magic,
    columns: usize,
    buffer: Vec<u8>,
    /// Bytes of the buffer that the digest has seen, or that are no part of a stretch.
    digested: usize,
    digest: Xxh3,
    written: u64,
    row_start: u64,
    stretch_start: u64,
    cells: Vec<[u64; 3]>,
    tables: Vec<u64>,
}

impl GridWriter {
    pub fn create(path: &Path, magic: Magic, columns: usize) -> Result<Self> {
        Ok(GridWriter {
            file: File::create(path).map_err(|error| Error::write(path, error))?,
            path: path.to_owned(),
            magic,
            columns,
            buffer: Vec::with_capacity(WRITE_BUFFER),
            digested: 0,
            digest: Xxh3::new(),
            written: 0,
            row_start: 0,
            stretch_start: 0,
            cells: Vec::with_capacity(columns),
            tables: Vec::new(),
        })
    }

    fn here(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// The column that `append` writes to.
    pub fn column(&self) -> usize {
        self.cells.len()
    }

    #[inline]
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if self.buffer.len() + bytes.len() > WRITE_BUFFER {
            self.flush()?;
            if bytes.len() > WRITE_BUFFER {
                self.digest.update(bytes);
                return self.write(bytes);
            }
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| Error::write(&self.path, error))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.digest.update(&self.buffer[self.digested..]);
        let buffer = std::mem::take(&mut self.buffer);
        self.write(&buffer)?;
        self.buffer = buffer;
        self.buffer.clear();
        self.digested = 0;
        Ok(())
    }

    pub fn close_column(&mut self) {
        self.digest.update(&self.buffer[self.digested..]);
        self.digested = self.buffer.len();
        let (start, length) = (self.stretch_start, self.here() - self.stretch_start);
        let digest = std::mem::take(&mut self.digest);
        self.cells.push([start, length, seal(digest, self.tables.len(), self.column(), start, length)]);
        self.stretch_start += length;
    }

    /// Columns not reached are empty.
    pub fn end_row(&mut self) -> Result<()> {
        while self.column() < self.columns {
            self.close_column();
        }
        self.flush()?;
        self.tables.push(self.written);
        let table: Vec<u8> = self.cells.drain(..).flatten().flat_map(u64::to_le_bytes).collect();
        self.write(&table)?;
        self.begin_row();
        Ok(())
    }

    fn begin_row(&mut self) {
        self.row_start = self.written;
        self.stretch_start = self.written;
        self.digest = Xxh3::new();
    }

    /// Takes back what was appended since the last row ended.
    pub fn abandon_row(&mut self) -> Result<()> {
        self.buffer.clear();
        self.digested = 0;
        self.cells.clear();
        self.written = self.row_start;
        self.begin_row();
        self.file
            .set_len(self.written)
            .and_then(|()| self.file.seek(SeekFrom::Start(self.written)))
            .map_err(|error| Error::write(&self.path, error))?;
        Ok(())
    }

    /// The last row has been ended. Returns the size of the file.
    pub fn finish(mut self, units: u64) -> Result<u64> {
        let footer = [self.columns as u64, units, self.tables.len() as u64];
        let mut trailer: Vec<u8> =
            self.tables.iter().chain(&footer).flat_map(|word| word.to_le_bytes()).collect();
        trailer.extend_from_slice(&xxh3_64(&trailer).to_le_bytes());
        trailer.extend_from_slice(&self.magic);
        self.write(&trailer)?;
        self.file.sync_data().map_err(|error| Error::write(&self.path, error))?;
        Ok(self.written)
    }
}

/// Gives a finished file its name, for good.
pub fn commit(temporary: &Path, path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::rename(temporary, path).map_err(|error| Error::write(path, error))?;
    sync_folder(folder)
}

pub struct GridFile {
    file: File,
    path: PathBuf,
    tables: Vec<u64>,
    pub columns: usize,
    pub units: u64,
    pub length: u64,
}

impl GridFile {
    pub fn open(path: &Path, magic: Magic) -> Result<Self> {
        let io = |error| Error::io(path, error);
        let file = own_files::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut grid =
            GridFile { file, path: path.to_owned(), tables: Vec::new(), columns: 0, units: 0, length };
        let mut footer = [0; FOOTER];
        grid.read(&mut footer, length.checked_sub(FOOTER as u64).ok_or_else(|| damaged(path))?)?;
        let word = |at: usize| u64::from_le_bytes(footer[at * 8..][..8].try_into().unwrap());
        // Bounded by the file before anything is allocated for it.
        let tables = word(2).checked_mul(8).filter(|bytes| *bytes <= length - FOOTER as u64);
        let tables = tables.filter(|_| footer[32..] == magic).ok_or_else(|| damaged(path))?;
        let mut trailer = vec![0; tables as usize + 24];
        grid.read(&mut trailer, length - FOOTER as u64 - tables)?;
        if xxh3_64(&trailer) != word(3) {
            return Err(damaged(path));
        }
        grid.columns = word(0) as usize;
        grid.units = word(1);
        trailer.truncate(tables as usize);
        grid.tables =
            trailer.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        Ok(grid)
    }

    fn read(&self, into: &mut [u8], at: u64) -> Result<()> {
        self.file.read_exact_at(into, at).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => damaged(&self.path),
            _ => Error::io(&self.path, error),
        })
    }

    pub fn damaged(&self) -> Error {
        damaged(&self.path)
    }

    pub fn rows(&self) -> usize {
        self.tables.len()
    }

    /// A stretch of records of `record` bytes each.
    pub fn stretch(&self, row: usize, column: usize, record: usize) -> Result<Stretch<'_>> {
        assert!(column < self.columns);
        let mut cell = [0; CELL];
        self.read(&mut cell, self.tables[row] + (column * CELL) as u64)?;
        let word = |at: usize| u64::from_le_bytes(cell[at * 8..][..8].try_into().unwrap());
        let (start, length) = (word(0), word(1));
        let end = start.checked_add(length).filter(|end| *end <= self.tables[row]);
        let end = end.filter(|_| length.is_multiple_of(record as u64)).ok_or_else(|| self.damaged())?;
        let digest = Some(Xxh3::new());
        Ok(Stretch { grid: self, row, column, record, start, at: start, end, digest, sum: word(2) })
    }
}

/// Reads one stretch, a block of whole records at a time. The checksum is checked with the last block: what was made
/// of the others counts only if that one comes.
pub struct Stretch<'a> {
    grid: &'a GridFile,
    row: usize,
    column: usize,
    record: usize,
    start: u64,
    at: u64,
    end: u64,
    /// None once it has been compared.
    digest: Option<Xxh3>,
    sum: u64,
}

impl Stretch<'_> {
    pub fn records(&self) -> u64 {
        (self.end - self.start) / self.record as u64
    }

    pub fn next<'b>(&mut self, block: &'b mut [u8]) -> Result<Option<&'b [u8]>> {
        let Some(digest) = &mut self.digest else { return Ok(None) };
        let whole = block.len() / self.record * self.record;
        let take = (self.end - self.at).min(whole as u64) as usize;
        let block = &mut block[..take];
        self.grid.read(block, self.at)?;
        digest.update(block);
        self.at += take as u64;
        if self.at == self.end {
            let digest = self.digest.take().expect("just used");
            if seal(digest, self.row, self.column, self.start, self.end - self.start) != self.sum {
                return Err(self.grid.damaged());
            }
        }
        Ok(Some(block))
    }
}
