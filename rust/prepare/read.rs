//! Reads the documents of a task from its files.

use super::{BufferSizes, Job};
use crate::crew::Progress;
use crate::documents::{Document, Documents, Limits};
use crate::error::Result;
use crate::source::{self, Counters, ReadOptions, Sources};
use crate::tasks::Task;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// The files of one task.
pub struct TaskFiles {
    sources: Sources,
    /// The file that is being read.
    path: Arc<Mutex<Arc<str>>>,
    limits: Limits,
}

impl TaskFiles {
    pub fn open(job: &Job, index: u32, sizes: &BufferSizes, progress: &Progress) -> Result<TaskFiles> {
        let plan = &job.plan;
        let mut files = Task::load(&job.work.join("inputs"), index)?.files();
        let path: Arc<Mutex<Arc<str>>> = Arc::new(Mutex::new("".into()));
        let shown = path.clone();
        let named = move || {
            let next = files()?;
            if let Some(spec) = &next {
                *shown.lock().unwrap() = spec.path.to_string_lossy().into();
            }
            Ok(next)
        };
        let options = ReadOptions {
            documents: source::Documents::named(&plan.documents, plan.separator.as_deref())?,
            text_field: plan.text_field.clone(),
            skip_broken: plan.skip_broken,
            block_bytes: sizes.block_bytes,
            longest_part: None,
            window_bytes: sizes.window_bytes,
            spill_dir: job.work.clone(),
            stable_prefix: Box::new(str::len),
            cancelled: progress.cancel_flag(),
        };
        let limits =
            Limits { max_bytes: plan.max_document_bytes, max_bytes_whole_files: plan.max_file_bytes };
        Ok(TaskFiles { sources: Sources::new(Box::new(named), 1, options)?, path, limits })
    }

    pub fn read<'a>(&'a self, progress: &'a Progress) -> TaskReader<'a> {
        let documents = Documents::new(&self.sources, self.limits);
        TaskReader { files: self, documents, unreported: 0, reported: 0, progress }
    }

    pub fn path(&self) -> Arc<str> {
        self.path.lock().unwrap().clone()
    }

    pub fn counters(&self) -> Counters {
        self.sources.counters()
    }
}

/// Iterates over a task's documents and reports progress.
pub struct TaskReader<'a> {
    files: &'a TaskFiles,
    documents: Documents<'a>,
    /// Bytes of text since the last report.
    unreported: usize,
    /// Bytes on disk that were reported.
    reported: u64,
    progress: &'a Progress,
}

/// Bytes of text between two reports of progress.
const REPORT_EVERY: usize = 256 << 10;

impl TaskReader<'_> {
    pub fn next(&mut self) -> Result<Option<Document<'_>>> {
        self.documents.next()
    }

    /// To be called after each document, with its bytes.
    pub fn advance(&mut self, bytes: usize) -> Result<()> {
        self.unreported += bytes;
        if self.unreported < REPORT_EVERY { Ok(()) } else { self.report() }
    }

    /// Checks for cancellation, and adds the bytes read to the progress.
    pub fn report(&mut self) -> Result<()> {
        self.progress.check()?;
        let read = self.files.counters().bytes_on_disk;
        self.progress.done.fetch_add(read - self.reported, Relaxed);
        (self.unreported, self.reported) = (0, read);
        Ok(())
    }
}
