//! parquet: a row is a document, its text in one column of strings.
//!
//! Read row by row: memory is the file's footer, one page of the column with its dictionary, and a value, usually a slice
//! of that page. (The size of a page is the writer's choice, usually 1 MB; a single huge value makes a huge page, which
//! has to be completely in memory.) Several rows at a time are hardly faster to decode, and may be of any size. Only the
//! text column is read.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use parquet::basic::{ConvertedType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::block::{Block, Fragment};
use super::disk::Disk;
use super::row_groups::{Failure, catch, extent, share};
use super::scratch::Scratch;
use super::tally::add;
use super::text::{Boundary, DocumentPlace, TextReader};
use super::utf8::count_invalid;
use super::window::{Bytes, Window};
use super::{Compression, FileSpec, Place, Shared, decompress};
use crate::error::{Error, Result, option};

/// The most rows read for one block, so that with a column of nulls a worker still notices when to stop.
const BLOCK_ROWS: usize = 64 << 10;
const COLUMNS_SHOWN: usize = 20;

pub(super) struct ParquetReader {
    /// `None` if the file was damaged before its first row.
    table: Option<Table>,
    /// Rows finished so far.
    row: u64,
    /// The row that is too large for a block, while it is returned in parts.
    long: Option<TextReader>,
    compressed: bool,
}

struct Table {
    file: SerializedFileReader<File>,
    /// The decompressed file.
    _scratch: Option<Scratch>,
    column: usize,
    /// Definition level of a value that is not null.
    present: i16,
    /// The number of rows in the row groups that are read.
    rows: u64,
    /// The share of the file's bytes that these rows count as.
    bytes: Range<u64>,
    /// The row groups after `chunk` that are to be read.
    groups: Range<usize>,
    chunk: Option<ColumnReaderImpl<ByteArrayType>>,
    /// The next row, if it was decoded: its text, or `None` if that is null.
    row: Option<Option<ByteArray>>,
    /// Where it is decoded to.
    values: Vec<ByteArray>,
    levels: Vec<i16>,
}

impl ParquetReader {
    pub fn open(
        disk: &Arc<Disk>,
        spec: &FileSpec,
        shared: &Shared,
        row: u64,
        handed: u64,
    ) -> Result<ParquetReader> {
        let compression = spec.compression;
        let skip_broken = shared.options.skip_broken;
        let mut reader = ParquetReader {
            table: None,
            row: 0,
            long: None,
            compressed: compression != Compression::None || disk.is_stdin(),
        };
        if reader.compressed && spec.range.is_some() {
            return Err(disk.indivisible());
        }
        let (file, scratch) = if reader.compressed {
            let scratch = decompress_to_file(disk, compression, shared)?;
            (Some(scratch.handle()?), Some(scratch))
        } else {
            (disk.handle()?, None)
        };
        let Some(file) = file.filter(|_| disk.broken.get().is_none()) else {
            return Ok(reader);
        };
        match guarded(disk, || SerializedFileReader::new(file)) {
            Ok(file) => reader.table = Some(Table::new(file, scratch, disk, spec.range, shared)?),
            Err(error) => {
                disk.damaged(skip_broken, error)?;
                // The parts cannot be told apart: only the first one counts the file.
                if spec.range.is_some_and(|range| !range.begins_file()) {
                    disk.confine(0..0);
                }
            }
        }
        // Rows are read up to the place instead of skipped, so that damage before it is noticed again.
        while reader.row < row {
            if reader.peek(disk, skip_broken)?.is_none() {
                return Err(Error::Changed {
                    path: disk.path.clone(),
                    what: "has fewer rows than before".into(),
                });
            }
            reader.advance();
        }
        if handed > 0
            && let Some(Some(value)) = reader.peek(disk, skip_broken)?
        {
            reader.long = Some(reader.open_long(value, handed, shared));
        }
        Ok(reader)
    }

    pub fn place(&self) -> Place {
        Place::Parquet { row: self.row, handed: self.long.as_ref().map_or(0, |long| long.window.offset()) }
    }

    /// Fills `block` with rows or a part of one. True when that was the last.
    pub fn next(&mut self, shared: &Shared, disk: &Disk, file: u64, block: &mut Block) -> Result<bool> {
        let skip_broken = shared.options.skip_broken;
        block.text.clear();
        let (mut documents, mut nulls, mut invalid) = (0, 0, 0);
        let mut finished = false;
        for _ in 0..BLOCK_ROWS {
            if self.long.is_some() || block.fragments.len() >= shared.max_fragments {
                break;
            }
            let Some(value) = self.peek(disk, skip_broken)? else {
                finished = true;
                break;
            };
            let Some(value) = value else {
                nulls += 1;
                self.advance();
                continue;
            };
            let bytes = value.data();
            if block.text.len() + bytes.len() > shared.block_bytes {
                if block.text.is_empty() {
                    self.long = Some(self.open_long(value, 0, shared));
                }
                break;
            }
            let start = block.text.len();
            match simdutf8::basic::from_utf8(bytes) {
                Ok(text) => block.text.push_str(text),
                Err(_) => {
                    invalid += count_invalid(bytes);
                    block.text.push_str(&String::from_utf8_lossy(bytes));
                }
            }
            documents += 1;
            if block.text.len() > start {
                block.fragments.push(Fragment {
                    start,
                    end: block.text.len(),
                    file,
                    document: self.row,
                    ends_document: true,
                });
            }
            self.advance();
        }
        add(&shared.tally.documents, documents);
        add(&shared.tally.null_text, nulls);
        add(&shared.tally.invalid_utf8, invalid);
        add(&shared.tally.text_bytes, block.text.len() as u64);
        if let Some(long) = &mut self.long {
            // Only with an empty block: a row that did not fit after others is left for the next call.
            if long.next(shared, &Boundary::End, file, block)? {
                self.long = None;
                self.advance();
            }
        }
        if finished {
            disk.check_same_file()?;
        } else if let (Some(table), false) = (&self.table, self.compressed) {
            disk.advance_to(
                table.bytes.start + share(table.bytes.end - table.bytes.start, self.row, table.rows),
            );
        }
        Ok(finished)
    }

