//! The documents of a task, as they are in the files.

use super::{Job, Room};
use crate::crew::Progress;
use crate::documents::{Document, Documents, Limits};
use crate::error::Result;
use crate::source::{Counters, ReadOptions, Sources};
use crate::tasks::Task;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// The files of one task.
pub struct TaskFiles {
    sources: Sources,
    /// Of the file that is being read.
    path: Arc<Mutex<Arc<str>>>,
    limits: Limits,
}

impl TaskFiles {
    pub fn open(job: &Job, index: u32, room: &Room, progress: &Progress) -> Result<TaskFiles> {
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
            documents: plan.reading(),
            text_field: plan.text_field.clone(),
            skip_broken: plan.skip_broken,
            block_bytes: room.block_bytes,
            window_bytes: room.window_bytes,
            spill_dir: job.work.clone(),
            stable_prefix: Box::new(str::len),
            cancelled: progress.cancel_flag(),
        };
        let limits =
            Limits { max_bytes: plan.max_document_bytes, max_bytes_whole_files: plan.max_file_bytes };
        Ok(TaskFiles { sources: Sources::new(Box::new(named), 1, options)?, path, limits })
    }

    pub fn read<'a>(&'a self, progress: &'a Progress) -> TaskReader<'a> {
        TaskReader { files: self, documents: Documents::new(&self.sources, self.limits), told: 0, progress }
    }

    pub fn path(&self) -> Arc<str> {
        self.path.lock().unwrap().clone()
    }

    pub fn counters(&self) -> Counters {
        self.sources.counters()
    }
}

/// Goes through a task's documents, and tells the progress of it.
pub struct TaskReader<'a> {
    files: &'a TaskFiles,
    documents: Documents<'a>,
    told: u64,
    progress: &'a Progress,
}

/// Text read between two looks at the counters.
const TELL_EVERY: u64 = 256 << 10;

impl TaskReader<'_> {
    pub fn next(&mut self) -> Result<Option<Document<'_>>> {
        self.documents.next()
    }

    /// To be called now and then: hears a cancellation, and says how many bytes were read.
    pub fn tell(&mut self) -> Result<()> {
        self.progress.check()?;
        let read = self.files.counters().bytes_on_disk;
        self.progress.done.fetch_add(read - self.told, Relaxed);
        self.told = read;
        Ok(())
    }
}

/// Says when it is time to `tell`.
#[derive(Default)]
pub struct Pace(u64);

impl Pace {
    pub fn is_due(&mut self, bytes: usize) -> bool {
        self.0 += bytes as u64;
        let due = self.0 >= TELL_EVERY;
        if due {
            self.0 = 0;
        }
        due
    }
}
