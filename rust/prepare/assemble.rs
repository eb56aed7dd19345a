//! Assembles the shards from the tokens of all tasks, in order.
//!
//! Which documents go into which shard depends on their lengths alone. It is laid out first, in one pass over the
//! documents' ends (`layout.rs`); then each shard is copied together by itself, on any thread or machine, and a note is
//! written when it is complete.

use super::layout::{self, Head, Layout, LayoutFile, Parts, Piece};
use super::near::dropped::DroppedPieces;
use super::shard::{ShardRecord, ShardWriter, finished_shard};
use super::tokens::{Candidate, Ends, Ids, TaskTokens, load_tasks};
use super::{Job, Split, run_parts};
use crate::atomic::{NewFile, commit_note, sync_folder};
use crate::crew::{Progress, Watch, crew};
use crate::error::{Error, Result};
use crate::own_files;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

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

/// Writes the shards with these indices, unless they are complete.
pub fn assemble(
    job: &Job,
    parts: &[u32],
    threads: usize,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<()> {
    if let Some(name) = &job.plan.npy {
        let path = job.out.join(name);
        // On a thread of its own, so that this one notices Ctrl-C.
        crew(1, progress, watch, |_| parts.iter().try_for_each(|_| assemble_npy(job, &path, progress)))?;
        return Ok(());
    }
    let layout = LayoutFile::open(job)?;
    progress.total.store(total_tokens(&layout, parts)?, Relaxed);
    run_parts(parts, threads, progress, watch, |index, _| write_shard(job, index, &layout, progress))
}

fn total_tokens(layout: &LayoutFile, parts: &[u32]) -> Result<u64> {
    parts.iter().map(|&index| tokens_of(layout, index)).sum()
}

fn tokens_of(layout: &LayoutFile, index: u32) -> Result<u64> {
    layout.rows(index)?.map(|row| Ok(layout.head(row)?.tokens)).sum()
}

/// What the assembly made, for the manifest: the records of all shards, train before val, in order, and the statistics
/// of packing; or the tokens of the one npy file.
pub fn assembled(job: &Job) -> Result<serde_json::Value> {
    if job.plan.npy.is_some() {
        return own_files::read_json(&npy_note(job));
    }
    let Layout { shards, packed } = layout::layout(job)?;
    let record = |index| {
        finished_shard(job, index).ok_or_else(|| {
            let run_again = "run the same command again";
            Error::Invalid(format!(
                "shard {index} in {} is missing or incomplete: {run_again}",
                job.out.display()
            ))
        })
    };
    let records: Vec<ShardRecord> = (0..shards).map(record).collect::<Result<_>>()?;
    let mut made = packed.map_or_else(|| serde_json::json!({}), |packed| serde_json::json!(packed));
    made["shards"] = serde_json::json!(records);
    Ok(made)
}

fn npy_note(job: &Job) -> PathBuf {
    job.work.join(layout::SHARDS).join("000000.json")
}

fn write_shard(job: &Job, index: u32, layout: &LayoutFile, progress: &Progress) -> Result<()> {
    if finished_shard(job, index).is_some() {
        progress.done.fetch_add(tokens_of(layout, index)?, Relaxed);
        return Ok(());
    }
    let rows = layout.rows(index)?;
    let Head { split, number, .. } = layout.head(rows.start)?;
    let mut writer = ShardWriter::create(job, index, split, number)?;
    for row in rows {
        match layout.parts(row)? {
            Parts::Extents(extents) => {
                extents.iter().try_for_each(|extent| copy_extent(job, extent, &mut writer, progress))?
            }
            Parts::Pieces(pieces) => copy_pieces(job, &pieces, &mut writer, progress)?,
        }
    }
    writer.commit()
}

fn copy_extent(job: &Job, extent: &Extent, writer: &mut ShardWriter, progress: &Progress) -> Result<()> {
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
            copy(run, writer)?;
            run = end..end;
        } else {
            written += end - run.end;
            run.end = end;
            writer.end_document_at(written)?;
        }
    }
    copy(run, writer)
}

fn copy_pieces(job: &Job, pieces: &[Piece], writer: &mut ShardWriter, progress: &Progress) -> Result<()> {
    let pad = job.plan.pad_id().to_le_bytes();
    // The last task and split whose ids were read.
    let mut ids: Option<(u32, Split, Ids)> = None;
    for piece in pieces {
        progress.check()?;
        let (_, _, open) = match ids.take_if(|(task, from, _)| (*task, *from) == (piece.task, piece.from)) {
            Some(same) => ids.insert(same),
            None => ids.insert((piece.task, piece.from, Ids::open(job, piece.task, piece.from)?)),
        };
        open.copy(piece.tokens.clone(), |bytes| writer.push(bytes))?;
        writer.end_document_at(writer.tokens())?;
        for _ in 0..piece.padding {
            writer.push(&pad[..job.plan.width()])?;
        }
        progress.done.fetch_add(piece.len() + piece.padding, Relaxed);
    }
    Ok(())
}

/// Writes all ids of the train split to one NumPy file, and notes how many there are.
fn assemble_npy(job: &Job, path: &Path, progress: &Progress) -> Result<()> {
    if npy_note(job).exists() && path.exists() {
        return Ok(());
    }
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
    commit_note(&npy_note(job), serde_json::json!({"tokens": total}).to_string().as_bytes())
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
