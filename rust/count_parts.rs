//! Counting in parts that run anywhere: each counts one task's text into a run, then the runs are merged, a partition
//! at a time. The sums are those of one count of everything, so training learns the same merges from them.
//!
//! ```text
//! WORK/inputs           the tasks (`tasks/`)
//! WORK/counts/NNNNNN    .run: the pieces of a task; .json, written last: totals, and a checksum of each partition
//! WORK/merged/NNNN.run  a partition of all runs
//! ```

use crate::atomic::{commit_note, create_folder, sync_folder, temporary_name};
use crate::count::{self, Counted, Feed, Totals};
use crate::crew::{Progress, Watch};
use crate::error::{Error, Result};
use crate::own_files::{self, damaged};
use crate::source::Counters;
use crate::spill::{self, FAN_IN, OpenRun, PARTITIONS, Run, RunWriter};
use crate::workdir::WorkDir;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

pub const COUNTS: &str = "counts";
pub const MERGED: &str = "merged";
/// Of each run that is merged, at least.
const READ_BUFFER: usize = 64 << 10;

/// The note that a task is counted.
#[derive(Serialize, Deserialize)]
struct Note {
    #[serde(flatten)]
    totals: Totals,
    regex_failures: u64,
    read: Counters,
    /// Of each partition of the run: xxh3 of its bytes.
    sums: Vec<u64>,
}

fn run_path(work: &Path, task: u32) -> PathBuf {
    work.join(COUNTS).join(format!("{task:06}.run"))
}

fn note_path(work: &Path, task: u32) -> PathBuf {
    work.join(COUNTS).join(format!("{task:06}.json"))
}

fn merged_path(work: &Path, partition: usize) -> PathBuf {
    work.join(MERGED).join(format!("{partition:04}.run"))
}

/// Counts the text of one task, unless that is done.
pub fn count_task(
    work: &Path,
    task: u32,
    feed: &dyn Feed,
    settings: &count::Settings<'_>,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<()> {
    if note_path(work, task).exists() {
        return Ok(());
    }
    create_folder(&work.join(COUNTS))?;
    // Of this process alone: another may be counting the same task.
    let (_removed, spilled) = scratch(&run_path(work, task))?;
    let counted = count::count(feed, settings, &spilled, progress, watch)?;
    let totals = counted.totals.clone();
    let run = counted.into_run(&spilled, &run_path(work, task), settings.memory)?.open()?;
    let sums = (0..PARTITIONS).map(|partition| run.sum(partition)).collect::<Result<_>>()?;
    sync_folder(&work.join(COUNTS))?;
    let note = Note { totals, regex_failures: settings.pattern.failures(), read: feed.counters(), sums };
    commit_note(&note_path(work, task), &serde_json::to_vec(&note).expect("plain data"))
}

/// A new folder next to `path`, locked while it is in use: one that is not was left by a process that has ended.
fn scratch(path: &Path) -> Result<(Scratch, WorkDir)> {
    let mut tries: u32 = 3;
    loop {
        let folder = Scratch(temporary_name(path));
        match WorkDir::open(&folder.0, "") {
            Ok(opened) if opened.has_lock() => return Ok((folder, opened)),
            Err(error) if tries == 0 => return Err(error),
            // Before it was locked, another process has removed it as one that was left (`remove_left`).
            _ => tries = tries.saturating_sub(1),
        }
    }
}

/// A folder that is removed in the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Merges one partition of the runs of all tasks, unless that is done.
pub fn merge_runs(
    work: &Path,
    tasks: u32,
    partition: usize,
    memory: usize,
    progress: &Progress,
) -> Result<()> {
    let path = merged_path(work, partition);
    if path.exists() {
        return Ok(());
    }
    create_folder(&work.join(MERGED))?;
    let most = (memory / READ_BUFFER).clamp(2, FAN_IN);
    let (_removed, folder) = scratch(&path)?;
    let mut left: Vec<PathBuf> = (0..tasks).map(|task| run_path(work, task)).collect();
    let (mut checked, mut round) = (false, 0);
    loop {
        let last = left.len() <= most;
        let mut merged = Vec::new();
        for (n, group) in left.chunks(most).enumerate() {
            progress.check()?;
            let open = |(at, path): (usize, &PathBuf)| {
                let run = Run::find(path)?.open()?;
                if !checked {
                    let task = (n * most + at) as u32;
                    let note: Note = own_files::read_json(&note_path(work, task))?;
                    if note.sums.get(partition) != Some(&run.sum(partition)?) {
                        return Err(damaged(path));
                    }
                }
                Ok(run)
            };
            let runs: Vec<OpenRun> = group.iter().enumerate().map(open).collect::<Result<_>>()?;
            let to = if last { path.clone() } else { folder.path().join(format!("{round}-{n}.run")) };
            let mut writer = RunWriter::create(&to)?;
            spill::merge_partition(&runs, partition, memory, |piece, hash, count| {
                writer.push(piece, hash, count)
            })?;
            writer.finish()?;
            merged.push(to);
        }
        if last {
            progress.done.fetch_add(1, Relaxed);
            return sync_folder(&work.join(MERGED));
        }
        (left, checked, round) = (merged, true, round + 1);
    }
}

/// The merged counts of all tasks.
pub fn merged(work: &Path, folder: &WorkDir) -> Result<Counted> {
    for partition in 0..PARTITIONS {
        let path = merged_path(work, partition);
        if !path.exists() {
            return Err(Error::Invalid(format!("{} is missing: run the same command again", path.display())));
        }
        folder.add_run(Run::find_checked(&path)?);
    }
    Ok(Counted::of_runs())
}
