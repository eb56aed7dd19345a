//! A file of byte strings addressed by row and column; the format of all temporary files of dedup.
//!
//! Byte by byte (all integers little-endian):
//!
//! ```text
//! for each row
//!   cells          column 0, column 1, ..; any of them may be empty
//!   columns x 24   u64 where the cell starts, u64 its bytes, u64 its checksum
//! rows x u64       where the table of each row starts
//! u64              columns
//! u64              units: what the writer counted
//! u64              rows
//! u64              xxh3-64 of everything after the last table
//! 8 bytes          magic
//! ```
//!
//! A cell's checksum is the xxh3-64 of its bytes, then row, column, start and length as u64: it covers the entry in the
//! table too, so one cell can be read and verified without reading the rest of the file.

use super::tail::Tail;
use crate::atomic::{create_locked, sync_folder};
use crate::error::{Error, Result};
use crate::own_files::{self, damaged};
use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

const ENTRY: usize = 24;
const FOOTER: usize = 40;
pub const WRITE_BUFFER: usize = 64 << 10;
const READ_BLOCK: usize = 64 << 10;

pub type Magic = [u8; 8];

fn seal(mut digest: Xxh3, row: usize, column: usize, start: u64, length: u64) -> u64 {
    for word in [row as u64, column as u64, start, length] {
        digest.update(&word.to_le_bytes());
    }
    digest.digest()
}

/// Writes row by row, each column by column. The caller gives a temporary path and renames the file.
pub struct GridWriter {
    file: File,
    path: PathBuf,
    magic: Magic,
    columns: usize,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are in the digest, or not part of a cell.
    digested: usize,
    digest: Xxh3,
    written: u64,
    row_start: u64,
    cell_start: u64,
    entries: Vec<[u64; 3]>,
    rows: usize,
    /// Where the table of each row starts.
    tables: Tail,
}

impl GridWriter {
    pub fn create(path: &Path, magic: Magic, columns: usize) -> Result<Self> {
        Ok(GridWriter {
            file: create_locked(path)?,
            path: path.to_owned(),
            magic,
            columns,
            buffer: Vec::with_capacity(WRITE_BUFFER),
            digested: 0,
            digest: Xxh3::new(),
            written: 0,
            row_start: 0,
            cell_start: 0,
            entries: Vec::with_capacity(columns),
            rows: 0,
            tables: Tail::new(path),
        })
    }

    fn here(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// The column that `append` writes to.
    pub fn column(&self) -> usize {
        self.entries.len()
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
        let (start, length) = (self.cell_start, self.here() - self.cell_start);
        let digest = std::mem::take(&mut self.digest);
        self.entries.push([start, length, seal(digest, self.rows, self.column(), start, length)]);
        self.cell_start += length;
    }

    /// A row of which each column ends at one of these places.
    pub fn append_row(&mut self, row: &[u8], ends: &[u32]) -> Result<()> {
        let mut start = 0;
        for &end in ends {
            self.append(&row[start..end as usize])?;
            self.close_column();
            start = end as usize;
        }
        self.end_row()
    }

    /// The remaining columns are empty.
    pub fn end_row(&mut self) -> Result<()> {
        while self.column() < self.columns {
            self.close_column();
        }
        self.flush()?;
        self.tables.push(&self.written.to_le_bytes())?;
        self.rows += 1;
        let table: Vec<u8> = self.entries.drain(..).flatten().flat_map(u64::to_le_bytes).collect();
        self.write(&table)?;
        self.begin_row();
        Ok(())
    }

    fn begin_row(&mut self) {
        self.row_start = self.written;
        self.cell_start = self.written;
        self.digest = Xxh3::new();
    }

    /// Discards what was appended since the end of the last row.
    pub fn abandon_row(&mut self) -> Result<()> {
        self.buffer.clear();
        self.digested = 0;
        self.entries.clear();
        self.written = self.row_start;
        self.begin_row();
        self.file
            .set_len(self.written)
            .and_then(|()| self.file.seek(SeekFrom::Start(self.written)))
            .map_err(|error| Error::write(&self.path, error))?;
        Ok(())
    }

    /// To be called after `end_row`.
    pub fn finish(mut self, units: u64) -> Result<()> {
        let mut digest = Xxh3::new();
        std::mem::replace(&mut self.tables, Tail::new(&self.path)).read(|words| {
            digest.update(words);
            self.write(words)
        })?;
        let counts = [self.columns as u64, units, self.rows as u64];
        let mut footer: Vec<u8> = counts.iter().flat_map(|word| word.to_le_bytes()).collect();
        digest.update(&footer);
        footer.extend_from_slice(&digest.digest().to_le_bytes());
        footer.extend_from_slice(&self.magic);
        self.write(&footer)?;
        self.file.sync_data().map_err(|error| Error::write(&self.path, error))
    }
}

/// Gives a finished file its name, durably.
pub fn commit(temporary: &Path, path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::rename(temporary, path).map_err(|error| Error::write(path, error))?;
    sync_folder(folder)
}

pub struct GridFile {
    file: File,
    path: PathBuf,
    rows: usize,
    tables: Tables,
    pub columns: usize,
    pub units: u64,
}

/// Where the table of each row starts.
enum Tables {
    InMemory(Vec<u64>),
    /// From this place of the file on.
    OnDisk(u64),
}

impl GridFile {
    pub fn open(path: &Path, magic: Magic) -> Result<Self> {
        GridFile::open_with(path, magic, true)
    }

