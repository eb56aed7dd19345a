//! Near-duplicates of a run: what its tasks spill, the pairs that are compared, and what is dropped.

pub mod bits;
mod compare;
mod corrected;
pub mod dropped;
mod keep;
mod places;
mod report;
mod sets;
mod spill;
mod texts;

pub use keep::commit_near_cache;
pub use places::Place;
pub use report::write_report;
pub use spill::NearSpill;
pub use texts::Decoding;

use super::{BufferSizes, Job};
use crate::atomic::{commit_note, create_folder};
use crate::crew::{Progress, Watch};
use crate::error::{Error, Result};
use crate::near::Near;
use crate::near::cache::{CacheFile, open_caches};
use crate::near::pairs::{PairPlan, pairs_file};
use crate::own_files;
use bits::DroppedBits;
use compare::Comparing;
use corrected::Corrections;
use dropped::DroppedWriter;
use serde::Deserialize;
use sets::Sets;
use std::path::PathBuf;
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
    let count = |task| Ok(own_files::read_json::<Compared>(&job.note("tokens", task))?.near_documents);
    (0..job.plan.tasks).map(count).collect()
}

pub fn caches(job: &Job) -> Result<Vec<CacheFile>> {
    match &job.plan.cache {
        Some(folder) => open_caches(folder, &job.plan.id, &settings(job)?, &job.plan.cache_fingerprint),
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

/// Compares the pairs of all tasks that are not done yet, or of one of them only: all before it must be done.
pub fn compare(
    job: &Job,
    only: Option<u32>,
    decoding: &Decoding<'_>,
    memory: usize,
    threads: usize,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<()> {
    let near = settings(job)?;
    create_folder(&job.work.join(NEAR))?;
    let documents = documents(job)?;
    let mut bits = DroppedBits::new(&documents);
    progress.total.store(bits.total(), Relaxed);
    let least = BufferSizes::shared_memory(&job.plan, true)
        + threads * BufferSizes::least_memory(&job.plan)
        + DroppedBits::memory(bits.total());
    let share = memory.saturating_sub(least) / 4;
    let folder = job.work.join(PAIRS);
    let comparing = Comparing {
        job,
        threshold: near.threshold,
        decoding,
        sets: Sets::new(caches(job)?, (LEAST_SHARE + share).min(LARGEST_SHARE)),
        pairs: (0..near.partitions).map(|partition| pairs_file(&folder, partition)).collect(),
        memory: (LEAST_SHARE + share).min(LARGEST_SHARE),
        threads,
    };
    for task in 0..only.map_or(job.plan.tasks, |only| only + 1) {
        progress.check()?;
        if job.note(NEAR, task).exists() {
            bits.load(job, task)?;
        } else if only.is_none_or(|only| only == task) {
            compare_task(&comparing, task, &mut bits, progress, watch)?;
        } else {
            return Err(Error::Invalid(format!("task {task} has to be compared first")));
        }
        progress.done.fetch_add(bits.documents(task), Relaxed);
    }
    Ok(())
}

/// Memory for pairs and for shingles that is part of the least memory (`dedup::LEAST_MEMORY`).
const LEAST_SHARE: usize = 1 << 20;

fn compare_task(
    comparing: &Comparing<'_>,
    task: u32,
    bits: &mut DroppedBits,
    progress: &Progress,
    watch: &mut Watch<'_>,
) -> Result<()> {
    let job = comparing.job;
    let mut writer = DroppedWriter::create(job, task)?;
    let mut corrections = Corrections::default();
    let mut texts = Texts::new(job, comparing.decoding);
    comparing.task(task, bits, progress, watch, &mut |drops| {
        let mut pieces = [Vec::new(), Vec::new()];
        for drop in drops {
            let place = corrections.add(job, task, drop, &mut texts)?;
            let split = super::write::split_of(&job.plan, place.hash) as usize;
            pieces[split].extend(place.first..place.first + place.pieces);
        }
        writer.write(drops, &pieces)
    })?;
    let note = corrections.note(job, task, bits)?;
    writer.commit()?;
    commit_note(&job.note(NEAR, task), note.to_string().as_bytes())
}
