//! Records of files and parts of files, written one after another and read back one at a time.
//!
//! A record: the length of its body (LEB128), 4 bytes of the body's xxh3 (little-endian), the body. The body: format,
//! compression and kind (a byte each: the range, and `DATED`), size + 1 or 0 if it is unknown, the modification time
//! (8 bytes, if dated), the two ends of the range (LEB128 each; none without a range), the bytes of the path to the
//! end.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::own_files::{self, damaged};
use crate::source::{Compression, FileSpec, Format, Range};
use crate::varint;

const FORMATS: [Format; 3] = [Format::Text, Format::Jsonl, Format::Parquet];
const COMPRESSIONS: [Compression; 5] =
    [Compression::None, Compression::Gz, Compression::Zst, Compression::Xz, Compression::Bz2];
const BUFFER: usize = 64 << 10;
/// Set in the kind of a record with a modification time.
const DATED: u8 = 0x80;

pub fn format_code(format: Format) -> u8 {
    FORMATS.iter().position(|&other| other == format).expect("all are listed") as u8
}

pub fn compression_code(compression: Compression) -> u8 {
    COMPRESSIONS.iter().position(|&other| other == compression).expect("all are listed") as u8
}

/// A file that is complete or absent: until `commit` it is NAME.tmp.
pub struct Writer {
    file: BufWriter<File>,
    path: PathBuf,
    temporary: PathBuf,
    written: u64,
    body: Vec<u8>,
    head: Vec<u8>,
}

impl Writer {
    pub fn create(path: &Path) -> Result<Writer> {
        let temporary = path.with_extension("tmp");
        let file = File::create(&temporary).map_err(|error| Error::write(&temporary, error))?;
        Ok(Writer {
            file: BufWriter::with_capacity(BUFFER, file),
            path: path.to_owned(),
            temporary,
            written: 0,
            body: Vec::new(),
            head: Vec::new(),
        })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| Error::write(&self.temporary, error))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    pub fn write_record(&mut self, spec: &FileSpec) -> Result<()> {
        let (mut head, mut body) = (std::mem::take(&mut self.head), std::mem::take(&mut self.body));
        body.clear();
        let (kind, ends) = match spec.range {
            None => (0, None),
            Some(Range::Bytes { start, end }) => (1, Some((start, end))),
            Some(Range::RowGroups { first, end }) => (2, Some((first as u64, end as u64))),
        };
        let dated = if spec.modified.is_some() { DATED } else { 0 };
        body.extend([format_code(spec.format), compression_code(spec.compression), kind | dated]);
        varint::put(&mut body, spec.size.map_or(0, |size| size + 1));
        body.extend(spec.modified.iter().flat_map(|time| time.to_le_bytes()));
        if let Some((start, end)) = ends {
            varint::put(&mut body, start);
            varint::put(&mut body, end);
        }
        body.extend(spec.path.as_os_str().as_bytes());
        head.clear();
        varint::put(&mut head, body.len() as u64);
        head.extend((xxh3_64(&body) as u32).to_le_bytes());
        self.write(&head)?;
        self.write(&body)?;
        (self.head, self.body) = (head, body);
        Ok(())
    }

    /// Bytes written so far: where the next record begins.
    pub fn written(&self) -> u64 {
        self.written
    }

    pub fn commit(self) -> Result<()> {
        let failed = |error| Error::write(&self.path, error);
        let file = self.file.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().and_then(|()| std::fs::rename(&self.temporary, &self.path)).map_err(failed)
    }

    /// For a file that is read once and discarded: it never gets its name.
    pub fn into_reader(self) -> Result<Reader> {
        let failed = |error| Error::write(&self.temporary, error);
        drop(self.file.into_inner().map_err(|error| failed(error.into_error()))?);
        let reader = Reader::open(&self.temporary, 0, self.written)?;
        std::fs::remove_file(&self.temporary).map_err(failed)?;
        Ok(reader)
    }
}

/// Takes memory for one record and a buffer, however many records there are.
pub struct Reader {
    file: BufReader<File>,
    path: PathBuf,
    left: u64,
    body: Vec<u8>,
}

impl Reader {
    /// The records between two offsets.
    pub fn open(path: &Path, start: u64, end: u64) -> Result<Reader> {
        let mut file = own_files::open(path).map_err(|error| Error::io(path, error))?;
        file.seek(SeekFrom::Start(start)).map_err(|error| Error::io(path, error))?;
        let file = BufReader::with_capacity(BUFFER, file);
        Ok(Reader { file, path: path.to_owned(), left: end.saturating_sub(start), body: Vec::new() })
    }

    pub fn next(&mut self) -> Result<Option<FileSpec>> {
        if self.left == 0 {
            return Ok(None);
        }
        let (mut length, mut shift) = (0u64, 0);
        loop {
            let [byte] = self.take()?;
            length |= u64::from(byte & 0x7F) << shift;
            shift += 7;
            match byte {
                0..0x80 => break,
                _ if shift > 28 => return Err(damaged(&self.path)),
                _ => {}
            }
        }
        let checksum: [u8; 4] = self.take()?;
        if length > self.left {
            return Err(damaged(&self.path));
        }
        self.body.resize(length as usize, 0);
        self.file.read_exact(&mut self.body).map_err(|error| Error::io(&self.path, error))?;
        self.left -= length;
        if (xxh3_64(&self.body) as u32).to_le_bytes() != checksum {
            return Err(damaged(&self.path));
        }
        Ok(Some(parse(&self.body)))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.left = self.left.checked_sub(N as u64).ok_or_else(|| damaged(&self.path))?;
        self.file.read_exact(&mut bytes).map_err(|error| Error::io(&self.path, error))?;
        Ok(bytes)
    }
}

/// Parses a body whose checksum was verified.
fn parse(body: &[u8]) -> FileSpec {
    let mut at = 3;
    let size = varint::get(body, &mut at).checked_sub(1);
    let modified = (body[2] & DATED != 0).then(|| {
        at += 8;
        i64::from_le_bytes(body[at - 8..at].try_into().expect("8"))
    });
    let range = match body[2] & !DATED {
        0 => None,
        kind => {
            let start = varint::get(body, &mut at);
            let end = varint::get(body, &mut at);
            Some(match kind {
                1 => Range::Bytes { start, end },
                _ => Range::RowGroups { first: start as usize, end: end as usize },
            })
        }
    };
    FileSpec {
        path: OsString::from_vec(body[at..].to_vec()).into(),
        format: FORMATS[usize::from(body[0])],
        compression: COMPRESSIONS[usize::from(body[1])],
        size,
        modified,
        range,
    }
}
