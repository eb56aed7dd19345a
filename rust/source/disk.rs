//! One input file on disk: opening it, noticing changes, and counting its bytes once however often reading is resumed.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use super::FileSpec;
use super::range::{self, read_at};
use super::stamp::{Stamp, resized, rewritten};
use super::tally::{Tally, add};
use super::text::Boundary;
use super::window::Bytes;
use crate::error::{Error, Result};

const QUICKLY_READ: u64 = 1 << 30;

/// Shared by a file's reader and its lane.
pub(super) struct Disk {
    pub path: PathBuf,
    /// `None` is standard input.
    file: Option<File>,
    planned: Option<u64>,
    /// When it was opened; `None` if it is not a regular file.
    stamp: Option<Stamp>,
    /// The part that is read, if not the whole file: nothing of other parts is read or counted here.
    part: OnceLock<Range<u64>>,
    /// The number of line ends before that part.
    lines_before: OnceLock<u64>,
    position: AtomicU64,
    /// Bytes of this file in `bytes_on_disk`: after resuming it is ahead of `position`, until that catches up.
    counted: AtomicU64,
    /// A read failed: then a decoder's error is not about the archive.
    failed: AtomicBool,
    /// What is wrong with the content, if the rest of the file is skipped.
    pub broken: OnceLock<String>,
    tally: Arc<Tally>,
    cancelled: Arc<AtomicBool>,
}

impl Disk {
    pub fn open(
        spec: &FileSpec,
        counted: u64,
        tally: &Arc<Tally>,
        cancelled: &Arc<AtomicBool>,
    ) -> Result<Arc<Disk>> {
        let file = if spec.path == Path::new("-") {
            None
        } else {
            Some(File::open(&spec.path).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    Error::Changed { path: spec.path.clone(), what: "does not exist anymore".into() }
                }
                _ => Error::io(&spec.path, error),
            })?)
        };
        let stamp = match &file {
            Some(file) => Stamp::of(file).map_err(|error| Error::io(&spec.path, error))?,
            None => None,
        };
        let disk = Disk {
            path: spec.path.clone(),
            file,
            stamp,
            planned: spec.size,
            part: OnceLock::new(),
            lines_before: OnceLock::new(),
            position: AtomicU64::new(0),
            counted: AtomicU64::new(counted),
            failed: AtomicBool::new(false),
            broken: OnceLock::new(),
            tally: Arc::clone(tally),
            cancelled: Arc::clone(cancelled),
        };
        disk.check_plan(spec.modified)?;
        Ok(Arc::new(disk))
    }

    pub fn is_stdin(&self) -> bool {
        self.file.is_none()
    }

    /// A second handle; it shares the file position with this one.
    pub fn handle(&self) -> Result<Option<File>> {
        self.file.as_ref().map(|file| file.try_clone().map_err(|e| Error::io(&self.path, e))).transpose()
    }

    /// Restricts reading to the documents that begin in a range of bytes. Returns the bytes of these documents.
    pub fn confine_to_documents(&self, boundary: &Boundary, start: u64, end: u64) -> Result<Range<u64>> {
        let file = self.file.as_ref().ok_or_else(|| self.indivisible())?;
        let part = range::align(file, boundary, start, end).map_err(|error| Error::io(&self.path, error))?;
        self.confine(part.clone());
        Ok(part)
    }

    /// Counts only the bytes of `part`, and ends streams at its end.
    pub fn confine(&self, part: Range<u64>) {
        self.counted.fetch_max(part.start, Relaxed);
        self.part.set(part).expect("called only once, when the file is opened");
    }

    pub fn is_in_parts(&self) -> bool {
        self.part.get().is_some()
    }

    pub fn indivisible(&self) -> Error {
        Error::Invalid(format!("{} cannot be read in parts", self.path.display()))
    }

    /// The first bytes of the file, even if another part of it is read.
    pub fn first_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 4];
        if let Some(file) = &self.file {
            let read = read_at(file, &mut bytes, 0).map_err(|error| Error::io(&self.path, error))?;
            bytes.truncate(read);
        }
        Ok(bytes)
    }

    /// Whether counting the lines before the part takes less than about a second.
    pub fn counts_lines_quickly(&self) -> bool {
        self.part.get().is_none_or(|part| part.start <= QUICKLY_READ)
    }

    /// How many lines come before the part. Reads all of them the first time, so it is only used for errors.
    pub fn lines_before(&self) -> Result<u64> {
        if let (None, Some(part), Some(file)) = (self.lines_before.get(), self.part.get(), &self.file) {
            let lines = range::count_lines(file, part.start).map_err(|error| Error::io(&self.path, error))?;
            // Another worker may have counted them in the meantime, with the same result.
            let _ = self.lines_before.set(lines);
        }
        Ok(self.lines_before.get().copied().unwrap_or(0))
    }

    pub fn seek(&self, offset: u64) -> Result<()> {
        let Some(mut file) = self.file.as_ref() else {
            return Err(stdin_cannot_resume());
        };
        file.seek(SeekFrom::Start(offset)).map_err(|error| Error::io(&self.path, error))?;
        self.advance_to(offset);
        Ok(())
    }

    /// Sets how much of the file has been consumed.
    pub fn advance_to(&self, position: u64) {
        self.position.store(position, Relaxed);
        let counted = self.counted.load(Relaxed);
        if position > counted {
            add(&self.tally.bytes_on_disk, position - counted);
            self.counted.store(position, Relaxed);
        }
    }

    pub fn counted(&self) -> u64 {
        self.counted.load(Relaxed)
    }

    /// Counts the bytes of the part that were not consumed.
    pub fn advance_to_end(&self) {
        if let Some(end) = self.part.get().map(|part| part.end).or(self.planned) {
            self.advance_to(end);
        }
    }

    /// Bytes of the part that were not read yet.
    fn left(&self) -> u64 {
        self.part.get().map_or(u64::MAX, |part| part.end.saturating_sub(self.position.load(Relaxed)))
    }

    pub fn planned(&self) -> Option<u64> {
        self.planned
    }

    /// Fails if the file has changed since the run was planned.
    fn check_plan(&self, modified: Option<i64>) -> Result<()> {
        match (&self.stamp, self.planned) {
            (Some(stamp), Some(planned)) if stamp.size() != planned => {
                Err(self.changed(resized(planned, stamp.size())))
            }
            (Some(stamp), _) if modified.is_some_and(|modified| modified != stamp.modified()) => {
                Err(self.changed(rewritten()))
            }
            _ => Ok(()),
        }
    }

    /// Fails if the file was written to since it was opened. Costs less than reading a few kilobytes.
    pub fn check_unchanged(&self) -> Result<()> {
        let (Some(file), Some(before)) = (&self.file, &self.stamp) else {
            return Ok(());
        };
        let now = Stamp::of(file).map_err(|error| Error::io(&self.path, error))?;
        self.check_same(before, now)
    }

    /// For the end of reading: the file must not have changed, and must still be the one at the path. A file that was
    /// removed stays readable while it is open.
    pub fn check_same_file(&self) -> Result<()> {
        self.check_unchanged()?;
        match (&self.stamp, Stamp::at(&self.path)) {
            (Some(before), Ok(now)) => self.check_same(before, now),
            _ => Ok(()),
        }
    }

    /// For the end of the bytes: their number must also be as planned.
    pub fn check_end(&self) -> Result<()> {
        self.check_same_file()?;
        let position = self.position.load(Relaxed);
        match self.planned {
            Some(planned) if self.left() > 0 && position != planned => {
                let reason = format!(
                    "it has {position} bytes although its size is {planned}: copy its content to a regular file, and use that"
                );
                Err(Error::io(&self.path, io::Error::other(reason)))
            }
            _ => Ok(()),
        }
    }

    fn check_same(&self, before: &Stamp, now: Option<Stamp>) -> Result<()> {
        match now.map_or_else(|| Some("is not a file anymore".into()), |now| before.difference(&now)) {
            Some(what) => Err(self.changed(what)),
            None => Ok(()),
        }
    }

    fn changed(&self, what: String) -> Error {
        Error::Changed { path: self.path.clone(), what }
    }

    /// Whether a read failed since the file was opened.
    pub fn failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// The file's content is damaged: fails, or with `skip_broken` treats this as the end of the file.
    pub fn damaged(&self, skip_broken: bool, error: Error) -> Result<()> {
        match error {
            Error::Broken { what, .. } if skip_broken => self.set_broken(what),
            Error::NotUtf8 { encoding, .. } if skip_broken => {
                self.set_broken(format!("looks like {encoding}, not UTF-8"))
            }
            error => Err(error),
        }
    }

    fn set_broken(&self, what: String) -> Result<()> {
        // Only the first problem is reported.
        let _ = self.broken.set(what);
        Ok(())
    }
}

