//! The first reading: hashes every unit that may be a duplicate, and collects the characters that occur.

use super::kept_ranges::KeptRangesWriter;
use super::read::TaskFiles;
use super::{BufferSizes, Job, Stage};
use crate::atomic::commit_note;
use crate::clean::{Cleaner, Dropped, Verdict};
use crate::crew::Progress;
use crate::dedup::{self, Drops, RecordWriter, SettlePlan, Unit, drop_file, fresh_file, open_caches};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

/// A checksum of the documents of a task: if it differs between the two readings, the files have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content(u64);

impl Content {
    pub fn add(&mut self, hash: u128) {
        self.0 = self.0.rotate_left(1).wrapping_add((hash >> 64) as u64);
    }
}

/// The part of `scan`'s note that is read later.
#[derive(Deserialize)]
struct Scanned {
    units: u64,
    content: Content,
}

/// Blank lines separate paragraphs: they are never duplicates.
pub fn is_blank(line: &str) -> bool {
    line.trim().is_empty()
}

pub fn records_path(job: &Job, task: u32) -> PathBuf {
    job.work.join("scan").join(format!("{task:06}.hashes"))
}

pub fn scan(job: &Job, index: u32, sizes: &BufferSizes, progress: &Progress) -> Result<()> {
    let plan = &job.plan;
    let path = records_path(job, index);
    let temporary = path.with_extension("hashes.ramlet-tmp");
    let buffer = sizes.hash_bytes.min(super::LARGEST_RECORDS);
    let mut records = match plan.unit {
        Some(_) => Some(RecordWriter::create(&temporary, plan.partitions, buffer)?),
        None => None,
    };
    let mut characters = plan.characters.then(CharacterSet::new);
    let mut cleaner = Cleaner::new(plan.clean.clone());
    let files = TaskFiles::open(job, index, sizes, progress)?;
    let mut reader = files.read(progress);
    let mut content = Content::default();
    let mut kept_ranges = KeptRangesWriter::create(job, index)?;
    while let Some(document) = reader.next()? {
        let bytes = document.text.len();
        let verdict = cleaner.clean(document.text, &mut Dropped::default());
        kept_ranges.push(document.text, if let Verdict::Keep(text) = verdict { Some(text) } else { None })?;
        if let Verdict::Keep(text) = verdict {
            let hash = xxh3_128(text.as_bytes());
            content.add(hash);
            match (plan.unit, &mut records) {
                (Some(Unit::Document), Some(records)) => records.push(hash)?,
                (Some(Unit::Line), Some(records)) => {
                    for line in text.split('\n').filter(|line| !is_blank(line)) {
                        records.push(xxh3_128(line.as_bytes()))?;
                    }
                }
                _ => {}
            }
            if let Some(characters) = &mut characters {
                text.chars().for_each(|character| characters.add(character));
            }
        }
        reader.advance(bytes)?;
    }
    reader.report()?;
    kept_ranges.commit()?;
    let mut units = 0;
    if let Some(records) = records {
        units = records.finish()?;
        std::fs::rename(&temporary, &path).map_err(|error| Error::write(&path, error))?;
    }
    let characters: Option<String> = characters.map(|characters| characters.iter().collect());
    let note =
        json!({"units": units, "content": content, "characters": characters, "input": files.counters()});
    commit_note(&job.note("scan", index), note.to_string().as_bytes())
}

/// How to settle the partitions.
pub fn settle_plan(job: &Job, sizes: &BufferSizes) -> Result<SettlePlan> {
    let caches = match (&job.plan.cache, job.plan.unit) {
        (Some(folder), Some(unit)) if folder.is_dir() => {
            open_caches(folder, &job.plan.id, unit, cache_fingerprint(job)?)?
        }
        _ => Vec::new(),
    };
    Ok(SettlePlan {
        partitions: job.plan.partitions,
        records: (0..job.plan.tasks).map(|task| records_path(job, task)).collect(),
        caches,
        keep_fresh: job.plan.cache.is_some(),
        out: drops_folder(job),
        memory: sizes.hash_bytes.min(super::LARGEST_SET),
    })
}

/// The units of a task that are duplicates, and the checksum of the content they were found in.
pub fn drops(job: &Job, task: u32) -> Result<(Drops, Content)> {
    let Scanned { units, content } = crate::own_files::read_json(&job.note("scan", task))?;
    Ok((Drops::load(task, units, partition_files(job, drop_file))?, content))
}

/// Adds the new hashes to the plan's cache, for later runs.
pub fn commit_cache(job: &Job, progress: &Progress) -> Result<u64> {
    let (Some(folder), Some(unit)) = (&job.plan.cache, job.plan.unit) else { return Ok(0) };
    let files = partition_files(job, fresh_file);
    dedup::commit_cache(folder, &job.plan.id, unit, cache_fingerprint(job)?, &files, progress)
}

/// One file per partition.
fn partition_files(job: &Job, name: fn(&Path, u32) -> PathBuf) -> Vec<PathBuf> {
    let folder = drops_folder(job);
    (0..job.plan.partitions).map(|partition| name(&folder, partition)).collect()
}

fn drops_folder(job: &Job) -> PathBuf {
    job.work.join(Stage::Settle.folder())
}

fn cache_fingerprint(job: &Job) -> Result<[u8; 16]> {
    let text = &job.plan.cache_fingerprint;
    let number = u128::from_str_radix(text.get(..32).unwrap_or(text), 16).map_err(|_| {
        Error::Invalid(format!("the plan's fingerprint {text:?} is not a hexadecimal number"))
    })?;
    Ok(number.to_be_bytes())
}

/// Every character that occurred.
struct CharacterSet(Vec<u64>);

impl CharacterSet {
    fn new() -> Self {
        CharacterSet(vec![0; (char::MAX as usize + 1).div_ceil(64)])
    }

    #[inline]
    fn add(&mut self, character: char) {
        self.0[character as usize / 64] |= 1 << (character as usize % 64);
    }

    fn iter(&self) -> impl Iterator<Item = char> {
        let has = |code: &u32| self.0[*code as usize / 64] >> (code % 64) & 1 == 1;
        (0..=char::MAX as u32).filter(has).filter_map(char::from_u32)
    }
}
