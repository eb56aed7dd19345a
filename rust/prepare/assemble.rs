//! Assembles the shards from the tokens of all tasks, in order.
//!
//! Which documents go into which shard depends on their lengths alone. It is laid out first, in one pass over the
//! documents' ends; then each shard is copied together by itself, on any thread, and a note is written when it is
//! complete.

use super::near::dropped::DroppedPieces;
use super::shard::{ShardRecord, ShardWriter, finished_shard};
use super::tokens::{Candidate, Ends, Ids, TaskTokens, load_tasks};
use super::{Job, Split};
use crate::atomic::{NewFile, create_folder, sync_folder};
use crate::crew::{Progress, Watch, crew};
use crate::error::{Error, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Consecutive documents of one task's split; near-duplicates may be among them, which are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    pub task: u32,
    /// The split of the task file they are in; it differs from where they go for at most one document.
    pub from: Split,
    pub documents: Range<u64>,
    pub tokens: Range<u64>,
    /// Near-duplicates directly before it.
    pub dropped_before: u64,
}

struct Shard {
    split: Split,
    number: u64,
    extents: Vec<Extent>,
    tokens: u64,
}

/// The documents of one split, in order, whatever file they are in.
pub struct Stream<'a> {
    job: &'a Job,
    tasks: &'a [TaskTokens],
    split: Split,
    moved: Option<Moved>,
}

/// The one document that goes to the other split because the hash sent none there.
struct Moved {
    from: Split,
    task: u32,
    pieces: Range<u64>,
}

impl<'a> Stream<'a> {
    pub fn new(job: &'a Job, tasks: &'a [TaskTokens], split: Split) -> Self {
        Stream { job, tasks, split, moved: document_to_move(job, tasks) }
    }

    /// Calls `each` with every document as an extent of its own.
    pub fn for_each(&self, mut each: impl FnMut(Extent) -> Result<()>) -> Result<()> {
        if let Some(moved) = self.moved.as_ref().filter(|moved| moved.from != self.split) {
            let mut pieces = moved.pieces.clone();
            return pieces.try_for_each(|piece| each(self.extent(moved.task, moved.from, piece)?));
        }
        let is_moved = |task: u32, document: u64| {
            self.moved.as_ref().is_some_and(|moved| moved.task == task && moved.pieces.contains(&document))
        };
        for (task, written) in self.tasks.iter().enumerate() {
            let task = task as u32;
            if written.of(self.split).documents == 0 {
                continue;
            }
            let mut ends = Ends::open(self.job, task, self.split, 0)?;
            let mut dropped = DroppedPieces::open(self.job, task, self.split)?;
            let (mut start, mut document, mut dropped_before, mut kept) = (0, 0, 0, 0);
            while let Some(end) = ends.next_end()? {
                if dropped.contains(document)? {
                    dropped_before += 1;
                } else {
                    kept += 1;
                    if !is_moved(task, document) {
                        each(Extent {
                            task,
                            from: self.split,
                            documents: document..document + 1,
                            tokens: start..end,
                            dropped_before,
                        })?;
                    }
                    dropped_before = 0;
                }
                (start, document) = (end, document + 1);
            }
            if kept != written.of(self.split).documents {
                return Err(Error::Invalid(format!(
                    "{} was changed by another program: remove {} and run the same command again",
                    super::tokens::path(self.job, task, self.split, "ends").display(),
                    self.job.work.display()
                )));
            }
        }
        Ok(())
    }

    fn extent(&self, task: u32, from: Split, document: u64) -> Result<Extent> {
        let end_of = |document: u64| {
            let end = Ends::open(self.job, task, from, document)?.next_end()?;
            end.ok_or_else(|| Error::Invalid(format!("task {task} has no document {document}")))
        };
        let start = if document == 0 { 0 } else { end_of(document - 1)? };
        let tokens = start..end_of(document)?;
        Ok(Extent { task, from, documents: document..document + 1, tokens, dropped_before: 0 })
    }
}

/// With few documents the hash may send all of them to one split; then the one with the hash closest to the other split
/// goes there. A single document stays in training.
fn document_to_move(job: &Job, tasks: &[TaskTokens]) -> Option<Moved> {
    let count = |split| tasks.iter().map(|task| task.of(split).documents).sum::<u64>();
    if job.plan.val_fraction <= 0.0 || job.plan.appends {
        return None;
    }
    let of_tasks = |nearest: fn(&TaskTokens) -> Option<Candidate>| {
        tasks
            .iter()
            .enumerate()
            .filter_map(move |(task, tokens)| nearest(tokens).map(|found| (found, task as u32)))
    };
    let (from, (Candidate { document, pieces, .. }, task)) = match (count(Split::Train), count(Split::Val)) {
        (0, _) => {
            (Split::Val, of_tasks(|task| task.last_val).max_by_key(|(found, task)| (found.hash, *task))?)
        }
        (_, 0) => {
            (Split::Train, of_tasks(|task| task.candidate).min_by_key(|(found, task)| (found.hash, *task))?)
        }
        _ => return None,
    };
    let only = from == Split::Train && count(Split::Train) <= pieces;
    (!only).then_some(Moved { from, task, pieces: document..document + pieces })
}