pub(super) fn stdin_cannot_resume() -> Error {
    Error::Invalid("standard input cannot be resumed in the middle: start from the beginning".into())
}

/// Waits a moment for standard input: a read could block forever, and Ctrl-C would not end it.
fn stdin_is_ready() -> bool {
    let mut wanted = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, for the duration of the call. Anything but `POLLIN` (an end, an error) is left to the
    // read.
    unsafe { libc::poll(&mut wanted, 1, 100) != 0 }
}

/// The bytes of the file as they are.
pub(super) struct PlainBytes(pub Arc<Disk>);

impl Read for PlainBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let disk = &self.0;
        let most = buffer.len().min(usize::try_from(disk.left()).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..most];
        loop {
            let result = match disk.file.as_ref() {
                Some(mut file) => file.read(buffer),
                None if disk.cancelled.load(Relaxed) => return Ok(0),
                None if !stdin_is_ready() => continue,
                None => io::stdin().read(buffer),
            };
            match result {
                Ok(read) => {
                    disk.advance_to(disk.position.load(Relaxed) + read as u64);
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    disk.failed.store(true, Relaxed);
                    return Err(error);
                }
            }
        }
    }
}

impl Bytes for PlainBytes {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let read = Read::read(self, buffer).map_err(|error| Error::io(&self.0.path, error))?;
        match read {
            0 => self.0.check_end()?,
            _ => self.0.check_unchanged()?,
        }
        Ok(read)
    }
}
