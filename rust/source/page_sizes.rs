//! The memory that reading a column of a parquet file takes: its footer, which has an entry for each column of each row
//! group, a dictionary, and the largest page with the one before it. How large these are is the writer's choice: some
//! write a thousand rows to a page, whatever their size.
//!
//! Costs reading the footer, and the header of every page of the column, 500 bytes each.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::mem::size_of;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::column::page::PageReader;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::file::serialized_reader::SerializedPageReader;

use super::range::read_at;
use super::row_groups::catch;
use crate::own_files;

/// Bytes of a header that are read at once; statistics may make it longer.
const HEADER: usize = 512;
/// The footer's length and the format's magic number.
const TAIL: u64 = 8;

/// As far as the file can be read: what is wrong with it is reported when its text is read. `go_on` is called for every
/// page, and may end it.
pub fn parquet_memory(path: &Path, field: &str, go_on: &mut dyn FnMut() -> ControlFlow<()>) -> u64 {
    let mut most = 0;
    // A part that was measured before an error counts.
    let _ = catch(|| measure(path, field, go_on, &mut most));
    most
}

fn measure(
    path: &Path,
    field: &str,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
    most: &mut u64,
) -> Result<(), ParquetError> {
    let file = own_files::open(path)?;
    let size = file.metadata()?.len();
    let mut tail = [0; 4];
    read_at(&file, &mut tail, size.saturating_sub(TAIL))?;
    let table = SerializedFileReader::new(file.try_clone()?)?;
    let metadata = table.metadata();
    let footer = u64::from(u32::from_le_bytes(tail)).min(size) + metadata.memory_size() as u64;
    *most = footer;
    let columns = metadata.file_metadata().schema_descr().columns();
    let Some(column) = columns.iter().position(|each| each.path().string() == field) else { return Ok(()) };
    let headers = Arc::new(Headers { file: Arc::new(file), size, last: Mutex::default() });
    for group in metadata.row_groups() {
        let rows = usize::try_from(group.num_rows()).unwrap_or(0);
        let mut pages = SerializedPageReader::new(Arc::clone(&headers), group.column(column), rows, None)?;
        let mut chunk = Chunk::of(group.column(column));
        while pages.peek_next_page()?.is_some() {
            if go_on().is_break() {
                return Ok(());
            }
            *most = (*most).max(footer + chunk.with(*headers.last.lock().unwrap()));
            pages.skip_next_page()?;
        }
    }
    Ok(())
}

/// What is in memory of a column chunk.
struct Chunk {
    is_compressed: bool,
    dictionary: u64,
    /// The page whose rows are read, which stays until the next one is decoded.
    page: u64,
}

impl Chunk {
    fn of(column: &ColumnChunkMetaData) -> Chunk {
        Chunk { is_compressed: column.compression() != Compression::UNCOMPRESSED, dictionary: 0, page: 0 }
    }

    /// The most memory while the next page is read.
    fn with(&mut self, next: Header) -> u64 {
        let stored = if self.is_compressed { next.stored } else { 0 };
        let moment = self.dictionary + self.page + next.content + stored;
        match next.entries {
            Some(entries) => {
                self.dictionary = next.content + entries * size_of::<ByteArray>() as u64;
                moment.max(self.dictionary)
            }
            None => {
                self.page = next.content;
                moment
            }
        }
    }
}

/// The beginning of a page's header.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Header {
    /// Bytes when decompressed, and in the file.
    content: u64,
    stored: u64,
    /// Of a dictionary.
    entries: Option<u64>,
}

/// Thrift's compact encoding: a field begins with a byte of its distance from the one before and its type.
const I32: u8 = 0x05;
const STRUCT: u8 = 0x0C;
const DICTIONARY_PAGE: u64 = 2;

impl Header {
    /// Fields 1 to 3 are the kind of page and its two sizes, 4 a checksum, 7 is about a dictionary. All zeros if it is
    /// something else, which the reader will say.
    fn parse(bytes: &[u8]) -> Header {
        Header::fields(&mut bytes.iter().copied()).unwrap_or_default()
    }

    fn fields(bytes: &mut impl Iterator<Item = u8>) -> Option<Header> {
        let number = |bytes: &mut dyn Iterator<Item = u8>| -> Option<u64> {
            (bytes.next()? == 1 << 4 | I32).then_some(())?;
            integer(bytes)
        };
        let (kind, content, stored) = (number(bytes)?, number(bytes)?, number(bytes)?);
        let mut entries = None;
        if kind == DICTIONARY_PAGE {
            let mut field = bytes.next()?;
            if field == 1 << 4 | I32 {
                integer(bytes)?;
                field = bytes.next()? + (1 << 4);
            }
            entries = Some(if field == 4 << 4 | STRUCT { number(bytes)? } else { 0 });
        }
        Some(Header { content, stored, entries })
    }
}

/// A varint in zigzag form; negative ones count as 0.
fn integer(bytes: &mut dyn Iterator<Item = u8>) -> Option<u64> {
    let mut zigzag = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes.next()?;
        zigzag |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(if zigzag & 1 == 0 { zigzag >> 1 } else { 0 });
        }
    }
    None
}

/// The file for a reader of pages that reads only their headers; the last one is kept.
struct Headers {
    file: Arc<File>,
    size: u64,
    last: Mutex<Header>,
}

struct From {
    file: Arc<File>,
    at: u64,
}

impl Read for From {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = read_at(&self.file, buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Length for Headers {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for Headers {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> Result<BufReader<From>, ParquetError> {
        let mut header = BufReader::with_capacity(HEADER, From { file: Arc::clone(&self.file), at: start });
        *self.last.lock().unwrap() = Header::parse(io::BufRead::fill_buf(&mut header)?);
        Ok(header)
    }

    fn get_bytes(&self, _: u64, _: usize) -> Result<Bytes, ParquetError> {
        Err(ParquetError::General("only headers are read".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_the_format() {
        // A data page of 300 bytes, 100 in the file.
        let data = Header::parse(&[0x15, 0, 0x15, 0xD8, 0x04, 0x15, 0xC8, 0x01, 0x2C, 0x15]);
        assert_eq!(data, Header { content: 300, stored: 100, entries: None });
        // A dictionary of 50 values, without and with a checksum.
        let dictionary = Header { content: 300, stored: 100, entries: Some(50) };
        let sizes = [0x15, 4, 0x15, 0xD8, 0x04, 0x15, 0xC8, 0x01];
        assert_eq!(Header::parse(&[&sizes[..], &[0x4C, 0x15, 100]].concat()), dictionary);
        assert_eq!(Header::parse(&[&sizes[..], &[0x15, 9, 0x3C, 0x15, 100]].concat()), dictionary);
        for damaged in [&[][..], &[0x15], &[0xFF; 40], &[0x15, 0x80, 0x80]] {
            assert_eq!(Header::parse(damaged), Header::default());
        }
    }
}