    /// Takes the same memory whatever the number of rows, and one more read for each cell.
    pub fn open_on_disk(path: &Path, magic: Magic) -> Result<Self> {
        GridFile::open_with(path, magic, false)
    }

    fn open_with(path: &Path, magic: Magic, in_memory: bool) -> Result<Self> {
        let io = |error| Error::io(path, error);
        let file = own_files::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let tables = Tables::OnDisk(0);
        let mut grid = GridFile { file, path: path.to_owned(), rows: 0, tables, columns: 0, units: 0 };
        let mut footer = [0; FOOTER];
        grid.read(&mut footer, length.checked_sub(FOOTER as u64).ok_or_else(|| damaged(path))?)?;
        let word = |at: usize| u64::from_le_bytes(footer[at * 8..][..8].try_into().unwrap());
        // Checked against the size of the file before anything is allocated.
        let tables = word(2).checked_mul(8).filter(|bytes| *bytes <= length - FOOTER as u64);
        let tables = tables.filter(|_| footer[32..] == magic).ok_or_else(|| damaged(path))?;
        let start = length - FOOTER as u64 - tables;
        let mut digest = Xxh3::new();
        let mut words = Vec::with_capacity(if in_memory { tables as usize / 8 } else { 0 });
        let mut block = vec![0; READ_BLOCK.min(tables as usize)];
        for at in (start..start + tables).step_by(READ_BLOCK) {
            let block = &mut block[..(start + tables - at).min(READ_BLOCK as u64) as usize];
            grid.read(block, at)?;
            digest.update(block);
            if in_memory {
                words.extend(block.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())));
            }
        }
        digest.update(&footer[..24]);
        if digest.digest() != word(3) {
            return Err(damaged(path));
        }
        grid.columns = word(0) as usize;
        grid.units = word(1);
        grid.rows = word(2) as usize;
        grid.tables = if in_memory { Tables::InMemory(words) } else { Tables::OnDisk(start) };
        Ok(grid)
    }

    /// Where the table of a row starts. What is read again from the disk needs no check of its own: the checksum of a
    /// cell covers its entry in the table, and its row.
    fn table(&self, row: usize) -> Result<u64> {
        assert!(row < self.rows);
        match &self.tables {
            Tables::InMemory(tables) => Ok(tables[row]),
            Tables::OnDisk(start) => {
                let mut word = [0; 8];
                self.read(&mut word, start + row as u64 * 8)?;
                Ok(u64::from_le_bytes(word))
            }
        }
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
        self.rows
    }

    /// A cell of records of `record` bytes each.
    pub fn cell(&self, row: usize, column: usize, record: usize) -> Result<Cell<'_>> {
        assert!(column < self.columns);
        let mut entry = [0; ENTRY];
        let table = self.table(row)?;
        let place = table.checked_add((column * ENTRY) as u64).ok_or_else(|| self.damaged())?;
        self.read(&mut entry, place)?;
        let word = |at: usize| u64::from_le_bytes(entry[at * 8..][..8].try_into().unwrap());
        let (start, length) = (word(0), word(1));
        let end = start.checked_add(length).filter(|end| *end <= table);
        let end = end.filter(|_| length.is_multiple_of(record as u64)).ok_or_else(|| self.damaged())?;
        let digest = Some(Xxh3::new());
        Ok(Cell { grid: self, row, column, record, start, at: start, end, digest, sum: word(2) })
    }
}

impl GridFile {
    /// All bytes of the first cell of a row.
    pub fn whole(&self, row: usize) -> Result<Vec<u8>> {
        let mut cell = self.cell(row, 0, 1)?;
        let mut bytes = vec![0; cell.records() as usize];
        cell.next(&mut bytes)?;
        Ok(bytes)
    }
}

/// The first cell of a row as a list of numbers that stays on disk; it was read once to verify it.
#[derive(Clone, Copy)]
pub struct Listed<const N: usize> {
    start: u64,
    pub count: usize,
}

impl GridFile {
    pub fn listed<const N: usize>(&self, row: usize) -> Result<Listed<N>> {
        let mut cell = self.cell(row, 0, N)?;
        let mut block = vec![0; READ_BLOCK];
        while cell.next(&mut block)?.is_some() {}
        Ok(Listed { start: cell.start, count: cell.records() as usize })
    }

    /// How many numbers of a sorted list are before the first one that `is_before` denies, by bisection.
    pub fn partition_point<const N: usize>(
        &self,
        list: Listed<N>,
        is_before: impl Fn([u8; N]) -> bool,
    ) -> Result<usize> {
        let (mut low, mut high) = (0, list.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let mut number = [0; N];
            self.read(&mut number, list.start + (middle * N) as u64)?;
            if is_before(number) { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }
}

/// Reads one cell, a block of whole records at a time. The checksum is verified with the last block: what was read
/// before is valid only if that one is returned.
pub struct Cell<'a> {
    grid: &'a GridFile,
    row: usize,
    column: usize,
    record: usize,
    start: u64,
    at: u64,
    end: u64,
    /// None after it has been compared.
    digest: Option<Xxh3>,
    sum: u64,
}

impl Cell<'_> {
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
