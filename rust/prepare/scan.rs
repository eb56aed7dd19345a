//! The first reading: finds documents with text of the evaluation set, hashes every unit that may be a duplicate, and
//! collects the characters that occur.

use super::kept_ranges::KeptRangesWriter;
use super::ledger::Origin;
use super::read::TaskFiles;
use super::screen::{Examples, Excluded};
use super::{BufferSizes, Job, Stage};
use crate::atomic::{commit_note, temporary_name};
use crate::clean::{Cleaner, Dropped, Verdict};
use crate::crew::Progress;
use crate::dedup::{
    self, CacheFile, Drops, RecordWriter, SettlePlan, Unit, drop_file, fresh_file, open_caches,
};
use crate::error::{Error, Result};
use crate::own_files;
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

pub fn scan(
    job: &Job,
    index: u32,
    excluded: Option<&Excluded>,
    sizes: &BufferSizes,
    progress: &Progress,
) -> Result<()> {
    let plan = &job.plan;
    let path = records_path(job, index);
    let temporary = temporary_name(&path);
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
    let mut screen = excluded.map(|excluded| excluded.last_screen(job, index)).transpose()?;
    let mut examples = Examples::default();
    while let Some(document) = reader.next()? {
        let bytes = document.text.len();
        let verdict = cleaner.clean(document.text, &mut Dropped::default());
        kept_ranges.push(document.text, if let Verdict::Keep(text) = verdict { Some(text) } else { None })?;
        if let Verdict::Keep(text) = verdict {
            let hash = xxh3_128(text.as_bytes());
            content.add(hash);
            if let Some(screen) = &mut screen
                && let Some(hit) = screen.compare(text)?
            {
                let origin = Origin { path: files.path(), document: document.document };
                examples.add(hash as u64, text, &hit, origin);
                reader.advance(bytes)?;
                continue;
            }
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
    if let (Some(screen), Some(excluded)) = (screen, excluded) {
        excluded.commit_last(screen)?;
    }
    let mut units = 0;
    if let Some(records) = records {
        units = records.finish()?;
        std::fs::rename(&temporary, &path).map_err(|error| Error::write(&path, error))?;
    }
    let characters: Option<String> = characters.map(|characters| characters.iter().collect());
    let note = json!({
        "units": units,
        "content": content,
        "characters": characters,
        "contaminated": examples,
        "input": files.counters(),
    });
    commit_note(&job.note("scan", index), note.to_string().as_bytes())
}

/// How to settle the partitions.
pub fn caches(job: &Job) -> Result<Vec<CacheFile>> {
    match (&job.plan.cache, job.plan.unit) {
        (Some(folder), Some(unit)) => {
            open_caches(folder, &job.plan.cache_listing, unit, cache_fingerprint(job)?)
        }
        _ => Ok(Vec::new()),
    }
}

pub fn settle_plan(job: &Job, sizes: &BufferSizes) -> Result<SettlePlan> {
    Ok(SettlePlan {
        partitions: job.plan.partitions,
        records: (0..job.plan.tasks).map(|task| records_path(job, task)).collect(),
        caches: caches(job)?,
        keep_fresh: job.plan.cache.is_some(),
        out: drops_folder(job),
        memory: sizes.hash_bytes.min(super::LARGEST_SET),
    })
}

/// The units of a task that are duplicates.
pub fn drops(job: &Job, task: u32) -> Result<Drops> {
    let Scanned { units, .. } = own_files::read_json(&job.note("scan", task))?;
    Drops::load(task, units, partition_files(job, drop_file))
}

/// The checksum of what the first reading found, if the second depends on it.
pub fn scanned_content(job: &Job, task: u32) -> Result<Option<Content>> {
    if job.plan.unit.is_none() && job.plan.exclude_ngram == 0 {
        return Ok(None);
    }
    let Scanned { content, .. } = own_files::read_json(&job.note("scan", task))?;
    Ok(Some(content))
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
