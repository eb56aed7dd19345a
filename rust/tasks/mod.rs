//! Divides the input into tasks, each of which can be run, and run again after an interruption, by itself.
//!
//! The plan depends only on the input and the settings, never on budget, threads or what was done before. It is on
//! disk, and so is the list of files while it is collected: memory is one file's name (and for a large parquet file its
//! footer), even with a million files.
//!
//! ```text
//! DIR/segments   files and parts of files in input order (`records.rs`)
//! DIR/tasks      little-endian u64: where in `segments` each task begins, and the end; written last
//! ```

mod records;

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::atomic::{create_folder, sync_folder};
use crate::error::{Error, Result};
use crate::own_files::{self, damaged};
use crate::source::{self, Compression, Documents, FileSpec, Files, Format, Range};
use records::{Reader, Writer, compression_code, format_code};

/// About a thousand tasks, so that little is lost when one is interrupted, but none so small that opening files and
/// committing results would matter, and none that takes long.
const TASKS: u64 = 1024;
const LEAST_TASK: u64 = 16 << 20;
const LARGEST_TASK: u64 = 512 << 20;
/// From 8 TB on tasks are larger instead of more: every task opens a file of every partition, and a shared disk opens
/// some ten thousand files a second, for all machines together (docs/design/scale.md).
const MOST_TASKS: u64 = 16 << 10;

/// The assumed compression ratio. Standard input has an unknown length, and is treated as compressed.
const COMPRESSION_RATIO: u64 = 4;

const SEGMENTS: &str = "segments";
const TASKS_FILE: &str = "tasks";

pub struct PlanOptions {
    pub documents: Documents,
    /// Bytes per task; `None` chooses it by the size of the input.
    pub target_bytes: Option<u64>,
    /// Whether a text file that is one document stays whole, instead of becoming several.
    pub whole_documents: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanSummary {
    pub tasks: u32,
    pub files: u64,
    /// Bytes on disk of the files whose size is known.
    pub total_bytes: u64,
    /// Of all files in order: path, format, compression, size and modification time.
    pub fingerprint: [u8; 16],
}

/// Divides the files, each without a range, into tasks and writes the plan to `dir`, replacing any plan there.
pub fn plan(
    files: impl FnMut() -> Result<Option<FileSpec>>,
    options: &PlanOptions,
    dir: &Path,
) -> Result<PlanSummary> {
    create_folder(dir)?;
    let (mut listing, mut summary, weight) = list(files, dir)?;
    let target = options.target_bytes.map_or_else(|| task_bytes(weight), |bytes| bytes.max(1));
    let tasks_path = dir.join(TASKS_FILE);
    let mut division = Division {
        segments: Writer::create(&dir.join(SEGMENTS))?,
        tasks: Writer::create(&tasks_path)?,
        target,
        filled: 0,
        open: false,
        count: 0,
    };
    while let Some(spec) = listing.next()? {
        division.add_file(spec, options)?;
    }
    summary.tasks = division.count;
    let Division { segments, mut tasks, .. } = division;
    tasks.write(&segments.written().to_le_bytes())?;
    // Old tasks must not be used with new segments.
    match std::fs::remove_file(&tasks_path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::write(&tasks_path, error));
        }
        _ => sync_folder(dir)?,
    }
    segments.commit()?;
    tasks.commit()?;
    sync_folder(dir)?;
    Ok(summary)
}

/// Writes the list of all files; returns a reader of it, the totals, and their weight.
fn list(
    mut files: impl FnMut() -> Result<Option<FileSpec>>,
    dir: &Path,
) -> Result<(Reader, PlanSummary, u64)> {
    let mut listing = Writer::create(&dir.join("listing"))?;
    let mut summary = PlanSummary { tasks: 0, files: 0, total_bytes: 0, fingerprint: [0; 16] };
    let mut fingerprint = Xxh3::new();
    let mut total = 0u64;
    while let Some(spec) = files()? {
        let path = spec.path.as_os_str().as_bytes();
        fingerprint.update(&(path.len() as u64).to_le_bytes());
        fingerprint.update(path);
        fingerprint.update(&[format_code(spec.format), compression_code(spec.compression)]);
        fingerprint.update(&spec.size.map_or([0xFF; 8], u64::to_le_bytes));
        fingerprint.update(&spec.modified.unwrap_or(0).to_le_bytes());
        summary.files += 1;
        summary.total_bytes += spec.size.unwrap_or(0);
        total = total.saturating_add(weight(&spec).unwrap_or(0));
        listing.write_record(&FileSpec { range: None, ..spec })?;
    }
    summary.fingerprint = fingerprint.digest128().to_le_bytes();
    Ok((listing.into_reader()?, summary, total))
}

