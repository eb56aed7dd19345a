//! Lanes: the open files, and the workers that read blocks from them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use super::disk::{Disk, stdin_cannot_resume};
use super::jsonl::{self, Filled, JsonlReader};
use super::parquet::ParquetReader;
use super::tally::add;
use super::text::{Boundary, DocumentPlace, TextReader};
use super::window::Window;
use super::{
    Block, Compression, Counters, Documents, FilePosition, FileSpec, Format, Place, Position, Range,
    ReadOptions, Shared, decompress,
};
use crate::error::{Error, Result};

/// Yields the files one at a time, so that a large number of them takes no memory.
pub type Files = Box<dyn FnMut() -> Result<Option<FileSpec>> + Send>;

/// Shared by all workers.
///
/// ```text
/// let sources = Sources::new(files, 2, ReadOptions::default())?;
/// let mut block = Block::new();
/// while sources.next_block(worker, &mut block)? {
///     for (fragment, text) in block.iter() { ... }
/// }
/// ```
pub struct Sources {
    shared: Shared,
    files: Mutex<FileQueue>,
    lanes: Vec<Mutex<Lane>>,
    failed: AtomicBool,
}

struct FileQueue {
    next: Files,
    taken: u64,
    exhausted: bool,
    /// Files that were open when the run was interrupted: at most as many as it had lanes.
    interrupted: VecDeque<(FileSpec, FilePosition)>,
}

#[derive(Default)]
struct Lane {
    file: Option<OpenFile>,
    /// The last file's buffer, reused for the next one.
    buffer: Vec<u8>,
}

struct OpenFile {
    ordinal: u64,
    spec: FileSpec,
    disk: Arc<Disk>,
    reader: Reader,
}

enum Reader {
    Text(TextReader),
    Jsonl(JsonlReader),
    Parquet(Box<ParquetReader>),
    /// No document begins in the part of the file to be read.
    Nothing,
}

impl Sources {
    /// `lanes` is how many files are open at once. Worker w reads lane w modulo `lanes`.
    pub fn new(files: Files, lanes: usize, options: ReadOptions) -> Result<Sources> {
        Ok(Sources {
            shared: Shared::new(options)?,
            files: Mutex::new(FileQueue {
                next: files,
                taken: 0,
                exhausted: false,
                interrupted: VecDeque::new(),
            }),
            lanes: (0..lanes.max(1)).map(|_| Mutex::default()).collect(),
            failed: AtomicBool::new(false),
        })
    }

    /// Fills `block` with the next text, which may be empty; false at the end of all files.
    ///
    /// An error ends the reading: it is returned to one worker, and all later calls return false.
    pub fn next_block(&self, worker: usize, block: &mut Block) -> Result<bool> {
        if self.failed.load(Relaxed) {
            return Ok(false);
        }
        block.begin(self.shared.block_bytes);
        let filled = self.fill(worker, block);
        if filled.is_err() {
            self.failed.store(true, Relaxed);
        }
        filled
    }

    /// The current counters. Does not wait for reads.
    pub fn counters(&self) -> Counters {
        self.shared.tally.snapshot()
    }

    /// The current position. To be called when no worker is inside `next_block` and all blocks have been processed;
    /// `None` after an error, because the last blocks never reached their workers.
    pub fn position(&self) -> Option<Position> {
        if self.failed.load(Relaxed) {
            return None;
        }
        let files = self.files.lock().expect(PANICKED);
        let mut open: Vec<FilePosition> = self
            .lanes
            .iter()
            .filter_map(|lane| Some(lane.lock().expect(PANICKED).file.as_ref()?.position()))
            .chain(files.interrupted.iter().map(|(_, at)| at.clone()))
            .collect();
        open.sort_by_key(|file| file.file);
        Some(Position { files_taken: files.taken, open, counters: self.counters() })
    }

    /// Resumes from `position`; to be called before the first block is read. The files must be the same, in the same
    /// order; lanes, workers and block size may differ.
    pub fn resume(&self, position: Position) -> Result<()> {
        let mut files = self.files.lock().expect(PANICKED);
        if files.taken > 0 {
            return Err(Error::Invalid(
                "reading has already begun: it can only be resumed before the first block".into(),
            ));
        }
        let mut open = position.open.into_iter().peekable();
        while files.taken < position.files_taken {
            let Some(spec) = (files.next)()? else {
                return Err(Error::Invalid(format!(
                    "there were at least {} files when the run was interrupted, now there are {}: start from the beginning",
                    position.files_taken, files.taken
                )));
            };
            if let Some(at) = open.next_if(|at| at.file == files.taken) {
                if at.path != spec.path.to_string_lossy() || at.size != spec.size || at.range != spec.range {
                    return Err(Error::Changed {
                        path: spec.path,
                        what: format!(
                            "is not the file that was being read when the run was interrupted ({})",
                            at.path
                        ),
                    });
                }
                if at.path == "-" {
                    return Err(stdin_cannot_resume());
                }
                files.interrupted.push_back((spec, at));
            }
            files.taken += 1;
        }
        self.shared.tally.restore(position.counters);
        Ok(())
    }

