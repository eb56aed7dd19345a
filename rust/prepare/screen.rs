//! Finds the documents that share an n-gram with the evaluation set, in as many passes as its n-grams take memory.
//!
//! The last pass is part of the scan, so a set that fits costs no reading of its own. The others read and clean every
//! task once each; their hits are in `work/exclude`, with the number of rows of the set that were compared. That number
//! is all that a later run needs: it resumes there, with whatever memory it has.

use super::ledger::Origin;
use super::read::TaskFiles;
use super::{BufferSizes, Job, Stage, run_parts};
use crate::clean::{Cleaner, Dropped, Verdict};
use crate::crew::{Progress, Watch};
use crate::error::{Error, Result};
use crate::exclude::{Hit, Hits, LEAST_MEMORY, ROW_MEMORY, Screen, Set, SetFile};
use crate::own_files;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BinaryHeap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

const EXCLUDE_FOLDER: &str = "exclude";

fn set_path(job: &Job) -> PathBuf {
    job.work.join(EXCLUDE_FOLDER).join("ngrams")
}

fn hits_path(job: &Job, folder: &str, task: u32) -> PathBuf {
    job.work.join(folder).join(format!("{task:06}.hits"))
}

/// The documents of a task that share an n-gram with the set; `None` without a set. Every scanned task has the file,
/// even if no document does.
pub fn hits(job: &Job, task: u32) -> Result<Option<Hits>> {
    if job.plan.exclude_ngram == 0 {
        return Ok(None);
    }
    let path = hits_path(job, Stage::Scan.folder(), task);
    match Hits::open(&path)? {
        Some(hits) => Ok(Some(hits)),
        None => Err(Error::Invalid(format!(
            "{} is missing: remove {} and run the same command again",
            path.display(),
            job.work.join(Stage::Scan.folder()).display()
        ))),
    }
}

/// Rows of the set that are in memory; the last ones for the scan.
pub struct Excluded {
    set: Set,
    rows: Range<usize>,
    ngram: usize,
}

impl Excluded {
    fn load(job: &Job, file: &SetFile, rows: Range<usize>) -> Result<Excluded> {
        Ok(Excluded { set: Set::load(file, rows.clone())?, rows, ngram: job.plan.exclude_ngram })
    }

    fn screen(&self, job: &Job, folder: &str, task: u32) -> Result<Screen<'_>> {
        let earlier = Hits::of_rows(&hits_path(job, EXCLUDE_FOLDER, task), self.rows.start)?;
        Screen::create(&self.set, self.ngram, earlier, &hits_path(job, folder, task))
    }

    pub fn last_screen(&self, job: &Job, task: u32) -> Result<Screen<'_>> {
        self.screen(job, Stage::Scan.folder(), task)
    }

    pub fn commit_last(&self, screen: Screen<'_>) -> Result<()> {
        screen.commit(self.rows.end)
    }
}

