//! Near-duplicates of a run: what its tasks spill, the pairs that are compared, and what is dropped.

pub mod bits;
mod compare;
mod corrected;
mod decided;
pub mod dropped;
mod keep;
mod places;
mod report;
mod sets;
mod similar;
mod spill;
mod texts;

pub use keep::commit_near_cache;
pub use places::Place;
pub use report::write_report;
pub use spill::NearSpill;
pub use texts::Decoding;

use super::{BufferSizes, Job, Plan};
use crate::atomic::{commit_note, create_folder};
use crate::crew::{Progress, Watch, crew};
use crate::error::{Error, Result};
use crate::near::Near;
use crate::near::cache::{CacheFile, open_caches};
use crate::near::pairs::{PairPlan, pairs_file};
use crate::own_files;
use bits::DroppedBits;
use compare::Comparing;
use corrected::Corrections;
use decided::{DecidedWriter, decided_path};
use dropped::DroppedWriter;
use serde::Deserialize;
use sets::Sets;
use similar::{SimilarWriter, similar_path};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use texts::Texts;

/// The folders of the pairs and of the results.
pub const PAIRS: &str = "near_pairs";
pub const NEAR: &str = "near";

/// The most memory for pairs, and for shingles that are needed again.
const LARGEST_SHARE: usize = 64 << 20;

fn bands_path(job: &Job, task: u32) -> PathBuf {
    job.work.join("tokens").join(format!("{task:06}.bands"))
}

fn places_path(job: &Job, task: u32) -> PathBuf {
    job.work.join("tokens").join(format!("{task:06}.places"))
}

fn dropped_path(job: &Job, task: u32) -> PathBuf {
    job.work.join(NEAR).join(format!("{task:06}.dropped"))
}

/// The part of a task's note with the number of documents that are compared.
#[derive(Deserialize)]
struct Compared {
    near_documents: u64,
}

fn settings(job: &Job) -> Result<Near> {
    job.plan.near.ok_or_else(|| Error::Invalid("the plan does not compare documents".into()))
}

/// The number of documents of each task.
fn documents(job: &Job) -> Result<Vec<u64>> {
    (0..job.plan.tasks).map(|task| documents_of(job, task)).collect()
}

fn documents_of(job: &Job, task: u32) -> Result<u64> {
    Ok(own_files::read_json::<Compared>(&job.note("tokens", task))?.near_documents)
}

pub fn caches(job: &Job) -> Result<Vec<CacheFile>> {
    match &job.plan.cache {
        Some(folder) => {
            let Plan { cache_listing, cache_fingerprint, .. } = &job.plan;
            open_caches(folder, cache_listing, &settings(job)?, cache_fingerprint)
        }
        None => Ok(Vec::new()),
    }
}

/// How to find the pairs of all partitions.
pub fn pair_plan(job: &Job, sizes: &BufferSizes) -> Result<PairPlan> {
    Ok(PairPlan {
        near: settings(job)?,
        records: (0..job.plan.tasks).map(|task| bands_path(job, task)).collect(),
        caches: caches(job)?,
        out: job.work.join(PAIRS),
        memory: sizes.hash_bytes.min(super::LARGEST_SET),
    })
}

/// What comparing tasks needs, with `memory` for `threads` that each compare a task of their own.
fn comparing<'a>(
    job: &'a Job,
    decoding: &'a Decoding<'a>,
    memory: usize,
    threads: usize,
) -> Result<Comparing<'a>> {
    let near = settings(job)?;
    let least = BufferSizes::shared_memory(&job.plan, true) + threads * BufferSizes::least_memory(&job.plan);
    let share = memory.saturating_sub(least) / 4;
    let folder = job.work.join(PAIRS);
    Ok(Comparing {
        job,
        threshold: near.threshold,
        decoding,
        sets: Sets::new(caches(job)?, (LEAST_SHARE + share).min(LARGEST_SHARE)),
        pairs: (0..near.partitions).map(|partition| pairs_file(&folder, partition)).collect(),
        memory: (LEAST_SHARE + share / threads.max(1)).min(LARGEST_SHARE),
    })
}