    fn fill(&self, worker: usize, block: &mut Block) -> Result<bool> {
        match self.read_from_any(worker, block)? {
            None => return Ok(false),
            Some(Filled::Text) => {}
            Some(Filled::Lines(lines)) => jsonl::parse(&self.shared, &lines, block)?,
        }
        block.seal();
        Ok(true)
    }

    fn read_from_any(&self, worker: usize, block: &mut Block) -> Result<Option<Filled>> {
        let lanes = self.lanes.len();
        let own = worker % lanes;
        if let Some(filled) = self.read_from(self.lanes[own].lock().expect(PANICKED), block)? {
            return Ok(Some(filled));
        }
        // No file is left to open: help with one that is still being read, preferably one that nobody waits for.
        let others = || (1..lanes).map(|step| &self.lanes[(own + step) % lanes]);
        for lane in others() {
            match lane.try_lock() {
                Ok(lane) => {
                    if let Some(filled) = self.read_from(lane, block)? {
                        return Ok(Some(filled));
                    }
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Poisoned(_)) => panic!("{PANICKED}"),
            }
        }
        for lane in others() {
            if let Some(filled) = self.read_from(lane.lock().expect(PANICKED), block)? {
                return Ok(Some(filled));
            }
        }
        Ok(None)
    }

    fn read_from(&self, mut lane: MutexGuard<'_, Lane>, block: &mut Block) -> Result<Option<Filled>> {
        if lane.file.is_none() {
            let Some((ordinal, spec, at)) = self.files.lock().expect(PANICKED).take()? else {
                return Ok(None);
            };
            let buffer = std::mem::take(&mut lane.buffer);
            lane.file = Some(OpenFile::open(ordinal, spec, at, buffer, &self.shared)?);
        }
        let file = lane.file.as_mut().expect("opened above");
        block.whole_file =
            file.spec.format == Format::Text && self.shared.options.documents == Documents::File;
        let (filled, finished) = file.next(&self.shared, block)?;
        if finished {
            let file = lane.file.take().expect("read above");
            lane.buffer = file.close(&self.shared);
        }
        Ok(Some(filled))
    }
}

const PANICKED: &str = "a worker panicked while it was reading";

impl FileQueue {
    fn take(&mut self) -> Result<Option<(u64, FileSpec, Option<FilePosition>)>> {
        if let Some((spec, at)) = self.interrupted.pop_front() {
            return Ok(Some((at.file, spec, Some(at))));
        }
        if self.exhausted {
            return Ok(None);
        }
        let Some(spec) = (self.next)()? else {
            self.exhausted = true;
            return Ok(None);
        };
        self.taken += 1;
        Ok(Some((self.taken - 1, spec, None)))
    }
}

impl OpenFile {
    fn open(
        ordinal: u64,
        spec: FileSpec,
        at: Option<FilePosition>,
        buffer: Vec<u8>,
        shared: &Shared,
    ) -> Result<OpenFile> {
        let counted = at.as_ref().map_or(0, |at| at.counted);
        let disk = Disk::open(&spec, counted, &shared.tally, &shared.options.cancelled)?;
        let place = at.map(|at| at.place);
        let mut start = 0;
        match spec.range {
            Some(Range::Bytes { start: from, end })
                if spec.format != Format::Parquet && spec.compression == Compression::None =>
            {
                let boundary = if spec.format == Format::Jsonl { &Boundary::Line } else { &shared.boundary };
                let part = disk.confine_to_documents(boundary, from, end)?;
                if from > 0 && (part.is_empty() || has_foreign_encoding(&disk, shared)?) {
                    return Ok(OpenFile { ordinal, spec, disk, reader: Reader::Nothing });
                }
                start = part.start;
            }
            Some(_) if spec.format != Format::Parquet => return Err(disk.indivisible()),
            _ => {}
        }
        let stream = |offset, buffer| -> Result<Window> {
            let bytes = decompress::open(&disk, spec.compression, &shared.options, offset)?;
            Ok(Window::new(bytes, buffer, offset))
        };
        let reader = match (spec.format, place) {
            (Format::Text, None) => {
                let mut window = stream(start, buffer)?;
                if start == 0 {
                    skip_byte_order_mark(&mut window, &disk, shared)?;
                }
                Reader::Text(TextReader::new(window, DocumentPlace::default(), shared))
            }
            (Format::Text, Some(Place::Text { offset, document, continues })) => {
                let place = DocumentPlace { document, continues };
                Reader::Text(TextReader::new(stream(offset, buffer)?, place, shared))
            }
            (Format::Jsonl, None) => {
                let mut window = stream(start, buffer)?;
                if start == 0 {
                    skip_byte_order_mark(&mut window, &disk, shared)?;
                }
                Reader::Jsonl(JsonlReader::new(window))
            }
            (Format::Jsonl, Some(Place::Jsonl { offset, line, handed })) => {
                let window = stream(offset, buffer)?;
                Reader::Jsonl(JsonlReader::resume(window, line, handed, shared, &disk)?)
            }
            (Format::Parquet, place) => {
                let (row, handed) = match place {
                    Some(Place::Parquet { row, handed }) => (row, handed),
                    _ => (0, 0),
                };
                let table = ParquetReader::open(&disk, &spec, shared, row, handed)?;
                Reader::Parquet(Box::new(table))
            }
            _ => {
                return Err(Error::Changed {
                    path: spec.path,
                    what: "was read in another format when the run was interrupted".into(),
                });
            }
        };
        Ok(OpenFile { ordinal, spec, disk, reader })
    }