fn lay_out(job: &Job, tasks: &[TaskTokens]) -> Result<Vec<Shard>> {
    let mut shards: Vec<Shard> = Vec::new();
    for split in Split::ALL {
        let first = shards.len();
        Stream::new(job, tasks, split).for_each(|document| {
            let tokens = document.tokens.end - document.tokens.start;
            let full = match &shards[first..] {
                [] => true,
                [.., last] => last.tokens + tokens > job.plan.tokens_per_shard,
            };
            if full {
                let number = job.plan.first_shard(split) + (shards.len() - first) as u64;
                shards.push(Shard { split, number, extents: Vec::new(), tokens: 0 });
            }
            let shard = shards.last_mut().expect("pushed above");
            shard.tokens += tokens;
            match shard.extents.last_mut() {
                Some(last)
                    if (last.task, last.from) == (document.task, document.from)
                        && last.documents.end + document.dropped_before == document.documents.start =>
                {
                    last.documents.end = document.documents.end;
                    last.tokens.end = document.tokens.end;
                }
                _ => shard.extents.push(document),
            }
            Ok(())
        })?;
    }
    Ok(shards)
}

/// Writes all shards and returns their records, train before val, in order.
pub fn assemble(
    job: &Job,
    threads: usize,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<Vec<ShardRecord>> {
    let tasks = load_tasks(job)?;
    let shards = lay_out(job, &tasks)?;
    let total: u64 = shards.iter().map(|shard| shard.tokens).sum();
    progress.total.store(total, Relaxed);
    for split in Split::ALL {
        create_folder(&job.out.join(split.name()))?;
    }
    let next = AtomicUsize::new(0);
    let parts = crew(threads.min(shards.len()).max(1), progress, watch, |_| {
        let mut records = Vec::new();
        loop {
            let n = next.fetch_add(1, Relaxed);
            let Some(shard) = shards.get(n) else { return Ok(records) };
            progress.check()?;
            records.push((n, write_shard(job, shard, progress)?));
        }
    })?;
    let mut records: Vec<(usize, ShardRecord)> = parts.into_iter().flatten().collect();
    records.sort_by_key(|(n, _)| *n);
    Ok(records.into_iter().map(|(_, record)| record).collect())
}

fn write_shard(job: &Job, shard: &Shard, progress: &Progress) -> Result<ShardRecord> {
    if let Some(record) = finished_shard(job, shard.split, shard.number) {
        progress.done.fetch_add(shard.tokens, Relaxed);
        return Ok(record);
    }
    let mut writer = ShardWriter::create(job, shard.split, shard.number)?;
    for extent in &shard.extents {
        let ids = Ids::open(job, extent.task, extent.from)?;
        let copy = |tokens: Range<u64>, writer: &mut ShardWriter| {
            ids.copy(tokens, |bytes| {
                progress.check()?;
                progress.done.fetch_add((bytes.len() / job.plan.width()) as u64, Relaxed);
                writer.push(bytes)
            })
        };
        let mut ends = Ends::open(job, extent.task, extent.from, extent.documents.start)?;
        let mut dropped = DroppedPieces::open(job, extent.task, extent.from)?;
        // What is copied at once: the documents between two that are dropped.
        let mut run = extent.tokens.start..extent.tokens.start;
        let mut written = writer.tokens();
        for document in extent.documents.clone() {
            let end = ends.next_end()?.expect("laid out from the same file");
            if dropped.contains(document)? {
                copy(run, &mut writer)?;
                run = end..end;
            } else {
                written += end - run.end;
                run.end = end;
                writer.end_document_at(written)?;
            }
        }
        copy(run, &mut writer)?;
    }
    writer.commit()
}

/// Writes all ids of the train split to one NumPy file; returns how many there are.
pub fn assemble_npy(job: &Job, path: &std::path::Path, progress: &Progress) -> Result<u64> {
    let tasks = load_tasks(job)?;
    let total: u64 = tasks.iter().map(|task| task.train.tokens).sum();
    progress.total.store(total, Relaxed);
    let mut file = NewFile::create(path)?;
    file.write(&npy_header(total, job.plan.width()))?;
    for task in 0..job.plan.tasks {
        let tokens = tasks[task as usize].train.tokens;
        Ids::open(job, task, Split::Train)?.copy(0..tokens, |bytes| {
            progress.check()?;
            progress.done.fetch_add((bytes.len() / job.plan.width()) as u64, Relaxed);
            file.write(bytes)
        })?;
    }
    file.commit()?;
    sync_folder(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(".".as_ref()))?;
    Ok(total)
}

/// Version 1.0 of NumPy's format; the array begins at a multiple of 64 bytes.
fn npy_header(length: u64, width: usize) -> Vec<u8> {
    let mut text = format!("{{'descr': '<u{width}', 'fortran_order': False, 'shape': ({length},), }}");
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((text.len() as u16).to_le_bytes());
    header.extend(text.bytes());
    header
}