    /// The next row: `None` after the last, `Some(None)` if its text is null.
    fn peek(&mut self, disk: &Disk, skip_broken: bool) -> Result<Option<Option<ByteArray>>> {
        let Some(table) = &mut self.table else {
            return Ok(None);
        };
        if table.row.is_none() {
            match guarded(disk, || table.read_row()) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => {
                    disk.damaged(skip_broken, error)?;
                    self.table = None;
                    return Ok(None);
                }
            }
        }
        Ok(table.row.clone())
    }

    /// Advances past the row that `peek` returned.
    fn advance(&mut self) {
        self.row += 1;
        if let Some(table) = &mut self.table {
            table.row = None;
        }
    }

    fn open_long(&self, value: ByteArray, handed: u64, shared: &Shared) -> TextReader {
        let mut bytes = io::Cursor::new(value);
        bytes.set_position(handed);
        let window = Window::new(Box::new(Value(bytes)), Vec::new(), handed);
        let place = DocumentPlace { document: self.row, continues: handed > 0 };
        TextReader::new(window, place, shared)
    }
}

impl Table {
    fn new(
        file: SerializedFileReader<File>,
        scratch: Option<Scratch>,
        disk: &Disk,
        part: Option<super::Range>,
        shared: &Shared,
    ) -> Result<Table> {
        let field = &shared.options.text_field;
        let metadata = file.metadata().file_metadata();
        let columns = metadata.schema_descr().columns();
        let Some(column) = columns.iter().position(|c| c.path().string() == *field) else {
            let mut found: Vec<String> = columns.iter().map(|c| c.path().string()).collect();
            if found.len() > COLUMNS_SHOWN {
                let more = found.len() - COLUMNS_SHOWN;
                found.truncate(COLUMNS_SHOWN);
                found.push(format!("{more} more"));
            }
            return Err(Error::MissingField {
                path: disk.path.clone(),
                line: None,
                field: field.clone(),
                found,
            });
        };
        let description = &columns[column];
        let is_text = description.physical_type() == Type::BYTE_ARRAY
            && matches!(
                description.converted_type(),
                ConvertedType::NONE | ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON
            );
        if !is_text || description.max_rep_level() > 0 {
            return Err(Error::Invalid(format!(
                "{}: the column {field:?} has {} instead of one text per row: choose another with {}",
                disk.path.display(),
                if is_text { "lists" } else { "other values" },
                option("text_field"),
            )));
        }
        let present = description.max_def_level();
        let (groups, rows, bytes) = extent(&file, disk, part)?;
        Ok(Table {
            column,
            present,
            rows,
            bytes,
            groups,
            file,
            _scratch: scratch,
            chunk: None,
            row: None,
            values: Vec::new(),
            levels: Vec::new(),
        })
    }

    /// Decodes the next row; false when there are none left.
    fn read_row(&mut self) -> Result<bool, ParquetError> {
        loop {
            let Some(chunk) = &mut self.chunk else {
                let Some(group) = self.groups.next() else {
                    return Ok(false);
                };
                let group = self.file.get_row_group(group)?;
                let ColumnReader::ByteArrayColumnReader(chunk) = group.get_column_reader(self.column)? else {
                    return Err(ParquetError::General("the type of the column changes".into()));
                };
                self.chunk = Some(chunk);
                continue;
            };
            self.values.clear();
            self.levels.clear();
            let (rows, ..) = chunk.read_records(1, Some(&mut self.levels), None, &mut self.values)?;
            if rows == 0 {
                self.chunk = None;
                continue;
            }
            // There is no level if the column cannot be null.
            let is_there = self.levels.first().is_none_or(|&level| level == self.present);
            self.row = Some(self.values.pop().filter(|_| is_there));
            return Ok(true);
        }
    }
}

/// A value as a stream.
struct Value(io::Cursor<ByteArray>);

impl Bytes for Value {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        Ok(self.0.read(buffer).unwrap_or(0))
    }
}

/// parquet is read from its end, so a stream has to be written to a file first.
fn decompress_to_file(disk: &Arc<Disk>, compression: Compression, shared: &Shared) -> Result<Scratch> {
    let mut bytes = decompress::open(disk, compression, &shared.options, 0)?;
    let mut scratch = Scratch::create(&shared.options.spill_dir)?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        match bytes.read(&mut buffer)? {
            0 => return Ok(scratch),
            read => scratch.write(&buffer[..read])?,
        }
    }
}

/// Turns a failure of `read` into an error about the file.
fn guarded<T>(disk: &Disk, read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T> {
    let reason = match catch(read) {
        Ok(value) => return Ok(value),
        Err(Failure::Disk(source)) => return Err(Error::io(&disk.path, source)),
        Err(Failure::Content(reason)) => reason,
    };
    disk.check_unchanged()?;
    Err(Error::Broken {
        path: disk.path.clone(),
        line: None,
        what: format!("is not a valid parquet file ({reason})"),
    })
}