fn task_bytes(total: u64) -> u64 {
    let usual = (total / TASKS).min(LARGEST_TASK).next_power_of_two().clamp(LEAST_TASK, LARGEST_TASK);
    usual.max(total.div_ceil(MOST_TASKS).next_power_of_two())
}

/// How much work a file is, in bytes, if that is known.
fn weight(spec: &FileSpec) -> Option<u64> {
    let compressed = spec.compression != Compression::None || is_stdin(spec);
    Some(spec.size?.saturating_mul(if compressed { COMPRESSION_RATIO } else { 1 }))
}

fn is_stdin(spec: &FileSpec) -> bool {
    spec.path == Path::new("-")
}

/// The plan while it is written.
struct Division {
    segments: Writer,
    tasks: Writer,
    target: u64,
    /// Bytes in the last task so far.
    filled: u64,
    /// Whether the last task can have more segments.
    open: bool,
    count: u32,
}

impl Division {
    fn add_file(&mut self, mut spec: FileSpec, options: &PlanOptions) -> Result<()> {
        let documents = &options.documents;
        let target = self.target;
        let (Some(weight), Some(size)) = (weight(&spec), spec.size) else {
            return self.add(&spec, target);
        };
        let whole =
            options.whole_documents && spec.format == Format::Text && matches!(documents, Documents::File);
        if whole || is_stdin(&spec) || !source::can_split(documents, spec.format, spec.compression) {
            return self.add(&spec, weight);
        }
        if spec.format == Format::Parquet && size > target {
            return self.add_row_groups(spec, size);
        }
        let mut start = 0;
        // A small rest is not a part of its own.
        while spec.format != Format::Parquet && size - start > target.saturating_add(target / 2) {
            spec.range = Some(Range::Bytes { start, end: start + target });
            self.add(&spec, target)?;
            start += target;
        }
        if start > 0 {
            spec.range = Some(Range::Bytes { start, end: size });
        }
        self.add(&spec, size - start)
    }

    fn add_row_groups(&mut self, mut spec: FileSpec, size: u64) -> Result<()> {
        // A file without a valid footer is not divided: reading it will report the error.
        let groups = source::row_group_bytes(&spec.path)?.unwrap_or_default();
        let (mut first, mut together) = (0, 0u64);
        for (group, bytes) in groups.iter().enumerate() {
            together = together.saturating_add(*bytes);
            if together >= self.target && group + 1 < groups.len() {
                spec.range = Some(Range::RowGroups { first, end: group + 1 });
                self.add(&spec, together)?;
                (first, together) = (group + 1, 0);
            }
        }
        if first == 0 {
            return self.add(&spec, size);
        }
        spec.range = Some(Range::RowGroups { first, end: groups.len() });
        self.add(&spec, together)
    }

    fn add(&mut self, segment: &FileSpec, weight: u64) -> Result<()> {
        if !self.open {
            self.tasks.write(&self.segments.written().to_le_bytes())?;
            self.count = self.count.checked_add(1).ok_or_else(|| {
                Error::Invalid(
                    "the input has more than four billion tasks: split it into several runs".into(),
                )
            })?;
            (self.open, self.filled) = (true, 0);
        }
        self.segments.write_record(segment)?;
        self.filled = self.filled.saturating_add(weight);
        self.open = self.filled < self.target;
        Ok(())
    }
}

/// One task of a plan on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    segments: PathBuf,
    start: u64,
    end: u64,
}

impl Task {
    pub fn load(dir: &Path, index: u32) -> Result<Task> {
        let path = dir.join(TASKS_FILE);
        let mut file = own_files::open(&path).map_err(|error| Error::io(&path, error))?;
        let mut ends = [0; 16];
        file.seek(SeekFrom::Start(8 * u64::from(index))).and_then(|_| file.read_exact(&mut ends)).map_err(
            |error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => Error::Invalid(format!(
                    "{} has no task {index}: start from the beginning",
                    path.display()
                )),
                _ => Error::io(&path, error),
            },
        )?;
        let [start, end] = [&ends[..8], &ends[8..]].map(|end| u64::from_le_bytes(end.try_into().expect("8")));
        if start > end {
            return Err(damaged(&path));
        }
        Ok(Task { segments: dir.join(SEGMENTS), start, end })
    }

    /// The task's files and parts of files in input order, for `Sources::new`. Only one is in memory at a time.
    pub fn files(&self) -> Files {
        let task = self.clone();
        let mut reader = None;
        Box::new(move || match &mut reader {
            Some(reader) => Reader::next(reader),
            none => none.insert(Reader::open(&task.segments, task.start, task.end)?).next(),
        })
    }
}

#[cfg(test)]
mod tests;