/// Compares the tasks with the rows of the set that do not fit with the last ones. Returns these, in memory, and the
/// memory that is left; nothing if the plan excludes nothing.
pub fn screen(
    job: &Job,
    tasks: &[u32],
    memory: usize,
    threads: usize,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<(Option<Excluded>, usize)> {
    if job.plan.exclude_ngram == 0 {
        return Ok((None, memory));
    }
    let file = SetFile::open(&set_path(job))?;
    let least = threads * BufferSizes::least_memory(&job.plan) + BufferSizes::shared_memory(&job.plan, true);
    let room = LEAST_MEMORY + memory.saturating_sub(least) / 2;
    // One row less than fits, for what a set has in addition to its rows.
    let rows_per_pass = (room / ROW_MEMORY).saturating_sub(1).max(1);
    let last = file.rows().saturating_sub(rows_per_pass)..file.rows();
    let memory = memory - (last.len() * ROW_MEMORY).saturating_sub(LEAST_MEMORY).min(memory);
    let sizes = BufferSizes::new(&job.plan, memory, threads);
    let input_bytes = progress.total.load(Relaxed);
    while let Some(first) = first_row_left(job, tasks)?.filter(|&row| row < last.start) {
        let passes = (last.start - first).div_ceil(rows_per_pass) as u64 + 1;
        progress.total.store(progress.done.load(Relaxed) + passes * input_bytes, Relaxed);
        let rows = first..last.start.min(first + rows_per_pass);
        let excluded = Excluded::load(job, &file, rows)?;
        run_parts(tasks, threads, progress, watch, |task, _| {
            screen_task(job, task, &excluded, &sizes, progress)
        })?;
    }
    Ok((Some(Excluded::load(job, &file, last)?), memory))
}

/// The first row that some task was not compared with; `None` if all tasks are scanned.
fn first_row_left(job: &Job, tasks: &[u32]) -> Result<Option<usize>> {
    let mut first = None;
    for &task in tasks {
        if let Some(compared) = rows_compared(job, task)? {
            first = Some(first.unwrap_or(usize::MAX).min(compared));
        }
    }
    Ok(first)
}

/// `None` if the task is scanned, which includes all rows.
fn rows_compared(job: &Job, task: u32) -> Result<Option<usize>> {
    if job.note(Stage::Scan.folder(), task).exists() {
        return Ok(None);
    }
    let earlier = Hits::open(&hits_path(job, EXCLUDE_FOLDER, task))?;
    Ok(Some(earlier.map_or(0, |hits| hits.rows_compared())))
}

fn screen_task(
    job: &Job,
    task: u32,
    excluded: &Excluded,
    sizes: &BufferSizes,
    progress: &Progress,
) -> Result<()> {
    if rows_compared(job, task)?.is_none_or(|compared| compared >= excluded.rows.end) {
        return Ok(());
    }
    let mut screen = excluded.screen(job, EXCLUDE_FOLDER, task)?;
    let mut cleaner = Cleaner::new(job.plan.clean.clone());
    let files = TaskFiles::open(job, task, sizes, progress)?;
    let mut reader = files.read(progress);
    while let Some(document) = reader.next()? {
        let bytes = document.text.len();
        if let Verdict::Keep(text) = cleaner.clean(document.text, &mut Dropped::default()) {
            screen.compare(text)?;
        }
        reader.advance(bytes)?;
    }
    reader.report()?;
    screen.commit(excluded.rows.end)
}

/// Contaminated documents that are shown, of a task and of a run: those with the smallest hashes.
const EXAMPLES: usize = 100;
const PASSAGE_CHARACTERS: usize = 400;

/// A contaminated document. In the order of its hash, then of its place in the task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Example {
    hash: u64,
    task: u32,
    number: u64,
    ngram: u64,
    source: String,
    document: u64,
    passage: String,
}

/// The first documents by hash, whatever the order in which they are added.
#[derive(Default)]
pub struct Examples(BinaryHeap<Example>);

impl Examples {
    pub fn add(&mut self, hash: u64, text: &str, hit: &Hit, origin: Origin) {
        if self.0.len() == EXAMPLES && self.0.peek().is_some_and(|last| last.hash < hash) {
            return;
        }
        let passage = text.get(hit.start as usize..hit.end as usize).unwrap_or_default();
        self.push(Example {
            hash,
            task: 0,
            number: hit.document,
            ngram: hit.hash,
            source: origin.path.to_string(),
            document: origin.document,
            passage: passage.chars().take(PASSAGE_CHARACTERS).collect(),
        });
    }

    fn push(&mut self, example: Example) {
        self.0.push(example);
        if self.0.len() > EXAMPLES {
            self.0.pop();
        }
    }
}

impl Serialize for Examples {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.0)
    }
}

/// The part of `scan`'s note that is read here.
#[derive(Deserialize)]
struct Scanned {
    contaminated: Vec<Example>,
}

/// An example with the file of the evaluation set, and the document in it, where its n-gram occurs first.
#[derive(Serialize)]
pub struct Contaminated {
    source: String,
    document: u64,
    passage: String,
    excluded_file: u32,
    excluded_document: u32,
}

/// Examples of the run's contaminated documents, in the order of the input.
pub fn contaminated(job: &Job) -> Result<Vec<Contaminated>> {
    let mut examples = Examples::default();
    for task in 0..job.plan.tasks {
        let Scanned { contaminated } = own_files::read_json(&job.note(Stage::Scan.folder(), task))?;
        contaminated.into_iter().for_each(|example| examples.push(Example { task, ..example }));
    }
    let mut examples = examples.0.into_vec();
    examples.sort_by_key(|example| (example.task, example.number));
    let hashes: Vec<u64> = examples.iter().map(|example| example.ngram).collect();
    let origins = SetFile::open(&set_path(job))?.origins(&hashes)?;
    let found = examples.into_iter().zip(origins).filter_map(|(example, origin)| {
        let (excluded_file, excluded_document) = origin?;
        let Example { source, document, passage, .. } = example;
        Some(Contaminated { source, document, passage, excluded_file, excluded_document })
    });
    Ok(found.collect())
}