    fn next(&mut self, shared: &Shared, block: &mut Block) -> Result<(Filled, bool)> {
        match &mut self.reader {
            Reader::Text(reader) => {
                let finished = reader.next(shared, &shared.boundary, self.ordinal, block)?;
                Ok((Filled::Text, finished))
            }
            Reader::Jsonl(reader) => reader.next(shared, &self.disk, self.ordinal, block),
            Reader::Parquet(reader) => {
                let finished = reader.next(shared, &self.disk, self.ordinal, block)?;
                Ok((Filled::Text, finished))
            }
            Reader::Nothing => {
                block.text.clear();
                Ok((Filled::Text, true))
            }
        }
    }

    /// Counts the file as read and returns its buffer.
    fn close(self, shared: &Shared) -> Vec<u8> {
        self.disk.advance_to_end();
        if let Some(what) = self.disk.broken.get() {
            add(&shared.tally.broken_files, 1);
            shared.tally.example(|| format!("{} {what}", self.disk.path.display()));
        }
        add(&shared.tally.files, u64::from(self.spec.range.is_none_or(|range| range.begins_file())));
        match self.reader {
            Reader::Text(reader) => reader.window.into_buffer(),
            Reader::Jsonl(reader) => reader.into_buffer(),
            Reader::Parquet(_) | Reader::Nothing => Vec::new(),
        }
    }

    fn position(&self) -> FilePosition {
        FilePosition {
            file: self.ordinal,
            path: self.spec.path.to_string_lossy().into_owned(),
            size: self.spec.size,
            range: self.spec.range,
            counted: self.disk.counted(),
            place: match &self.reader {
                Reader::Text(reader) => Place::Text {
                    offset: reader.window.offset(),
                    document: reader.place.document,
                    continues: reader.place.continues,
                },
                Reader::Jsonl(reader) => reader.place(),
                Reader::Parquet(reader) => reader.place(),
                Reader::Nothing => unreachable!("closed by the same call that opened it"),
            },
        }
    }
}

/// Skips a UTF-8 byte order mark, or rejects the file.
fn skip_byte_order_mark(window: &mut Window, disk: &Disk, shared: &Shared) -> Result<()> {
    window.fill(4)?;
    // The first of several parts may be shorter than a mark.
    let encoding = match disk.is_in_parts() {
        true => foreign_encoding(&disk.first_bytes()?),
        false => foreign_encoding(window.bytes()),
    };
    if let Some(encoding) = encoding {
        let error = Error::NotUtf8 { path: disk.path.clone(), encoding };
        disk.damaged(shared.options.skip_broken, error)?;
        window.end();
    } else if window.bytes().starts_with(b"\xEF\xBB\xBF") {
        window.consume(3);
    }
    Ok(())
}

/// Whether a later part is from a file that `skip_byte_order_mark` rejects; the first part counts it as broken.
fn has_foreign_encoding(disk: &Disk, shared: &Shared) -> Result<bool> {
    match foreign_encoding(&disk.first_bytes()?) {
        Some(encoding) if !shared.options.skip_broken => {
            Err(Error::NotUtf8 { path: disk.path.clone(), encoding })
        }
        encoding => Ok(encoding.is_some()),
    }
}

/// UTF-16 would decode to U+FFFD and NUL only, so it is not read.
fn foreign_encoding(start: &[u8]) -> Option<&'static str> {
    match start {
        [0xFF, 0xFE, 0, 0, ..] | [0, 0, 0xFE, 0xFF, ..] => Some("UTF-32"),
        [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => Some("UTF-16"),
        _ => None,
    }
}