/// Memory for pairs and for shingles that is part of the least memory (`dedup::LEAST_MEMORY`).
const LEAST_SHARE: usize = 1 << 20;

/// Compares the documents of tasks with those before them: which is the first that is similar.
pub fn compare(
    job: &Job,
    tasks: &[u32],
    decoding: &Decoding<'_>,
    memory: usize,
    threads: usize,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<()> {
    create_folder(&job.work.join(NEAR))?;
    let comparing = comparing(job, decoding, memory, threads.min(tasks.len()).max(1))?;
    super::run_parts(tasks, threads, progress, watch, |task, threads| {
        if !similar_path(job, task).exists() {
            let mut writer = SimilarWriter::create(job, task)?;
            comparing.task(task, threads.max(1), progress, &mut |window| writer.write(window))?;
            writer.commit()?;
        }
        progress.done.fetch_add(documents_of(job, task)?, Relaxed);
        Ok(())
    })
}

/// Decides which documents of all tasks are dropped, in the order of the input.
pub fn decide(
    job: &Job,
    decoding: &Decoding<'_>,
    memory: usize,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<()> {
    let bits = DroppedBits::new(&documents(job)?);
    let rest = memory.saturating_sub(DroppedBits::memory(bits.total()));
    let bits = Mutex::new(bits);
    let comparing = comparing(job, decoding, rest, 1)?;
    let work = |_| {
        let mut texts = Texts::new(job, decoding);
        let mut bits = bits.lock().unwrap();
        for task in 0..job.plan.tasks {
            progress.check()?;
            if decided_path(job, task).exists() {
                bits.load(job, task)?;
            } else {
                let mut writer = DecidedWriter::create(job, task)?;
                similar::for_each(job, task, |found| {
                    if let Some(drop) = comparing.decide(task, &found, &bits, &mut texts)? {
                        bits.set(task, drop.index);
                        writer.push(&drop)?;
                    }
                    progress.check()
                })?;
                writer.commit()?;
            }
            progress.done.fetch_add(bits.documents(task), Relaxed);
        }
        Ok(())
    };
    // On a thread of its own, so that this one notices Ctrl-C.
    crew(1, progress, watch, work)?;
    commit_note(&job.work.join(NEAR).join(DECIDED), b"{}")
}

/// The note that it is decided for all tasks which documents are dropped.
const DECIDED: &str = "decided.json";

/// Writes what is dropped of tasks, and their notes as they are without it.
pub fn drop_near(
    job: &Job,
    tasks: &[u32],
    decoding: &Decoding<'_>,
    threads: usize,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<()> {
    super::run_parts(tasks, threads, progress, watch, |task, _| {
        if !job.note(NEAR, task).exists() {
            drop_of_task(job, task, decoding)?;
        }
        progress.done.fetch_add(documents_of(job, task)?, Relaxed);
        Ok(())
    })
}

fn drop_of_task(job: &Job, task: u32, decoding: &Decoding<'_>) -> Result<()> {
    let mut writer = DroppedWriter::create(job, task)?;
    let mut corrections = Corrections::default();
    let mut texts = Texts::new(job, decoding);
    let mut bits = DroppedBits::of_task(task, documents_of(job, task)?);
    decided::for_each(job, task, |drops| {
        let mut pieces = [Vec::new(), Vec::new()];
        for drop in drops {
            bits.set(task, drop.index);
            let place = corrections.add(job, task, drop, &mut texts)?;
            let split = super::write::split_of(&job.plan, place.hash) as usize;
            pieces[split].extend(place.first..place.first + place.pieces);
        }
        writer.write(drops, &pieces)
    })?;
    let note = corrections.note(job, task, &bits)?;
    writer.commit()?;
    commit_note(&job.note(NEAR, task), note.to_string().as_bytes())
}
